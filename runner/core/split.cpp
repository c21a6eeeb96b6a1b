#include "core/split.h"

#include <algorithm>

namespace patchbench {

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (bool is_last = false; !is_last;) {
    const std::size_t end = text.find(separator);
    is_last = end == std::string_view::npos;
    std::string_view part = text.substr(0, end);
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    part = part.substr(0, part.find_last_not_of(' ') + 1);
    parts.emplace_back(part);
    if (!is_last) text.remove_prefix(end + separator.size());
  }
  return parts;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower(c);
  return out;
}

}  // namespace patchbench
