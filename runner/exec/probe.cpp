#include "exec/probe.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/bubblewrap.h"
#include "exec/container.h"
#include "exec/process.h"
#include "exec/runc.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// Figures no machine has by chance: found again inside, they show that a limit took effect.
constexpr int64_t kProbeMemory = 387973120;
constexpr int kProbeProcesses = 61;

/// Changes whenever an old answer may be wrong: after a boot, for another user, with other
/// programs.
std::string fingerprint() {
  std::string text =
      file_text("/proc/sys/kernel/random/boot_id").value_or("") + std::to_string(::geteuid());
  for (const char* name : {"podman", "docker", "runc", "crun", "bwrap", "newuidmap"}) {
    const std::string path = find_program(name);
    struct stat info {};
    if (!path.empty() && ::stat(path.c_str(), &info) == 0)
      text += fmt::format("{} {}\n", path, info.st_mtim.tv_sec);
  }
  return sha256_hex(text);
}

/// A folder for one probe's files, gone afterwards.
class Scratch {
 public:
  explicit Scratch(const fs::path& cache) {
    fs::create_directories(cache / "probe");
    std::string pattern = (cache / "probe" / "try-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw Error(ErrorCode::kInternal, pattern + ": cannot be made");
    folder_ = pattern;
    fs::create_directories(folder_ / "work");
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

/// The smallest spec that shows that an engine works: a shell that writes into its work folder and
/// tells its limits.
SandboxSpec probe_spec(SandboxKind kind, const fs::path& folder) {
  SandboxSpec spec;
  spec.kind = kind;
  spec.argv = {"/usr/bin/sh", "-c",
               "echo works > probe && cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max "
               "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max "
               "2>/dev/null; test -s probe"};
  spec.env = {{"PATH", "/usr/bin:/bin"}};
  spec.mounts = {{folder / "work", spec.cwd, true}};
  spec.memory_bytes = kProbeMemory;
  spec.max_processes = kProbeProcesses;
  spec.timeout_s = 30;
  spec.log = folder / "log";
  spec.report = folder / "report.json";
  return spec;
}

/// "" if the spec ran well, else one line.
std::string failure_of(const SandboxReport& report, const fs::path& log) {
  if (report.engine_failed || report.timed_out) return report.error;
  if (report.exit_code == 0 && report.signal == 0) return "";
  const std::string text = file_text(log).value_or("");
  return fmt::format("a trivial command ended with {}: {}", report.exit_code,
                     shown(text.substr(0, text.find('\n'))));
}

/// An image of nothing but mount points and the links of a merged /usr; the host's /usr goes in by
/// mount.
std::string import_probe_image(SandboxKind kind, const fs::path& folder) {
  const fs::path tree = folder / "tree";
  for (const char* name : {"usr", ".pb/work", "proc", "sys", "dev", "etc", "tmp"})
    fs::create_directories(tree / name);
  for (const char* name : {"bin", "sbin", "lib", "lib64"}) {
    if (fs::exists(fs::path("/usr") / name))
      fs::create_symlink(fs::path("usr") / name, tree / name);
  }
  const fs::path tar = folder / "image.tar";
  const Exit packed = run({.argv = {"tar", "-C", tree.string(), "-cf", tar.string(), "."}});
  if (!packed.ok())
    throw Error(ErrorCode::kNotRunnable, "tar: " + shown(packed.error + packed.err));
  const Exit imported =
      run_engine(kind, {}, {"import", tar.string(), "localhost/patchbench-probe:latest"});
  if (!imported.ok()) {
    const std::string text = imported.error + imported.err;
    throw Error(ErrorCode::kNotRunnable, fmt::format("{} import: {}", sandbox_name(kind),
                                                     shown(text.substr(0, text.find('\n')))));
  }
  const auto end = imported.out.find_last_not_of('\n');
  const auto begin = imported.out.find_last_of('\n', end);
  return imported.out.substr(begin == std::string::npos ? 0 : begin + 1,
                             end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

/// Ways to give the subject a uid that is not root; the work folder must be writable by it.
std::vector<Arguments> user_choices(SandboxKind kind) {
  const std::string subject = fmt::format("{0}:{0}", kSubjectUid);
  const std::string own = fmt::format("{}:{}", ::geteuid(), ::getegid());
  if (::geteuid() == 0) return {{"--user", subject}};
  if (kind == SandboxKind::kDocker) return {{"--user", own}};
  return {{"--userns", fmt::format("keep-id:uid={0},gid={0}", kSubjectUid), "--user", subject},
          {"--userns", "keep-id", "--user", own}};
}

/// Limits at or under our own: engines raise them by default, which not every machine allows.
Arguments lowered_ulimits() {
  Arguments arguments;
  for (const auto& [name, which] :
       {std::pair<const char*, __rlimit_resource>{"nofile", RLIMIT_NOFILE},
        {"nproc", RLIMIT_NPROC}}) {
    rlimit own{};
    ::getrlimit(which, &own);
    const auto value = std::min<rlim_t>(own.rlim_max, 4096);
    arguments.insert(arguments.end(), {"--ulimit", fmt::format("{0}={1}:{1}", name, value)});
  }
  return arguments;
}

std::vector<Arguments> runtime_choices(SandboxKind kind) {
  std::vector<Arguments> choices = {{}};
  for (const char* name : {"runc", "crun"}) {
    if (kind == SandboxKind::kPodman && !find_program(name).empty())
      choices.push_back({"--runtime", name});
  }
  return choices;
}

/// Turns on each limit that the engine takes and that is found again inside.
void find_limits(SandboxSpec& spec, EngineSettings& settings) {
  for (bool EngineSettings::*limit :
       {&EngineSettings::limits_memory, &EngineSettings::limits_processes}) {
    settings.*limit = true;
    const SandboxReport report = run_in_container(spec, settings);
    const std::string figure = std::to_string(
        limit == &EngineSettings::limits_memory ? kProbeMemory : int64_t{kProbeProcesses});
    const bool took_effect =
        failure_of(report, spec.log).empty() &&
        ("\n" + file_text(spec.log).value_or("")).find("\n" + figure + "\n") != std::string::npos;
    settings.*limit = took_effect;
  }
}

FoundEngine try_container(SandboxKind kind, const fs::path& cache) {
  const std::string name = sandbox_name(kind);
  if (find_program(name).empty())
    return {{},
            fmt::format("not installed; apt-get install {}",
                        kind == SandboxKind::kPodman ? "podman runc" : "docker.io")};
  const Exit exit =
      run({.argv = kind == SandboxKind::kPodman
                       ? Arguments{"podman", "version", "--format", "{{.Client.Version}}"}
                       : Arguments{"docker", "version", "--format", "{{.Server.Version}}"},
           .timeout = std::chrono::seconds(20)});
  if (!exit.ok())
    return {{},
            fmt::format("{} does not answer: {}", name,
                        shown(exit.err.substr(0, exit.err.find('\n'))))};
  const Scratch scratch(cache);
  SandboxSpec spec = probe_spec(kind, scratch.folder());
  spec.mounts.push_back({"/usr", "/usr", false});
  FoundEngine found;
  spec.image = import_probe_image(kind, scratch.folder());
  for (const Arguments& runtime : runtime_choices(kind)) {
    for (const Arguments& user : user_choices(kind)) {
      for (const Arguments& ulimits : {lowered_ulimits(), Arguments{}}) {
        EngineSettings settings{.global = runtime, .options = user};
        settings.options.insert(settings.options.end(), ulimits.begin(), ulimits.end());
        found.failure = failure_of(run_in_container(spec, settings), spec.log);
        if (!found.failure.empty()) continue;
        find_limits(spec, settings);
        settings.version = exit.out.substr(0, exit.out.find('\n'));
        static_cast<void>(run_engine(kind, {}, {"rmi", "--force", spec.image}));
        return {settings, ""};
      }
    }
  }
  static_cast<void>(run_engine(kind, {}, {"rmi", "--force", spec.image}));
  return found;
}

FoundEngine try_bubblewrap(const fs::path& cache) {
  if (find_program("bwrap").empty()) return {{}, "not installed; apt-get install bubblewrap"};
  const Scratch scratch(cache);
  const SandboxSpec spec = probe_spec(SandboxKind::kBubblewrap, scratch.folder());
  FoundEngine found;
  for (const Arguments& options : {Arguments{"--disable-userns"}, Arguments{}}) {
    EngineSettings settings{.options = options};
    const SandboxReport report = run_in_bubblewrap(spec, settings);
    found.failure = failure_of(report, spec.log);
    if (!found.failure.empty()) continue;
    settings.limits_memory = settings.limits_processes = report.limits == "cgroup";
    const std::string version = run({.argv = {"bwrap", "--version"}}).out;
    settings.version =
        version.substr(version.rfind(' ') + 1, version.find('\n') - version.rfind(' ') - 1);
    return {settings, ""};
  }
  return found;
}

FoundEngine try_engine(SandboxKind kind, const fs::path& cache) {
  try {
    return kind == SandboxKind::kBubblewrap ? try_bubblewrap(cache) : try_container(kind, cache);
  } catch (const Error& e) {
    return {{}, e.what()};
  }
}

fs::path kept_answer(SandboxKind kind, const fs::path& cache) {
  return cache / "probe" / (sandbox_name(kind) + ".json");
}

}  // namespace

FoundEngine found_engine(SandboxKind kind, const fs::path& cache) {
  const fs::path file = kept_answer(kind, cache);
  const std::string mark = fingerprint();
  if (fs::exists(file)) {
    const Json kept = Json::parse(file_text(file).value_or(""), nullptr, false);
    if (kept.is_object() && kept.value("fingerprint", "") == mark) {
      return {EngineSettings::from_json(kept.at("settings")),
              kept.at("failure").get<std::string>()};
    }
  }
  const FoundEngine found = try_engine(kind, cache);
  fs::create_directories(file.parent_path());
  const fs::path part = file.string() + fmt::format(".{}", ::getpid());
  std::ofstream(part) << Json{
      {"fingerprint", mark},
      {"settings", found.settings.to_json()},
      {"failure",
       found.failure}}.dump();
  fs::rename(part, file);
  return found;
}

void forget_probes(const fs::path& cache) {
  for (const SandboxKind kind : kSandboxKinds) fs::remove(kept_answer(kind, cache));
}

SandboxProbe probe_bundle(const std::string& python, const fs::path& cache) {
  constexpr SandboxKind kKind = SandboxKind::kRunc;
  const Scratch scratch(cache);
  SandboxSpec spec = probe_spec(kKind, scratch.folder());
  std::string failure = failure_of(run_in_runc(spec), spec.log);
  if (failure.empty() && !python.empty()) {
    const SandboxSpec limits;  // as for a subject: torch needs more than a shell
    spec.memory_bytes = limits.memory_bytes;
    spec.max_processes = limits.max_processes;
    spec.timeout_s = limits.timeout_s;
    spec.python = python;
    spec.argv = {python, "-c",
                 "import sys\ntry:\n  import torch\nexcept BaseException as e:\n"
                 "  sys.exit(f'{type(e).__name__}: {e}')"};
    failure = failure_of(run_in_runc(spec), spec.log);
    if (!failure.empty()) failure = python + " does not import torch in the bundle: " + failure;
  }
  const std::string version = run({.argv = {"runc", "--version"}}).out;
  return {kKind, failure.empty(),
          failure.empty() ? shown(version.substr(0, version.find('\n'))) : failure};
}

EngineSettings engine_settings(SandboxKind kind, const fs::path& cache) {
  const FoundEngine found = found_engine(kind, cache);
  if (!found.failure.empty())
    throw Error(ErrorCode::kNotRunnable, sandbox_name(kind) + ": " + found.failure);
  return found.settings;
}

}  // namespace patchbench::exec
