#pragma once
#include <string>
#include <vector>

#include "core/json.h"
#include "core/sentinel.h"
#include "report/table.h"
#include "run/execute.h"

namespace patchbench {

/// `patchbench <version> (<upstream version> …)` lines and the case table of a run, for people.
std::string render_trials(const Setup& setup, const std::vector<Trial>& trials,
                          const QuestionContext& question, const Outcome& outcome,
                          const report::Style& style);
/// The same as one JSON document.
Json trials_json(const Setup& setup, const std::vector<Trial>& trials,
                 const QuestionContext& question, const Outcome& outcome,
                 const std::string& digest);

}  // namespace patchbench
