#pragma once
#include <string>
#include <vector>

#include "run/execute.h"

namespace patchbench {

/// One line a space, then each smallest red case with the command that repeats it.
std::string drawn_text(const Setup& setup, const std::vector<Trial>& trials);

}  // namespace patchbench
