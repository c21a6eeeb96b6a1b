#pragma once
#include <string>
#include <vector>

#include "run/trial.h"

namespace patchbench {

/// The options of a trial of `subject` in which cases are drawn: as many as were asked for, or as
/// the manifest says; none where cases or axes are named. What is asked goes into `question`.
RunOptions with_drawing(const Setup& setup, const RunOptions& options, const Subject& subject,
                        QuestionContext& question);
/// The same where nothing is drawn.
RunOptions without_drawing(RunOptions options);

/// The red drawn cases of the question's subject on another release: on the one that the pack calls
/// fixed (subject `fixed`), or without one on the release as it is. What is red there, too, is
/// another defect (core/sentinel.h).
std::vector<Trial> red_elsewhere(const Context& context, const Setup& setup,
                                 const RunOptions& options, const std::vector<Trial>& trials,
                                 const Subject& subject);

/// One line a space, then each smallest red case with the command that repeats it.
std::string drawn_text(const Setup& setup, const std::vector<Trial>& trials);

}  // namespace patchbench
