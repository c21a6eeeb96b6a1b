#pragma once
#include <fmt/format.h>

#include <array>
#include <compare>
#include <string>
#include <string_view>
#include <utility>

namespace patchbench {

/// The state of a bug in one release, as far as it was measured.
enum class BugStatus {
  kAbsent,
  kPresent,
  kUnsupported,  ///< the release has no such code: measured, and neither good nor bad
  kUnresolved,   ///< its run gave no answer
  kNotMeasured,
};

/// The same by its word: "absent", "unsupported", "unresolved", "not_measured", or the failure
/// class that is present. Implicit from text: records and pages hold words.
class BugState {
 public:
  BugState(std::string word) : word_(std::move(word)), status_(status_of(word_)) {}
  BugState(const char* word) : BugState(std::string(word)) {}
  BugState(BugStatus status) : BugState(std::string(kWords.at(static_cast<std::size_t>(status)))) {}

  BugStatus status() const { return status_; }
  const std::string& text() const { return word_; }
  /// Present only: the failure class.
  const std::string& failure_class() const { return word_; }
  /// Whether nothing is known of the release.
  bool is_open() const {
    return status_ == BugStatus::kUnresolved || status_ == BugStatus::kNotMeasured;
  }

  friend auto operator<=>(const BugState& a, const BugState& b) { return a.word_ <=> b.word_; }
  friend bool operator==(const BugState& a, const BugState& b) { return a.word_ == b.word_; }

 private:
  static constexpr std::array<std::string_view, 5> kWords = {"absent", "", "unsupported",
                                                             "unresolved", "not_measured"};
  static BugStatus status_of(std::string_view word) {
    for (std::size_t i = 0; i < kWords.size(); ++i) {
      if (!word.empty() && word == kWords[i]) return static_cast<BugStatus>(i);
    }
    return BugStatus::kPresent;
  }
  std::string word_;
  BugStatus status_;
};

inline bool operator==(const BugState& state, BugStatus status) { return state.status() == status; }

}  // namespace patchbench

template <>
struct fmt::formatter<patchbench::BugState> : fmt::formatter<std::string_view> {
  auto format(const patchbench::BugState& state, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(state.text(), context);
  }
};
