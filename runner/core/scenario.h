#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// What a case is met in besides one call of a fresh process; repro/harness/scenarios.py runs each.
/// A pack's cases are in all of them but those that its manifest waives with a reason.
inline const std::vector<std::string>& scenarios() {
  static const std::vector<std::string> kNames = {
      "twice",           // the same call on other values before
      "after",           // after a case of other axes
      "two_live",        // two forwards before either backward
      "inputs_kept",     // every argument is afterwards as it was
      "frozen",          // one differentiable argument is frozen, or all but one
      "no_grad",         //
      "inference_mode",  //
      "from_op",         // arguments are results of an operator
      "adds_up",         // `.grad` is there before
      "raised_between",  // an exception between forward and backward, then a right call
      "checkpointed",    // in a non-reentrant checkpoint
      "threads",         // two threads at once
      "forked",          // in a child of a process that has computed nothing; on a CPU alone
      "autocast",        // the forward in autocast of the case's own half precision
      "compiled",        // as torch.compile traces it
      "copied",          // the subject's module is a copy, its values loaded from a file
      "tied",            // a parameter of the module has two names
      "evaluated",       // the module is evaluated before each forward of a training step
      "streams",         // on a stream that is kept busy first; on a GPU alone
      "captured"};       // captured in a CUDA graph over other values; on a GPU alone
  return kNames;
}

inline bool is_scenario_on(std::string_view scenario, std::string_view device_kind) {
  const bool is_of_gpu = scenario == "streams" || scenario == "captured";
  return device_kind == "cuda" ? scenario != "forked" : !is_of_gpu;
}

}  // namespace patchbench
