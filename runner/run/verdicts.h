#pragma once
#include <string>

#include "run/checkouts.h"
#include "run/trial.h"

namespace patchbench {

/// One question answered: its trials, what it came to, and the verdict record.
struct Answer {
  std::vector<Trial> trials;
  QuestionContext question;
  Outcome outcome;
  std::string digest;
};

/// Runs the judge's mutants and a lying subject on this machine (once per build and sandbox;
/// remembered in the cache). Throws Error(kIntegrity) naming the mutant that passed: no sentinel is
/// issued while that holds.
void ensure_selftest(const Context& context, const Setup& setup);

/// One pin, one subject: trials, outcome, ledger.
Answer reproduce(const Context& context, const Setup& setup, const RunOptions& options);

/// The cases that are drawn for a subject, by themselves; recorded, and nothing is earned.
Answer draw_alone(const Context& context, const Setup& setup, const RunOptions& options,
                  const Subject& subject);

/// Records what separates the red cases of an answer from its green ones; returns the digest.
std::string record_explained(const Context& context, const Answer& answer, const Json& explained);

/// The memory question that follows an `op` question, for the first case with a bound in the
/// manifest whose peak was measured.
std::optional<QuestionContext> memory_question(const Manifest& manifest, const QuestionContext& op,
                                               const std::vector<Observation>& seen);
/// Whether the edit costs no more than the manifest's ratios allow: the question that follows a
/// validation, where a case with such a bound was run.
std::optional<QuestionContext> regression_question(const Manifest& manifest,
                                                   const QuestionContext& validation,
                                                   const std::vector<Observation>& seen);
/// The question that follows `answer` (memory, regression), asked of its observations; the verdict
/// is recorded. nullopt where the manifest bounds nothing that was run.
std::optional<Answer> further_answer(const Context& context, const Answer& answer,
                                     const std::optional<QuestionContext>& asked);

/// What `validate` asks of a pack: whether the fix holds, of a refactor whether it is equivalent.
Question validation_of(const Manifest& manifest);

/// Upstream red, `edits` green, every mutant edit of the pack red, on one set of inputs.
Answer validate(const Context& context, const Setup& setup, const RunOptions& options,
                const std::vector<Edit>& edits, const std::vector<Edit>& mutants);

/// One tested claim: the subject it speaks of and its contrast, over the row's cases.
Answer test_claim(const Context& context, const Setup& setup, const RunOptions& options,
                  const ClaimTest& test);

/// The pack's edits at the pin of a setup. Throws Error(kUsage) without a pin.
PackEdits pack_edits_at(const Context& context, const Setup& setup);

}  // namespace patchbench
