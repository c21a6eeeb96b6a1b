#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench::exec {

enum class SandboxKind { kPodman, kDocker, kRunc, kBubblewrap, kProcess };
/// The order in which they are tried, the strongest first. kRunc is none of them: it needs the
/// bundle of a staged folder (see find_bundle), and is tried before bubblewrap where one is there.
inline constexpr SandboxKind kSandboxKinds[] = {SandboxKind::kPodman, SandboxKind::kDocker,
                                                SandboxKind::kBubblewrap, SandboxKind::kProcess};
/// "podman", "docker", "runc", "bwrap", "process".
std::string sandbox_name(SandboxKind kind);
SandboxKind sandbox_from(const std::string& name);  ///< Error(kUsage) with did-you-mean
/// Whether what runs in it sees neither the network nor the user's files: all but kProcess.
bool is_isolated(SandboxKind kind);

struct Mount {
  std::filesystem::path host;
  std::string inside;
  bool is_writable = false;
};

/// Everything one sandboxed process needs; written as JSON beside the work folder and run by
/// `patchbench-sandbox SPEC`, the one program that starts, limits, watches and kills a subject.
struct SandboxSpec {
  SandboxKind kind = SandboxKind::kProcess;
  std::string image;                       ///< podman/docker: image id (digest), else ""
  std::string python;                      ///< interpreter inside
  std::vector<std::string> argv;           ///< what runs inside, paths as seen inside
  std::map<std::string, std::string> env;  ///< the whole environment inside
  std::vector<Mount> mounts;
  /// Below a folder that no machine has: a mount hides what lies at its place, and an interpreter
  /// of the user may lie anywhere.
  std::string cwd = "/.pb/work";
  bool wants_gpu = false;
  int64_t memory_bytes = 8ll << 30;
  int max_processes = 256;
  double timeout_s = 300;
  std::filesystem::path log;     ///< stdout and stderr of the subject (at most 8 MiB)
  std::filesystem::path report;  ///< SandboxReport as JSON, outside of every writable mount
  Json to_json() const;
  /// Throws Error(kUsage) on a missing, unknown or ill-typed key, a relative path, a limit <= 0 and
  /// a report or log inside a writable mount.
  static SandboxSpec from_json(const Json& json);
};

/// What the watcher saw.
struct SandboxReport {
  /// The subject's own. bwrap, podman and docker hand a signal down as 128 + number; it is named in
  /// `signal` then.
  int exit_code = -1, signal = 0;
  bool timed_out = false, out_of_memory = false, engine_failed = false;
  int64_t peak_bytes = 0;  ///< 0 where no outside meter exists
  std::string meter;       ///< "cgroup", "watchdog"
  std::string limits;      ///< "podman", "docker", "cgroup", "watchdog"
  double wall_s = 0;
  std::string error;  ///< one line: why the engine failed, or why the subject was killed
  Json to_json() const;
  static SandboxReport from_json(const Json& json);
};

/// Runs the spec to its end and writes log and report. Never throws for what the subject does.
/// Which options an engine takes here comes from its probe in $XDG_CACHE_HOME/patchbench. The plain
/// process has no mounts: words of argv, parts of env values (split at ':') and cwd that lie under
/// a mount's `inside` are rewritten to its `host`, the longest first.
SandboxReport run_sandboxed(const SandboxSpec& spec);

}  // namespace patchbench::exec
