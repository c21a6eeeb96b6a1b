#include "core/toml_text.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <cmath>
#include <sstream>

#include "core/error.h"

namespace patchbench {
namespace {

constexpr int kLineDepth = 3;

class Converter {
 public:
  explicit Converter(JsonLines* lines) : lines_(lines) {}

  Json convert(const toml::node& node, const std::string& pointer, int depth) {
    if (lines_ != nullptr && depth <= kLineDepth)
      (*lines_)[pointer] = static_cast<int>(node.source().begin.line);
    if (const toml::table* table = node.as_table()) return object(*table, pointer, depth);
    if (const toml::array* array = node.as_array()) return list(*array, pointer, depth);
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return number->get();
    if (const auto* flag = node.as_boolean()) return flag->get();
    if (const auto* number = node.as_floating_point())
      return std::isfinite(number->get()) ? Json(number->get()) : Json();
    std::ostringstream out;
    if (const auto* day = node.as_date()) out << day->get();
    if (const auto* time = node.as_time()) out << time->get();
    if (const auto* both = node.as_date_time()) out << both->get();
    return out.str();
  }

 private:
  std::string below(const std::string& pointer, std::string_view key, int depth) const {
    return lines_ == nullptr || depth >= kLineDepth ? "" : pointer + "/" + pointer_segment(key);
  }

  Json object(const toml::table& table, const std::string& pointer, int depth) {
    Json out = Json::object();
    for (const auto& [key, value] : table)
      out[std::string(key)] =
          convert(value, below(pointer, std::string_view(key), depth), depth + 1);
    return out;
  }

  Json list(const toml::array& array, const std::string& pointer, int depth) {
    Json out = Json::array();
    for (const toml::node& value : array)
      out.push_back(convert(value, below(pointer, std::to_string(out.size()), depth), depth + 1));
    return out;
  }

  JsonLines* lines_;
};

}  // namespace

Json parse_toml(std::string_view text, const std::string& where, JsonLines* lines) {
  try {
    const toml::table table = toml::parse(text);
    return Converter(lines).convert(table, "", 0);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}:{}: is no TOML: {}", where, error.source().begin.line,
                            shown(error.description())));
  }
}

}  // namespace patchbench
