#pragma once
#include "workbench/context.h"

namespace patchbench::cli {

/// What is on this machine, what is missing with the one command that brings it, and which packs
/// can run how. Asked anew each time.
void doctor(const Context& context);

}  // namespace patchbench::cli
