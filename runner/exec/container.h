#pragma once
#include "exec/engine.h"
#include "exec/sandbox.h"

namespace patchbench::exec {

/// Runs a spec by podman or docker, whichever it names. `settings` come from the probe.
SandboxReport run_in_container(const SandboxSpec& spec, const EngineSettings& settings);

}  // namespace patchbench::exec
