#include "exec/engine.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "core/error.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// Hands everything in a folder to the subject's uid; links themselves, never what they point at.
void hand_over(const fs::path& folder) {
  std::error_code ignored;
  static_cast<void>(::lchown(folder.c_str(), kSubjectUid, kSubjectUid));
  for (fs::recursive_directory_iterator it(folder, ignored), end; it != end;
       it.increment(ignored)) {
    static_cast<void>(::lchown(it->path().c_str(), kSubjectUid, kSubjectUid));
  }
}

}  // namespace

std::string last_line(const fs::path& log) {
  const std::string text = run({.argv = {"tail", "-n", "1", log.string()}}).out;
  return text.empty() ? "no message" : shown(text.substr(0, text.find('\n')));
}

Json EngineSettings::to_json() const {
  return {{"global", global},
          {"options", options},
          {"limits_memory", limits_memory},
          {"limits_processes", limits_processes},
          {"version", version}};
}

EngineSettings EngineSettings::from_json(const Json& json) {
  return {json.at("global").get<Arguments>(), json.at("options").get<Arguments>(),
          json.at("limits_memory").get<bool>(), json.at("limits_processes").get<bool>(),
          json.at("version").get<std::string>()};
}

fs::path default_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "patchbench";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : "/nonexistent") / ".cache" / "patchbench";
}

Exit run_engine(SandboxKind kind, const EngineSettings& settings, const Arguments& arguments,
                std::chrono::seconds patience) {
  Arguments argv = {sandbox_name(kind)};
  argv.insert(argv.end(), settings.global.begin(), settings.global.end());
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run({.argv = argv, .timeout = patience});
}

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

void prepare_mounts(const SandboxSpec& spec, Ownership ownership) {
  for (const Mount& mount : spec.mounts) {
    if (!fs::exists(mount.host))
      throw Error(ErrorCode::kUsage,
                  mount.host.string() + ": not there; it was to be mounted as " + mount.inside);
    if (!mount.is_writable) continue;
    for (const char* name : {"HOME", "TMPDIR"}) {
      const auto found = spec.env.find(name);
      if (found == spec.env.end()) continue;
      const fs::path wanted = found->second;
      // mkdir takes a link at the last place for an existing file: what an earlier subject planted
      // there is not followed.
      if (wanted.parent_path() == mount.inside)
        ::mkdir((mount.host / wanted.filename()).c_str(), 0755);
    }
    if (ownership == Ownership::kToSubject) hand_over(mount.host);
  }
}

SandboxReport engine_failure(const std::string& error) {
  SandboxReport report;
  report.engine_failed = true;
  report.error = error;
  return report;
}

}  // namespace patchbench::exec
