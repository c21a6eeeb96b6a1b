#include "core/toml_text.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <cmath>
#include <sstream>

#include "core/error.h"

namespace patchbench {
namespace {

constexpr int kLineDepth = 4;

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

/// The line of the first character outside of strings and comments that is not ASCII, which TOML
/// does not allow; 0 if there is none. toml++ 3.3 runs into undefined behaviour on some of them
/// (is_non_ascii_horizontal_whitespace), so that it never sees one.
int line_of_stray_character(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string_view closing;  // of the string or comment that i is in; empty outside of them
  int line = 1;
  for (std::size_t i = text.starts_with(kByteOrderMark) ? 3 : 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (closing.empty()) {
      if (static_cast<unsigned char>(c) >= 0x80) return line;
      if (c == '#') closing = "\n";
      if (c != '"' && c != '\'') continue;
      const bool is_long = text.substr(i, 3) == (c == '"' ? "\"\"\"" : "'''");
      closing = c == '"' ? (is_long ? "\"\"\"" : "\"") : (is_long ? "'''" : "'");
      i += closing.size() - 1;
    } else if (c == '\\' && closing[0] == '"') {
      line += text.substr(i + 1, 1) == "\n";
      ++i;
    } else if (text.substr(i, closing.size()) == closing) {
      i += closing.size() - 1;
      // One or two quotes before the closing ones belong to the string.
      while (closing.size() == 3 && i + 1 < text.size() && text[i + 1] == closing[0]) ++i;
      closing = {};
    } else if (c == '\n' && closing.size() == 1) {
      closing = {};
    }
  }
  return 0;
}

}  // namespace

Json parse_toml(std::string_view text, const std::string& where, JsonLines* lines) {
  if (const int line = line_of_stray_character(text); line > 0)
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{}:{}: is not TOML: a character outside of strings and comments that is "
                    "no ASCII",
                    where, line));
  try {
    const toml::table table = toml::parse(text);
    return Converter(lines).convert(table, "", 0);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}:{}: is not TOML: {}", where, error.source().begin.line,
                            shown(error.description())));
  }
}

}  // namespace patchbench
