#include "exec/container.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <sstream>

#include "core/error.h"
#include "exec/cgroup.h"
#include "exec/gpu.h"
#include "exec/process.h"
#include "exec/process_tree.h"
#include "exec/supervisor.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// Past our own limit: the engine's, for the case that we are killed and cannot keep ours.
constexpr double kEngineGrace = 30;

/// A container of ours: its name, and what its engine says of it.
class Container {
 public:
  Container(SandboxKind kind, const EngineSettings& settings)
      : kind_(kind),
        settings_(settings),
        name_(fmt::format("patchbench-{}-{:08x}", ::getpid(), std::random_device{}())) {}

  const std::string& name() const { return name_; }

  /// The container's first process as the host sees it; 0 before it runs.
  pid_t pid() const { return static_cast<pid_t>(std::atol(inspect("{{.State.Pid}}").c_str())); }

  std::string inspect(const std::string& format) const {
    return engine({"inspect", "--type", "container", "--format", format, name_}).out;
  }

  void kill() const { static_cast<void>(engine({"kill", "--signal", "KILL", name_})); }

  /// Kills and removes it with its volumes; a missing container is not a failure.
  void remove() const {
    Arguments arguments = {"rm", "--force", "--volumes"};
    // Podman gives ten seconds of grace, which a container without an init spends in full.
    if (kind_ == SandboxKind::kPodman) append(arguments, {"--time", "0"});
    arguments.push_back(name_);
    static_cast<void>(engine(arguments));
  }

 private:
  Exit engine(const Arguments& arguments) const { return run_engine(kind_, settings_, arguments); }

  SandboxKind kind_;
  EngineSettings settings_;
  std::string name_;
};

/// One bind mount in the engines' own comma-separated form.
std::string mount_word(const Mount& mount) {
  const std::string host = fs::absolute(mount.host).string();
  if (host.find_first_of(",\"\n") != std::string::npos) {
    throw Error(ErrorCode::kUsage,
                host + ": a path with a comma or quote cannot be mounted; use --sandbox bwrap");
  }
  return fmt::format("type=bind,source={},destination={}{}", host, mount.inside,
                     mount.is_writable ? "" : ",readonly");
}

void add_gpu(Arguments& arguments, SandboxKind kind) {
  if (has_gpu_cdi()) return append(arguments, {"--device", "nvidia.com/gpu=all"});
  if (kind == SandboxKind::kDocker && !find_program("nvidia-container-runtime").empty())
    return append(arguments, {"--gpus", "all"});
  for (const fs::path& node : gpu_device_nodes()) append(arguments, {"--device", node});
  for (const fs::path& library : gpu_driver_libraries())
    append(arguments,
           {"--mount", mount_word({library, fs::path(kDriverFolder) / library.filename(), false})});
  append(arguments, {"--env", fmt::format("{}={}", kDriverFolderVariable, kDriverFolder)});
}

void add_limits(Arguments& arguments, const SandboxSpec& spec, const EngineSettings& settings) {
  if (settings.limits_memory) {
    const std::string bytes = std::to_string(spec.memory_bytes);
    // The same figure: memory and swap together, so no swap.
    append(arguments, {"--memory", bytes, "--memory-swap", bytes});
  }
  if (settings.limits_processes)
    append(arguments, {"--pids-limit", std::to_string(spec.max_processes)});
  if (spec.kind == SandboxKind::kPodman) {
    append(arguments,
           {"--timeout",
            std::to_string(static_cast<int64_t>(std::ceil(spec.timeout_s + kEngineGrace)))});
  }
}

Arguments container_command(const SandboxSpec& spec, const EngineSettings& settings,
                            const std::string& name) {
  Arguments arguments = {find_program(sandbox_name(spec.kind))};
  arguments.insert(arguments.end(), settings.global.begin(), settings.global.end());
  append(arguments, {"run",
                     "--name",
                     name,
                     "--pull",
                     "never",
                     "--network",
                     "none",
                     "--read-only",
                     "--cap-drop",
                     "ALL",
                     "--security-opt",
                     "no-new-privileges",
                     "--log-driver",
                     "none",
                     "--ipc",
                     "private",
                     "--hostname",
                     "sandbox",
                     "--shm-size",
                     "64m",
                     "--tmpfs",
                     "/tmp:rw,size=64m,mode=1777,nosuid,nodev"});
  if (spec.kind == SandboxKind::kPodman) {
    // Podman alone hands the host's proxy variables in and makes more writable folders unless told
    // not to.
    append(arguments, {"--http-proxy=false", "--read-only-tmpfs=false", "--security-opt",
                       "label=disable", "--no-hosts"});
  }
  arguments.insert(arguments.end(), settings.options.begin(), settings.options.end());
  add_limits(arguments, spec, settings);
  if (spec.wants_gpu) add_gpu(arguments, spec.kind);
  for (const Mount& mount : spec.mounts) append(arguments, {"--mount", mount_word(mount)});
  for (const auto& [key, value] : spec.env) append(arguments, {"--env", key + "=" + value});
  append(arguments, {"--workdir", spec.cwd, "--entrypoint", spec.argv.at(0), spec.image});
  arguments.insert(arguments.end(), spec.argv.begin() + 1, spec.argv.end());
  return arguments;
}

