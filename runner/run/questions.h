#pragma once
#include "core/further_question.h"
#include "run/checkouts.h"
#include "run/execute.h"

namespace patchbench {

/// The pack's edits at the pin of a target. Throws Error(kUsage) without a pin.
Series edits_at(const Context& context, const RunTarget& target);

/// Each plans its question (core/run_plan.h) for the edits at the pin, and runs the plan.
Answer reproduce(const Context& context, const Setup& setup, const RunRequest& request);
Answer validate(const Context& context, const Setup& setup, const Series& series,
                const CaseChoice& choice);
Answer test_claim(const Context& context, const Setup& setup, const ClaimTest& test,
                  const CaseChoice& choice);
Answer draw_alone(const Context& context, const Setup& setup, const Subject& subject,
                  const CaseChoice& choice);

}  // namespace patchbench
