#include "core/version_range.h"

#include <vector>

#include "core/release_index.h"

namespace patchbench {
namespace {

struct Comparison {
  std::string verb, version;
};

std::string without_spaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ') out += c;
  }
  return out;
}

/// nullopt where one of them is none.
std::optional<std::vector<Comparison>> comparisons_of(std::string_view range) {
  std::vector<Comparison> found;
  const std::string text = without_spaces(range);
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    const size_t length = one.find_first_not_of("<>=!");
    if (length == std::string::npos || length == 0) return std::nullopt;
    Comparison comparison{one.substr(0, length), one.substr(length)};
    const std::string& verb = comparison.verb;
    const bool is_known =
        verb == "==" || verb == "!=" || verb == ">=" || verb == "<=" || verb == ">" || verb == "<";
    if (!is_known || !release_key(comparison.version)) return std::nullopt;
    found.push_back(std::move(comparison));
    at = end + 1;
  }
  return found;
}

bool order_holds(const std::string& verb, int order) {
  if (verb == "==") return order == 0;
  if (verb == "!=") return order != 0;
  if (verb == ">=") return order >= 0;
  if (verb == "<=") return order <= 0;
  return verb == ">" ? order > 0 : order < 0;
}

}  // namespace

bool is_version_range(std::string_view range) { return comparisons_of(range).has_value(); }

std::optional<int> compare_versions(const std::string& a, const std::string& b) {
  const auto left = release_key(a), right = release_key(b);
  if (!left || !right) return std::nullopt;
  return *left < *right ? -1 : *right < *left ? 1 : 0;
}

std::optional<bool> in_version_range(const std::string& version, std::string_view range) {
  const auto comparisons = comparisons_of(range);
  if (!comparisons) return std::nullopt;
  for (const Comparison& one : *comparisons) {
    const std::optional<int> order = compare_versions(version, one.version);
    if (!order) return std::nullopt;
    if (!order_holds(one.verb, *order)) return false;
  }
  return true;
}

}  // namespace patchbench