/// Watches the container's group from outside; keeps the highest figures seen, since the group is
/// gone with it.
class Watch {
 public:
  Watch(const Container& container, const SandboxSpec& spec, const EngineSettings& settings)
      : container_(container), spec_(spec), settings_(settings) {}

  Limit look() {
    if (!find()) return Limit::kNone;
    if (view_) {
      const auto memory = view_->memory();
      if (memory) peak_bytes_ = std::max(peak_bytes_, memory->peak_bytes);
      if (memory && memory->has_killed) return Limit::kMemory;
    }
    if (view_ && settings_.limits_processes) return Limit::kNone;
    const TreeUsage now = usage_below(pid_);
    if (!view_) peak_bytes_ = std::max(peak_bytes_, now.memory_bytes);
    if (!settings_.limits_memory && now.memory_bytes > spec_.memory_bytes) return Limit::kMemory;
    return !settings_.limits_processes && now.num_processes > spec_.max_processes
               ? Limit::kProcesses
               : Limit::kNone;
  }

  int64_t peak_bytes() const { return peak_bytes_; }
  const char* meter() const { return view_ ? "cgroup" : "watchdog"; }

 private:
  /// Asks the engine for the container's first process; seldom, since each question starts a
  /// process.
  bool find() {
    const auto now = std::chrono::steady_clock::now();
    if (pid_ == 0 && now >= next_question_) {
      next_question_ = now + std::chrono::milliseconds(500);
      pid_ = container_.pid();
      if (pid_ > 0 && settings_.limits_memory) view_ = CgroupView::of(pid_);
    }
    return pid_ > 0;
  }

  const Container& container_;
  const SandboxSpec& spec_;
  const EngineSettings& settings_;
  std::chrono::steady_clock::time_point next_question_ =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  pid_t pid_ = 0;
  std::optional<CgroupView> view_;
  int64_t peak_bytes_ = 0;
};

/// The state the engine kept of an ended container.
void take_state(const Container& container, const SandboxSpec& spec, SandboxReport& report) {
  std::istringstream state(
      container.inspect("{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"));
  std::string status, oom;
  int code = -1;
  state >> status >> code >> oom;
  if (status != "exited" && status != "stopped") {
    report = engine_failure(fmt::format("{}: {}", sandbox_name(spec.kind), last_line(spec.log)));
    return;
  }
  report.exit_code = code;
  report.signal = code > 128 ? code - 128 : 0;
  report.out_of_memory = report.out_of_memory || oom == "true";
}

}  // namespace

SandboxReport run_in_container(const SandboxSpec& spec, const EngineSettings& settings) {
  const std::string name = sandbox_name(spec.kind);
  if (find_program(name).empty()) return engine_failure(name + ": not found on PATH");
  if (spec.image.empty()) return engine_failure(name + ": the spec names no image");
  prepare_mounts(spec, ::geteuid() == 0 ? Ownership::kToSubject : Ownership::kKeep);
  const Container container(spec.kind, settings);
  Watch limits(container, spec, settings);
  Supervision watch{.log = spec.log, .scope = KillScope::kChild};
  watch.child.argv = container_command(spec, settings, container.name());
  for (char** entry = ::environ; *entry != nullptr; ++entry) watch.child.env.emplace_back(*entry);
  // conmon leaves a file named `oom` in its working folder when a container goes over its memory.
  watch.child.cwd = spec.report.parent_path();
  watch.timeout = std::chrono::duration<double>(spec.timeout_s);
  watch.look = [&](const ProcessTree*) { return limits.look(); };
  watch.kill = [&] { container.kill(); };
  SandboxReport report = report_of(spec, supervise(watch));
  if (!report.engine_failed && !report.timed_out) take_state(container, spec, report);
  container.remove();
  report.peak_bytes = limits.peak_bytes();
  report.meter = limits.meter();
  report.limits = settings.limits_memory && settings.limits_processes ? name : "watchdog";
  if (report.out_of_memory && report.error.empty()) {
    report.error = fmt::format("went over {} MiB of memory", spec.memory_bytes >> 20);
  }
  return report;
}

}  // namespace patchbench::exec
