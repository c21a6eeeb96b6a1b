#pragma once
#include <map>
#include <string>
#include <vector>

#include "run/execute.h"

namespace patchbench {

/// Steps that run a fix with one small change of its own text each (core/fix_changes.h), subjects
/// `altered:<number>`, over the two cheapest cases of `patched` that ran the changed line.
struct AlteredSteps {
  std::vector<PlanStep> steps;
  std::map<std::string, std::string> what;  ///< number -> `path:line what`
};
AlteredSteps altered_steps(const Context& context, const Setup& setup, const RunPlan& plan,
                           const std::vector<Trial>& trials);

}  // namespace patchbench
