#pragma once
#include "exec/sandbox.h"

namespace patchbench::exec {

/// Runs a spec as a plain process, without isolation.
SandboxReport run_as_process(const SandboxSpec& spec);

}  // namespace patchbench::exec
