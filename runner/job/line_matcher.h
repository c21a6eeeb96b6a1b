#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench::job {

/// One pattern to look for within a line.
struct LinePattern {
  std::string text;
  bool is_regex = false;
  std::string name;  ///< for the message if it is refused
  /// What a regex says slowly, of a match: false if it is none. Given the line up to the match's
  /// end, and what follows in the block. May be null.
  bool (*is_meant)(std::string_view before, std::string_view after) = nullptr;
};

/// Finds the lines of a block of text on which at least one of many patterns matches, in one pass
/// (vectorscan). A match never spans lines. Not thread-safe.
class LineMatcher {
 public:
  /// Throws Error(kUsage) naming a pattern that cannot be compiled or that an empty line matches.
  explicit LineMatcher(const std::vector<LinePattern>& patterns);
  ~LineMatcher();
  LineMatcher(const LineMatcher&) = delete;
  LineMatcher& operator=(const LineMatcher&) = delete;

  /// A line on which something matched.
  struct Hit {
    std::size_t begin = 0, end = 0;  ///< in the block, without its line feed
    std::span<const unsigned> ids;   ///< of the patterns that match, ascending
  };
  /// Calls `on_hit` for each such line, in order. A last line without a line feed is a line.
  void scan(std::string_view block, const std::function<void(const Hit&)>& on_hit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// How many line feeds a text holds.
int64_t count_lines(std::string_view text);

}  // namespace patchbench::job
