#include "core/version_range.h"

#include <vector>

#include "core/release_index.h"

namespace patchbench {
namespace {

struct Comparison {
  std::string verb, version;
  std::string end;  ///< of a prefix: the first release after it; else ""
};

/// The first release after a prefix: "0.9" for "0.8". "" where the last part is not a number.
std::string after_prefix(const std::string& prefix) {
  const std::size_t part = prefix.rfind('.') + 1;
  const std::string last = prefix.substr(part);
  constexpr std::size_t kMaxDigits = 8;
  if (last.empty() || last.size() > kMaxDigits ||
      last.find_first_not_of("0123456789") != std::string::npos)
    return "";
  return prefix.substr(0, part) + std::to_string(std::stoi(last) + 1);
}

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
    const size_t length = one.find_first_not_of("<>=!~");
    if (length == std::string::npos || length == 0) return std::nullopt;
    Comparison comparison{one.substr(0, length), one.substr(length), ""};
    std::string& verb = comparison.verb;
    if (verb == "~=") {
      const size_t dot = comparison.version.rfind('.');
      if (dot == std::string::npos) return std::nullopt;
      const std::string prefix = comparison.version.substr(0, dot);
      found.push_back({"==", prefix, after_prefix(prefix)});
      if (found.back().end.empty()) return std::nullopt;
      verb = ">=";
    } else if (comparison.version.ends_with(".*") && (verb == "==" || verb == "!=")) {
      comparison.version.resize(comparison.version.size() - 2);
      comparison.end = after_prefix(comparison.version);
      if (comparison.end.empty()) return std::nullopt;
    }
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
    const bool is_in = one.end.empty() ? order_holds(one.verb, *order)
                                       : (*order >= 0 && compare_versions(version, one.end) < 0) ==
                                             (one.verb == "==");
    if (!is_in) return false;
  }
  return true;
}

}  // namespace patchbench
