#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace patchbench {

/// Whether `range` is a range: comparisons (==, !=, >=, <=, >, <, ~=) with final or post releases,
/// joined by commas; == and != take a prefix ("==0.8.*"), too.
bool is_version_range(std::string_view range);

/// Whether a version lies in a range. nullopt where it cannot be said: the version is not a final
/// or post release (core/release_index.h), or the range is none.
std::optional<bool> in_version_range(const std::string& version, std::string_view range);

/// Less than 0, 0 or more than 0, in the order of PEP 440; nullopt where one of the two is not a
/// final or post release.
std::optional<int> compare_versions(const std::string& a, const std::string& b);

}  // namespace patchbench
