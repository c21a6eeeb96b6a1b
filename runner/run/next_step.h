#pragma once
#include <string>

#include "core/json.h"
#include "core/question.h"
#include "core/sentinel.h"
#include "run/setup.h"

namespace patchbench {

/// What a person reads after a verdict: one sentence on what it means, and the command that
/// follows. Each has two lines, "The fix holds: …\nnext: patchbench bundle SLUG\n".
std::string next_step(const Setup& setup, const QuestionContext& question, const Outcome& outcome);
/// The same of a window; `document` is WindowAnswer's.
std::string next_step_of_window(const Json& document);
/// The sentence and the command after `patch check`, `patch rebase`, `patch rebase --together` and
/// `sweep`, from the document that each prints with --json; for `patch check` from its `edits`: ""
/// where there is none.
std::string next_step_of_check(const Json& edits);
std::string next_step_of_rebase(const Json& document);
std::string next_step_of_together(const Json& groups);
std::string next_step_of_sweep(const Json& sweep);

}  // namespace patchbench
