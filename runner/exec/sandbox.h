#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
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
  std::string cwd = "/work";
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

/// What one kind can do on this machine, found by trying it, not by asking for versions.
struct SandboxProbe {
  SandboxKind kind;
  bool usable = false;
  std::string detail;  ///< version and limits, or why not and how to get it
};
/// Tries one kind end to end (starts a trivial process in it). Cached per boot under
/// `<cache>/probe`; only what worked is remembered.
SandboxProbe probe_sandbox(SandboxKind kind, const std::filesystem::path& cache,
                           const std::filesystem::path& root);

/// The strongest usable kind, or the forced one (Error(kNotRunnable) naming why and what to try). A
/// fall-back is announced on stderr.
SandboxKind choose_sandbox(std::optional<SandboxKind> forced, const std::filesystem::path& cache,
                           const std::filesystem::path& root);

/// Builds (once) the base image from env/images/<name> by debootstrap and returns its engine id;
/// records its tree digest. Throws Error(kNotRunnable) if it cannot be built here.
struct BaseImage {
  std::string id, tree_digest, python, tag;  ///< tag: interpreter tag, "cp311"
};
BaseImage ensure_base_image(SandboxKind engine, const std::string& name,
                            const std::filesystem::path& cache, const std::filesystem::path& root);
/// The same if it is there already; nullopt instead of building it.
std::optional<BaseImage> find_base_image(SandboxKind engine, const std::string& name,
                                         const std::filesystem::path& cache,
                                         const std::filesystem::path& root);

/// Writes a base image's file system as a tar, with its owners. Throws Error(kNotRunnable) with the
/// engine's own line.
void export_base_image(SandboxKind engine, const BaseImage& image, const std::filesystem::path& tar,
                       const std::filesystem::path& cache);

/// A base image's file system as a staged folder carries it, for runc without an engine above it.
struct Bundle {
  std::filesystem::path rootfs;
  std::string tree_digest, python, tag;
};
/// <cache>/bundle: image.json and the unpacked rootfs; nullopt unless both are there.
std::optional<Bundle> find_bundle(const std::filesystem::path& cache);
/// Whether `python`, an interpreter of this machine, imports torch inside of the bundle: its own
/// folders are mounted, its system libraries are the bundle's. Not cached.
SandboxProbe probe_bundle(const std::string& python, const std::filesystem::path& cache);

/// Runs the spec to its end and writes log and report. Never throws for what the subject does.
/// Which options an engine takes here comes from its probe in $XDG_CACHE_HOME/patchbench. The plain
/// process has no mounts: words of argv, parts of env values (split at ':') and cwd that lie under
/// a mount's `inside` are rewritten to its `host`, the longest first.
SandboxReport run_sandboxed(const SandboxSpec& spec);

}  // namespace patchbench::exec
