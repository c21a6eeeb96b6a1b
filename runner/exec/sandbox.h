#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench::exec {

enum class SandboxKind { kPodman, kDocker, kBubblewrap, kProcess };
std::string sandbox_name(SandboxKind kind);  ///< "podman", "docker", "bwrap", "process"
SandboxKind sandbox_from(const std::string& name);  ///< Error(kUsage) with did-you-mean

struct Mount {
  std::filesystem::path host;
  std::string inside;
  bool is_writable = false;
};

/// Everything one sandboxed process needs; written as JSON beside the work folder and run by
/// `patchbench-sandbox SPEC`, the one program that starts, limits, watches and kills a subject.
struct SandboxSpec {
  SandboxKind kind = SandboxKind::kProcess;
  std::string image;                        ///< podman/docker: image id (digest), else ""
  std::string python;                       ///< interpreter inside
  std::vector<std::string> argv;            ///< what runs inside, paths as seen inside
  std::map<std::string, std::string> env;   ///< the whole environment inside
  std::vector<Mount> mounts;
  std::string cwd = "/work";
  bool wants_gpu = false;
  int64_t memory_bytes = 8ll << 30;
  int max_processes = 256;
  double timeout_s = 300;
  std::filesystem::path log;                ///< stdout and stderr of the subject (capped)
  std::filesystem::path report;             ///< SandboxReport as JSON, outside of every writable mount
  Json to_json() const;
  static SandboxSpec from_json(const Json& json);
};

/// What the watcher saw.
struct SandboxReport {
  int exit_code = -1, signal = 0;
  bool timed_out = false, out_of_memory = false, engine_failed = false;
  int64_t peak_bytes = 0;      ///< 0 where no outside meter exists
  std::string meter;           ///< "cgroup", "watchdog"
  std::string limits;          ///< "podman", "cgroup", "watchdog"
  double wall_s = 0;
  std::string error;           ///< one line when engine_failed
  Json to_json() const;
  static SandboxReport from_json(const Json& json);
};

/// What one kind can do on this machine, found by trying it, not by asking for versions.
struct SandboxProbe {
  SandboxKind kind;
  bool usable = false;
  std::string detail;  ///< version and limits, or why not and how to get it
};
/// Tries one kind end to end (starts a trivial process in it). Cached per boot under `<cache>/probe`.
SandboxProbe probe_sandbox(SandboxKind kind, const std::filesystem::path& cache, const std::filesystem::path& root);

/// The strongest usable kind, or the forced one (Error(kNotRunnable) naming why and what to try). A fall-back is announced on stderr.
SandboxKind choose_sandbox(std::optional<SandboxKind> forced, const std::filesystem::path& cache,
                           const std::filesystem::path& root);

/// Builds (once) the base image from env/images/<name> by debootstrap and returns its engine id; records its tree digest.
/// Throws Error(kNotRunnable) if it cannot be built here.
struct BaseImage {
  std::string id, tree_digest, python, tag;  ///< tag: interpreter tag, "cp311"
};
BaseImage ensure_base_image(SandboxKind engine, const std::string& name, const std::filesystem::path& cache,
                            const std::filesystem::path& root);

/// Runs the spec to its end and writes log and report. Never throws for what the subject does.
SandboxReport run_sandboxed(const SandboxSpec& spec);

}  // namespace patchbench::exec
