#include "report/html.h"

#include <fmt/format.h>

#include "core/json.h"

namespace patchbench::report {

std::string html_text(std::string_view text) {
  // A JSON writer replaces bytes that are not UTF-8; control characters have no place in a page
  // either.
  const std::string quoted =
      Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::string clean = Json::parse(quoted).get<std::string>();
  std::string out;
  for (const char c : clean) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out +=
            static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? "\xef\xbf\xbd" : std::string(1, c);
    }
  }
  return out;
}

std::string element(std::string_view tag, std::string_view text, std::string_view attributes) {
  return fmt::format("<{}{}{}>{}</{}>", tag, attributes.empty() ? "" : " ", attributes,
                     html_text(text), tag);
}

std::string link_to(std::string_view id, std::string_view text) {
  return element("a", text, fmt::format("href=\"#{}\"", html_text(id)));
}

}  // namespace patchbench::report
