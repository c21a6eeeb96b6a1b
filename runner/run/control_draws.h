#pragma once
#include <functional>

#include "run/questions.h"

namespace patchbench {

/// One run of drawn cases for a subject that is right.
struct ControlDraw {
  std::string slug, version;  ///< of the release; empty for an op
  Subject subject = SubjectKind::kOther;
  Setup setup;
  Answer answer;
};

/// Draws cases for what is right: the pack's op, and the release that it calls fixed or, without
/// one, the red pin with its edits; for the seeds of `request`, ten a run, each recorded. A run of
/// this manifest without a red case that the ledger has is not made again. A red case is a false
/// alarm, or a defect that nobody knew.
void draw_controls(const Context& context, RunRequest request,
                   const std::function<void(const ControlDraw&)>& take);

}  // namespace patchbench
