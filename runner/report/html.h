#pragma once
#include <string>
#include <string_view>

namespace patchbench::report {

/// Text for HTML and SVG, in elements and in double-quoted attributes: every character that could
/// end one is escaped, bytes that are not UTF-8 and control characters become U+FFFD.
std::string html_text(std::string_view text);

/// `<tag attributes>escaped text</tag>`. `attributes` is markup of ours, never text of others.
std::string element(std::string_view tag, std::string_view text, std::string_view attributes = "");

/// A link to a place in the page: `<a href="#id">escaped text</a>`.
std::string link_to(std::string_view id, std::string_view text);

}  // namespace patchbench::report
