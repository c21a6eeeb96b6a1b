#pragma once
#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/json.h"
#include "exec/process.h"
#include "exec/sandbox.h"
#include "exec/supervisor.h"

namespace patchbench::exec {

using Arguments = std::vector<std::string>;
inline void append(Arguments& arguments, std::initializer_list<std::string> more) {
  arguments.insert(arguments.end(), more);
}

/// The last line of a log, as a message shows it; "no message" of an empty one.
std::string last_line(const std::filesystem::path& log);

/// How much memory a subject's /tmp and /dev/shm may take, in bytes.
inline constexpr const char* kScratchBytes = "67108864";

/// The uid and gid of a subject inside podman, docker and bwrap; the base image knows them as
/// patchbench-runtime.
inline constexpr int kSubjectUid = 10001;

/// Which options one engine takes on this machine; found by the probe, read by run_sandboxed.
struct EngineSettings {
  std::vector<std::string> global;   ///< before the verb: {"--runtime", "runc"}
  std::vector<std::string> options;  ///< after it: ulimits, user mapping, --disable-userns
  bool limits_memory = false;        ///< --memory takes effect
  bool limits_processes = false;     ///< --pids-limit takes effect
  std::string version;
  Json to_json() const;
  static EngineSettings from_json(const Json& json);
};

/// $XDG_CACHE_HOME/patchbench, else ~/.cache/patchbench.
std::filesystem::path default_cache();

/// Runs podman or docker with the settings' global options before `words`.
Exit run_engine(SandboxKind kind, const EngineSettings& settings,
                const std::vector<std::string>& arguments,
                std::chrono::seconds patience = std::chrono::seconds(60));

/// The fields of a report that follow from how the watched child ended.
SandboxReport report_of(const SandboxSpec& spec, const Ending& ending);

/// Hands the writable folders of a spec to the subject's uid where root runs it, makes the folders
/// that HOME and TMPDIR name directly inside one, and follows no link that an earlier subject left.
/// Throws Error(kUsage) if a mount's host path is not there.
enum class Ownership { kKeep, kToSubject };
void prepare_mounts(const SandboxSpec& spec, Ownership ownership);

/// `report` when nothing more than "it did not work" is known: engine_failed and one line.
SandboxReport engine_failure(const std::string& error);

}  // namespace patchbench::exec
