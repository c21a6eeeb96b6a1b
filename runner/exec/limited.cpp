#include <fmt/format.h>

#include <algorithm>

#include "exec/cgroup.h"
#include "exec/engine.h"

namespace patchbench::exec {

SandboxReport report_of(const SandboxSpec& spec, const Ending& ending) {
  SandboxReport report;
  report.exit_code = ending.exit_code;
  report.signal = ending.signal;
  report.timed_out = ending.timed_out;
  report.out_of_memory = ending.limit == Limit::kMemory;
  report.wall_s = ending.wall_s;
  report.error = ending.error;
  report.engine_failed = !ending.error.empty();
  if (ending.stopped_by != 0) {
    report.engine_failed = true;
    report.error = fmt::format("stopped by signal {}", ending.stopped_by);
  } else if (report.error.empty() && ending.timed_out) {
    report.error = fmt::format("killed after {} s", spec.timeout_s);
  } else if (report.error.empty() && ending.limit == Limit::kMemory) {
    report.error = fmt::format("went over {} MiB of memory", spec.memory_bytes >> 20);
  } else if (report.error.empty() && ending.limit == Limit::kProcesses) {
    report.error = fmt::format("killed with more than {} processes", spec.max_processes);
  }
  return report;
}

SandboxReport engine_failure(const std::string& error) {
  SandboxReport report;
  report.engine_failed = true;
  report.error = error;
  return report;
}

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
