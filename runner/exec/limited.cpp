#include "exec/limited.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "exec/cgroup.h"
#include "exec/engine.h"
#include "exec/process_tree.h"
#include "exec/supervisor.h"

namespace patchbench::exec {

SandboxReport run_limited(const SandboxSpec& spec, SpawnRequest request, LimitsBy by) {
  const std::optional<Cgroup> group =
      by == LimitsBy::kBest ? Cgroup::create(spec.memory_bytes, spec.max_processes) : std::nullopt;
  TreeUsage peak;
  Supervision watch{.child = std::move(request), .log = spec.log};
  watch.timeout = std::chrono::duration<double>(spec.timeout_s);
  if (group) {
    watch.child.cgroup_procs = group->procs();
    watch.look = [&](const ProcessTree*) {
      return group->memory().has_killed ? Limit::kMemory : Limit::kNone;
    };
    watch.kill = [&] { group->kill_members(); };
  } else {
    watch.look = [&](const ProcessTree* tree) {
      const TreeUsage now = tree->usage();
      peak.memory_bytes = std::max(peak.memory_bytes, now.memory_bytes);
      if (now.memory_bytes > spec.memory_bytes) return Limit::kMemory;
      return now.num_processes > spec.max_processes ? Limit::kProcesses : Limit::kNone;
    };
  }
  SandboxReport report = report_of(spec, supervise(watch));
  report.peak_bytes = group ? group->memory().peak_bytes : peak.memory_bytes;
  report.meter = report.limits = group ? "cgroup" : "watchdog";
  return report;
}

}  // namespace patchbench::exec
