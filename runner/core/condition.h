#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace patchbench {

/// A condition over the axes of a case and the properties of its inputs, in the words of
/// core/explain.h:
///
///   X is given · X is WORD · X is not WORD · X · not X (true or false)
///   X == Y, X != Y, X < Y, X > Y   Y is a number or another axis
///   Y divides X · Y does not divide X
///
/// joined by "and", and such conjunctions by "or". A term about an axis that is not there does not
/// hold.
class Condition {
 public:
  /// Throws Error(kUsage) that names the term that is none.
  explicit Condition(std::string_view text);
  bool holds(const Json& axes) const;
  const std::string& text() const { return text_; }

 private:
  struct Term {
    std::string left, verb, right;
    bool holds(const Json& axes) const;
  };
  static Term term_of(const std::string& text);
  std::string text_;
  std::vector<std::vector<Term>> any_of_;  ///< each: all of its terms
};

/// Which side of a decision list (core/explain.h) the axes are on: true is red. Throws
/// Error(kUsage) for a list without a last rule "red" or "green".
bool is_red_by(const std::vector<std::string>& rules, const Json& axes);

}  // namespace patchbench
