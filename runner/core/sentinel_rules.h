#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/question.h"
#include "core/sentinel.h"

/// What the rules of several questions share (sentinel.h). Observations are folded: one for each
/// subject × case × seed.
namespace patchbench::rules {

using Keys = std::set<std::pair<std::string, uint64_t>>;  // cases and seeds
using Observations = std::vector<Observation>;

Outcome none(std::string why);
/// "upstream ragged: reason".
std::string named(const Observation& o);
Observations of_subject(const Observations& all, const Subject& subject);

/// What two subjects' outputs came to, case by case: how many are equal, and the first that is not.
struct Compared {
  int equal = 0;
  std::string differs, missing;
};
/// `subject` against `upstream` on its cases of some roles.
Compared compared(const Observations& upstream, const Observations& subject,
                  const std::set<CaseRole>& roles);

/// Whether every mutant of a kind, except region mutants, is red on at least one judged trigger,
/// or other than upstream on a case of `roles`, where outputs are compared. `is_partial`: whether
/// at least one is.
struct MutantCheck {
  std::size_t num = 0, num_red = 0;
  std::string failed;  ///< "" or the reason why not
};
MutantCheck mutants_hold(const Observations& observations, SubjectKind kind,
                         const Observations& upstream = {}, const std::set<CaseRole>& roles = {},
                         bool is_partial = false);
/// Whether every region mutant was caught: red on a case, or other than upstream on a case of
/// `roles`, where outputs are compared; "" or the first that was not.
std::string regions_hold(const Observations& observations, const QuestionContext& context,
                         const Observations& upstream = {}, const std::set<CaseRole>& roles = {});

/// Whether every changed line ran in a case; "" or those that did not.
std::string lines_hold(const Observations& observations, const QuestionContext& context);

/// Green where it must be: a subject on every case in `must`; "" or the first that is not.
struct GreenCheck {
  std::string red;         ///< a case that is present: a rejection
  std::string unanswered;  ///< a case that was not judged: no answer
};
GreenCheck green_on(const Observations& subject, const Keys& must);

/// A comparison of two subjects says something only where both were given the same inputs: "" or
/// the first case, of any subject that runs upstream code, in which they differ.
std::string inputs_differ(const Observations& upstream, const Observations& observations);

/// What is asked of an edit before anything else: upstream red, and `patched`, given the same
/// inputs, green on every case that upstream answered, but for triggers that it passed.
struct Edited {
  Observations upstream, patched;
  std::size_t num_green = 0;
  std::optional<Outcome> failed;  ///< the outcome where that does not hold
};
Edited edited(const Observations& observations, const QuestionContext& context);

/// What drawn cases leave of an outcome that the declared ones earned (sentinel.h).
Outcome explored(const Observations& observations, const QuestionContext& context, Outcome earned);
/// What drawn cases show by themselves: no sentinel; `why` counts them.
Outcome drawn(const Observations& observations, const QuestionContext& context);

/// The questions, one a file: sentinel_reproduce.cpp, sentinel_validate.cpp, ...
Outcome reproduced(const Observations& observations, const QuestionContext& context);
Outcome validated(const Observations& observations, const QuestionContext& context);
Outcome equivalent(const Observations& observations, const QuestionContext& context);
Outcome op_right(const Observations& observations, const QuestionContext& context);
Outcome mitigated(const Observations& observations, const QuestionContext& context);
Outcome memory_saved(const Observations& observations, const QuestionContext& context);
Outcome not_regressed(const Observations& observations, const QuestionContext& context);
Outcome claimed(const Observations& observations, const QuestionContext& context);

}  // namespace patchbench::rules
