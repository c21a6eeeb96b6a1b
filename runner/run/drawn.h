#pragma once
#include <string>
#include <vector>

#include "run/execute.h"

namespace patchbench {

/// One line a space, the scenarios and the changed lines that were looked at, then each smallest
/// red case with the command that repeats it.
std::string drawn_text(const Setup& setup, const std::vector<Trial>& trials);

}  // namespace patchbench
