#pragma once
#include <optional>
#include <vector>

#include "core/manifest.h"
#include "core/observation.h"
#include "core/question.h"

namespace patchbench {

/// The memory question that follows an `op` question, for the first case with a bound in the
/// manifest whose peak was measured.
std::optional<QuestionContext> memory_question(const Manifest& manifest, const QuestionContext& op,
                                               const std::vector<Observation>& observations);
/// Whether the edit costs no more than the manifest's ratios allow: the question that follows a
/// validation, where a case with such a bound was run.
std::optional<QuestionContext> regression_question(const Manifest& manifest,
                                                   const QuestionContext& validation,
                                                   const std::vector<Observation>& observations);

}  // namespace patchbench
