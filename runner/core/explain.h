#pragma once
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench {

/// One input that was judged.
struct JudgedInput {
  std::string name;
  Json axes;
  bool is_red = false;
};

/// What separates the red inputs from the green ones, by their axes.
struct Explanation {
  /// A decision list, of which the first rule that holds decides: {"red where num_groups <
  /// num_heads and num_groups > 1", "green"}. Empty where none of at most kMaxRules was found.
  std::vector<std::string> rules;
  int num_red = 0, num_green = 0;
  /// The two inputs, one of each kind, whose axes differ least, and those axes with both values:
  /// "num_groups (2, 8)".
  std::string red, green;
  std::vector<std::string> differ;
};

constexpr std::size_t kMaxRules = 4;

/// Terms compare an axis with a value that occurs or with another axis, or say whether a power of
/// two or another axis divides it. One condition of a term, or of two joined by "and" or "or", is
/// looked for first: one with fewer terms and fewer axes, then one without numbers of its own, then
/// the first by its text. Where none separates them, each rule is the term that decides most inputs
/// of those that are left. An axis that an input lacks satisfies no term about it. It states what
/// the inputs seen have in common; other conditions may separate them as well.
Explanation explain(const std::vector<JudgedInput>& inputs);

}  // namespace patchbench
