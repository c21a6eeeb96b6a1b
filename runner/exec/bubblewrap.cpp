#include "exec/bubblewrap.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "exec/gpu.h"
#include "exec/limited.h"
#include "exec/process.h"
#include "exec/spawn.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

constexpr int kStatusFd = 3;

/// /usr, the links or folders next to it that belong to it, and what the dynamic linker reads.
void add_system(Arguments& arguments) {
  append(arguments, {"--ro-bind", "/usr", "/usr"});
  for (const char* name : {"/bin", "/sbin", "/lib", "/lib32", "/lib64"}) {
    std::error_code ignored;
    if (fs::is_symlink(name, ignored)) {
      append(arguments, {"--symlink", fs::read_symlink(name).string(), name});
    } else if (fs::is_directory(name, ignored)) {
      append(arguments, {"--ro-bind", name, name});
    }
  }
  for (const char* name : {"/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system/cpu"}) {
    append(arguments, {"--ro-bind-try", name, name});
  }
}

/// Names for the subject's uid, which the host does not know (getpass.getuser asks for them).
void add_user_names(Arguments& arguments, const fs::path& folder) {
  std::ofstream(folder / "passwd")
      << "root:x:0:0::/nonexistent:/bin/false\npatchbench-runtime:x:" << kSubjectUid << ":"
      << kSubjectUid << "::/.pb/work/home:/bin/false\n";
  std::ofstream(folder / "group") << "root:x:0:\npatchbench-runtime:x:" << kSubjectUid << ":\n";
  append(arguments, {"--ro-bind", folder / "passwd", "/etc/passwd", "--ro-bind", folder / "group",
                     "/etc/group"});
}

void add_gpu(Arguments& arguments) {
  for (const fs::path& node : gpu_device_nodes()) append(arguments, {"--dev-bind", node, node});
  // CUDA and NCCL read the bus topology here.
  append(arguments, {"--ro-bind", "/sys", "/sys"});
}

/// Run by root, the subject's uid is root's outside: files of /proc/sys would be its own to write.
/// cuInit fails (304, driver 580) where /proc is read-only as a whole, so with a GPU what acts on
/// the machine is covered file by file, as OCI runtimes do.
void protect_proc(Arguments& arguments, bool wants_gpu) {
  if (!wants_gpu) return append(arguments, {"--remount-ro", "/proc"});
  for (const char* name : {"/proc/acpi", "/proc/asound", "/proc/bus", "/proc/driver", "/proc/fs",
                           "/proc/irq", "/proc/scsi", "/proc/sys", "/proc/sysrq-trigger"})
    append(arguments, {"--ro-bind-try", name, name});
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

Arguments bubblewrap_command(const SandboxSpec& spec, const EngineSettings& settings,
                             const std::string& bwrap) {
  Arguments arguments = {bwrap,
                         "--unshare-user",
                         "--unshare-ipc",
                         "--unshare-pid",
                         "--unshare-net",
                         "--unshare-uts",
                         "--unshare-cgroup-try",
                         "--die-with-parent",
                         "--new-session",
                         "--hostname",
                         "sandbox",
                         "--uid",
                         std::to_string(kSubjectUid),
                         "--gid",
                         std::to_string(kSubjectUid),
                         "--clearenv",
                         "--json-status-fd",
                         std::to_string(kStatusFd)};
  arguments.insert(arguments.end(), settings.options.begin(), settings.options.end());
  add_system(arguments);
  append(arguments, {"--proc", "/proc", "--dev", "/dev"});
  for (const char* scratch : {"/tmp", "/dev/shm"})
    append(arguments, {"--size", kScratchBytes, "--tmpfs", scratch});
  add_user_names(arguments, spec.report.parent_path());
  if (spec.wants_gpu) add_gpu(arguments);
  for (const fs::path& folder : interpreter_folders(spec.python))
    append(arguments, {"--ro-bind", folder, folder});
  for (const Mount& mount : spec.mounts) {
    append(arguments,
           {mount.is_writable ? "--bind" : "--ro-bind", fs::absolute(mount.host), mount.inside});
  }
  protect_proc(arguments, spec.wants_gpu);
  append(arguments, {"--remount-ro", "/dev", "--remount-ro", "/"});
  for (const auto& [name, value] : spec.env) append(arguments, {"--setenv", name, value});
  append(arguments, {"--chdir", spec.cwd, "--"});
  arguments.insert(arguments.end(), spec.argv.begin(), spec.argv.end());
  return arguments;
}

/// bwrap's account: a line {"exit-code": N} once the subject ran, nothing of the kind if it could
/// not be set up.
bool has_started(const std::string& status) {
  return status.find("\"exit-code\"") != std::string::npos;
}

std::string drained(const Fd& fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line.empty() ? "bwrap failed without a word" : shown(line);
}

}  // namespace

std::set<fs::path> interpreter_folders(const std::string& python) {
  if (python.empty() || is_below(python, "/usr") || is_below(python, "/bin")) return {};
  const Exit exit = run({.argv = {python, "-I", "-c",
                                  "import os, sys\nfor p in [sys.prefix, sys.base_prefix, "
                                  "os.path.dirname(os.path.dirname(os.path.realpath(sys."
                                  "executable)))] + sys.path: print(p)"}});
  if (!exit.ok())
    throw Error(ErrorCode::kNotRunnable, python + ": not an interpreter that runs here");
  const char* home = std::getenv("HOME");
  std::set<fs::path> folders;
  std::istringstream lines(exit.out);
  for (std::string line; std::getline(lines, line);) {
    std::error_code ignored;
    if (line.empty() || line == "/" || is_below("/usr", line) || is_below(line, "/usr")) continue;
    if (home != nullptr && is_below(home, line)) continue;
    if (fs::exists(line, ignored)) folders.insert(line);
  }
  return folders;
}

SandboxReport run_in_bubblewrap(const SandboxSpec& spec, const EngineSettings& settings) {
  const std::string bwrap = find_program("bwrap");
  if (bwrap.empty()) return engine_failure("bwrap: not found on PATH; install bubblewrap");
  if (!fs::exists(spec.argv.at(0)) && find_program(spec.argv[0]).empty()) {
    bool is_mounted = false;
    for (const Mount& mount : spec.mounts)
      is_mounted = is_mounted || is_below(spec.argv[0], mount.inside);
    if (!is_mounted) return engine_failure(spec.argv[0] + ": no such program inside the sandbox");
  }
  prepare_mounts(spec, Ownership::kKeep);
  SpawnRequest request{.argv = bubblewrap_command(spec, settings, bwrap),
                       .env = {"PATH=/usr/bin:/bin"}};
  Pipe status = make_pipe();
  request.extra_fd = status.write.get();
  request.extra_fd_in_child = kStatusFd;
  request.death_signal = SIGKILL;
  request.own_session = true;
  SandboxReport report = run_limited(spec, std::move(request));
  status.write.reset();
  if (report.engine_failed || report.timed_out || report.out_of_memory) return report;
  if (!has_started(drained(status.read)) && report.signal == 0)
    return engine_failure(first_line(spec.log));
  if (report.exit_code > 128) report.signal = report.exit_code - 128;
  return report;
}

}  // namespace patchbench::exec
