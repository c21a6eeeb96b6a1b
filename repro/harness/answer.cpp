#include "harness/answer.h"

namespace patchbench::harness {

std::string printable(std::string_view text, std::size_t limit) {
  std::string line;
  for (const char c : text) {
    if (line.size() >= limit) return line + "...";
    if (c == '\n' || c == '\r') {
      if (!line.empty()) break;
      continue;
    }
    line.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return line;
}

}  // namespace patchbench::harness
