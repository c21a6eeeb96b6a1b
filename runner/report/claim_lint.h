#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/record.h"
#include "report/numerals.h"

namespace patchbench::report {

/// One number that a record states itself.
struct Quantity {
  double value = 0;
  Measurand measurand = Measurand::kPlain;
};

/// The numbers that a record states: of an observation its measures (error, plain error, limit),
/// its times, peaks and counts; of a verdict its bytes and the numbers of its one-line reason; of a
/// window or a measurement all numbers of its body. Not what a record cites, nor its seed, digests,
/// machine and versions.
std::vector<Quantity> quantities_of(const Record& record);

/// Whether one of `held` rounds to the number as it is written. A value that is not a whole number
/// must be written with two significant digits or more.
bool is_held(const Numeral& numeral, const std::vector<Quantity>& held);

/// The record whose digest begins with a text, or null; throws Error(kUsage) if several do.
using FindRecord = std::function<const Record*(std::string_view digest)>;

/// One number that nothing holds, or one citation that names nothing.
struct ClaimProblem {
  int line = 0;      ///< 1-based
  std::string what;  ///< the number or the citation as written
  std::string todo;  ///< what is wrong and what to do
};

/// What `ledger lint --help` says of the rule.
std::string claim_rule();

/// Checks a Markdown text by that rule.
std::vector<ClaimProblem> lint_claims(std::string_view markdown, const FindRecord& find);

/// The text with every number that none of `held` states replaced by "…".
std::string without_unheld(std::string_view text, const std::vector<Quantity>& held);

}  // namespace patchbench::report
