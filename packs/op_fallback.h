#pragma once
#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace patchbench::ops {

/// Whether PATCHBENCH_OP_FALLBACK, a comma-separated list of slugs, names this pack: its op then
/// takes the plain torch form. Read at every call.
inline bool is_fallback_forced(std::string_view slug) {
  const char* value = std::getenv("PATCHBENCH_OP_FALLBACK");
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    if (rest.substr(0, comma) == slug) return true;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return false;
}

}  // namespace patchbench::ops
