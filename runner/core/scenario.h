#pragma once
#include <string>
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
      "forked"};         // in a child of a process that has computed nothing
  return kNames;
}

}  // namespace patchbench
