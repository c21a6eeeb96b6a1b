#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// The parts of a text between a separator that is not empty, without the spaces around each part.
/// A text without the separator is one part.
std::vector<std::string> split(std::string_view text, std::string_view separator);

/// A letter of ASCII in lower case; any other character as it is.
char lower(char c);
std::string lower(std::string_view text);

}  // namespace patchbench
