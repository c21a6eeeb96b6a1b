#include "report/template.h"

#include <algorithm>
#include <kainjow/mustache.hpp>
#include <set>

#include "core/error.h"
#include "core/observation.h"
#include "core/slug.h"

namespace patchbench::report {
namespace {

using kainjow::mustache::data;

data data_of(const Json& value) {
  if (value.is_object()) {
    data object(data::type::object);
    for (const auto& [key, item] : value.items()) object.set(key, data_of(item));
    return object;
  }
  if (value.is_array()) {
    data list(data::type::list);
    for (const Json& item : value) list.push_back(data_of(item));
    return list;
  }
  if (value.is_boolean()) return data(value.get<bool>());
  if (value.is_string()) {
    // An empty text is false for {{#name}}.
    const std::string text = value.get<std::string>();
    return text.empty() ? data(false) : data(text);
  }
  return data(value.dump());
}

void add_names(const Json& value, std::set<std::string>& names) {
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      names.insert(key);
      add_names(item, names);
    }
  }
  if (value.is_array())
    for (const Json& item : value) add_names(item, names);
}

/// A mistyped name would be rendered as nothing, so every one must be known.
void check_names(std::string_view text, const std::string& where, const Json& known) {
  std::set<std::string> names;
  add_names(known, names);
  for (std::size_t at = text.find("{{"); at != text.npos; at = text.find("{{", at + 2)) {
    const std::size_t end = text.find("}}", at);
    if (end == text.npos) return;  // the parser says so
    std::string name(text.substr(at + 2, end - at - 2));
    const char sigil = name.empty() ? '\0' : name.front();
    if (sigil == '!' || sigil == '=') continue;
    std::erase_if(name, [](char c) {
      return c == ' ' || c == '#' || c == '/' || c == '^' || c == '&' || c == '{';
    });
    if (name == "." || names.contains(name)) continue;
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw Error(ErrorCode::kUsage, where + ":" + std::to_string(line) + ": no value \"" +
                                       shown(name) + "\"" +
                                       did_you_mean(name, {names.begin(), names.end()}));
  }
}

}  // namespace

std::string fill_template(std::string_view text, const std::string& where, const Json& data) {
  check_names(text, where, data);
  kainjow::mustache::mustache parsed{std::string(text)};
  if (!parsed.is_valid())
    throw Error(ErrorCode::kUsage, where + ": " + one_line(parsed.error_message(), 200));
  parsed.set_custom_escape([](const std::string& value) { return value; });
  return parsed.render(data_of(data));
}

}  // namespace patchbench::report
