#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/observation.h"
#include "core/question.h"

namespace patchbench {

/// What was expected of the bug in an observation.
enum class Expectation { kPresent, kAbsent, kNothing };
std::string expectation_name(Expectation expectation);

/// observation × expectation.
enum class Verdict {
  kReproduced,          ///< present, as expected
  kValidated,           ///< absent, as expected
  kUnexpectedlyAbsent,  ///< absent where present was expected: a finding, never a pass
  kNotFixed,            ///< present where absent was expected
  kObservedPresent,     ///< present, nothing expected
  kObservedAbsent,      ///< absent, nothing expected
  kUnjudged,
  kUnsupported,
  kUnresolved,
};
std::string verdict_name(Verdict verdict);
Verdict verdict_of(CaseStatus status, Expectation expectation);

/// The closed set of named outcomes.
enum class Sentinel {
  kBugReproduced,
  kBugAbsent,
  kFixValidated,
  kFixRejected,
  kOpValidated,
  kMitigationVerified,
  kMemorySaveVerified,
  kEquivalenceShown,
  kEquivalenceProved,
  kClaimConfirmed,
  kClaimRefuted,
  kNoRegression,
  kNotRun,
};
std::string sentinel_name(Sentinel sentinel);

/// Whether it is earned by being right on every case, so that some cases do not earn it:
/// FIX_VALIDATED, OP_VALIDATED, MITIGATION_VERIFIED and the two of an equivalence.
bool is_of_all_cases(Sentinel sentinel);

struct Outcome;
/// Whether it says that the bug is there, or that it is not.
bool is_of_bug(const Outcome& outcome);

/// A sentinel with its argument; `sentinel` is empty where none was earned, and `why` says why.
struct Outcome {
  std::optional<Sentinel> sentinel;
  std::string argument;  ///< failure class, mode of a mitigation, or the reason of NOT_RUN
  std::string why;       ///< one line: the deciding case, or what is missing
  std::string alias;     ///< upper-case alias of a second failure class: "REDUCTION_IGNORED"
  /// "BUG_REPRODUCED(wrong_gradients)", "NOT_RUN:no_gpu", or "NONE".
  std::string text() const;
  /// What text() spells: the sentinel and its argument; none of a text that this version does not
  /// know.
  static Outcome from_text(const std::string& text);
};

Expectation expectation_of(const Observation& observation, const QuestionContext& context);

/// The only place where a sentinel comes from. Pure; the same observations in any order give the
/// same outcome. kReproduce: contract 2. kValidate: every upstream-red trigger and every silent and
/// control case green on subject `patched`, given the same inputs (by digest), at least one
/// `mutant:*` subject, each of them red on at least one trigger. kOp / kMitigation: as kValidate
/// with `op` / `mitigated` in place of `patched` (op: mutants are `op_mutant:*`), on the cases that
/// it was given; a mitigation's `why` names the red triggers that it was not, and its argument is
/// the mode, where the subject names one: "MITIGATION_VERIFIED(dequantize)". Mixed repeats of
/// one subject × case × seed are unresolved (k/N in `why`). kClaim: confirmed where `subject` is as
/// claimed on every case and `contrast` is not on one of them; refuted where `subject` is otherwise
/// on a case on which `contrast` is as claimed: a check that could not have come out the other way
/// says nothing. Survey cases are part of no other sentinel. Code cases are compared, not judged:
/// kValidate wants the outputs of `patched` equal to upstream's there, and takes a mutant as caught
/// where its own are not. kEquivalence, the kValidate of a
/// refactor: as there, with every output of every silent and control case equal bit for bit between
/// `upstream` and `patched`, and a mutant caught by a red case or by an unequal output; shown, or
/// proved where there are code cases and their outputs are equal too. kRegression: `patched`, given
/// the same inputs, is green on every silent and control case on which upstream is, no number that
/// is bounded there is above its bound, and some mutant's is. Numbers are self-reported.
/// With `has_regions` each region mutant must be red on a case of any role that counts, or where
/// outputs are compared other than upstream's. With
/// `is_partial` regions that no named case is in are not asked for, and what the fix, op or
/// mitigation earns has the argument "named_cases", after a mode.
/// With `num_drawn` that is earned only where the subject was explored: every space to its end,
/// each case with an answer. A red one turns a fix down (FIX_REJECTED; of an op or a mitigation
/// nothing is earned), unless it is another defect: the subject `fixed`, the release without the
/// bug, is wrong there, too, or, where the pack calls none fixed, `upstream` is in a class that it
/// does not declare. With `is_few` the argument says "few_drawn".
/// With `has_lines` every line that the edits changed, but the waived ones, must have run in a case
/// of `patched`, drawn or declared; not asked with `is_partial`.
/// With `altered` the reason counts the small changes of the fix that no case saw.
/// With `program` a mitigation earns it only where that is wrong without the mitigation, and right
/// under `auto` and by name.
Outcome sentinel_of(const std::vector<Observation>& observations, const QuestionContext& context);

/// The small changes of the fix (`altered`) that no case of theirs saw: `path:line what`.
std::vector<std::string> unseen_changes(const std::vector<Observation>& observations,
                                        const QuestionContext& context);

}  // namespace patchbench
