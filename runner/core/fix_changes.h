#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// One small change of a fix's own text. A case that looks at that part of the fix sees it.
struct FixChange {
  std::string path;      ///< set by who knows it
  std::size_t line = 0;  ///< of the statement, from 1
  std::string what;      ///< "left out", "turned", "moved by one", "exchanged"
  std::string text;      ///< the whole file with the change
};

/// Changes of the statements of a Python file that lie on `lines`: a statement left out, a
/// condition turned, a whole number raised by one, two neighbouring arguments exchanged.
/// Definitions, imports and docstrings have none. In the order of the lines, and of the kinds
/// within a line. Throws Error(kUsage) for a text that is not Python's.
std::vector<FixChange> fix_changes(std::string_view source, const std::vector<std::size_t>& lines);

/// `most` of `all`, spread over lines first and over kinds second.
std::vector<FixChange> chosen_changes(const std::vector<FixChange>& all, std::size_t most);

}  // namespace patchbench
