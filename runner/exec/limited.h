#pragma once
#include "exec/sandbox.h"
#include "exec/spawn.h"

namespace patchbench::exec {

/// Runs a started-as-ours command under the spec's limits: a cgroup where one can be made, else a
/// watchdog that adds up the tree; the report says which. kWatchdog does not try the cgroup.
enum class LimitsBy { kBest, kWatchdog };
SandboxReport run_limited(const SandboxSpec& spec, SpawnRequest request,
                          LimitsBy by = LimitsBy::kBest);

}  // namespace patchbench::exec
