#include "exec/runc.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>

#include "core/file_text.h"
#include "exec/bubblewrap.h"
#include "exec/cgroup.h"
#include "exec/engine.h"
#include "exec/gpu.h"
#include "exec/process.h"
#include "exec/process_tree.h"
#include "exec/supervisor.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

Json bind_mount(const fs::path& host, const std::string& inside, bool is_writable = false) {
  return {{"destination", inside},
          {"type", "bind"},
          {"source", fs::absolute(host).string()},
          {"options", {"bind", is_writable ? "rw" : "ro", "nosuid", "nodev"}}};
}

Json memory_mount(const char* inside, const Arguments& options) {
  return {{"destination", inside}, {"type", "tmpfs"}, {"source", "tmpfs"}, {"options", options}};
}

Json mounts_of(const SandboxSpec& spec) {
  const std::string size = std::string("size=") + kScratchBytes;
  Json mounts = {{{"destination", "/proc"}, {"type", "proc"}, {"source", "proc"}},
                 memory_mount("/dev", {"nosuid", "strictatime", "mode=755", "size=65536k"}),
                 memory_mount("/dev/shm", {"nosuid", "noexec", "nodev", "mode=1777", size}),
                 memory_mount("/tmp", {"nosuid", "nodev", "mode=1777", size}),
                 {{"destination", "/sys"},
                  {"type", "sysfs"},
                  {"source", "sysfs"},
                  {"options", {"nosuid", "noexec", "nodev", "ro"}}}};
  for (const fs::path& folder : interpreter_folders(spec.python))
    mounts.push_back(bind_mount(folder, folder));
  if (spec.wants_gpu) {
    for (const fs::path& library : gpu_driver_libraries())
      mounts.push_back(bind_mount(library, fs::path(kDriverFolder) / library.filename()));
  }
  for (const Mount& mount : spec.mounts)
    mounts.push_back(bind_mount(mount.host, mount.inside, mount.is_writable));
  return mounts;
}

/// Adds the GPU's device nodes and the right to open them.
void add_gpu(Json& linux_part) {
  for (const fs::path& node : gpu_device_nodes()) {
    struct stat info {};
    if (::stat(node.c_str(), &info) != 0 || !S_ISCHR(info.st_mode)) continue;
    const unsigned major_number = major(info.st_rdev), minor_number = minor(info.st_rdev);
    linux_part["devices"].push_back({{"path", node.string()},
                                     {"type", "c"},
                                     {"major", major_number},
                                     {"minor", minor_number},
                                     {"fileMode", 0666}});
    linux_part["resources"]["devices"].push_back({{"allow", true},
                                                  {"type", "c"},
                                                  {"major", major_number},
                                                  {"minor", minor_number},
                                                  {"access", "rw"}});
  }
}

}  // namespace

std::optional<Bundle> find_bundle(const fs::path& cache) {
  const fs::path folder = cache / "bundle";
  const Json image = Json::parse(file_text(folder / "image.json").value_or(""), nullptr, false);
  std::error_code ignored;
  if (!image.is_object() || !fs::is_directory(folder / "rootfs", ignored)) return std::nullopt;
  return Bundle{folder / "rootfs", image.value("tree_digest", ""), image.value("python", ""),
                image.value("tag", "")};
}

Json runc_config(const SandboxSpec& spec, const Bundle& bundle) {
  Arguments env;
  if (spec.wants_gpu) env.push_back(fmt::format("{}={}", kDriverFolderVariable, kDriverFolder));
  for (const auto& [name, value] : spec.env) env.push_back(fmt::format("{}={}", name, value));
  const Json user = {{"uid", kSubjectUid}, {"gid", kSubjectUid}};
  Json capabilities;
  for (const char* set : {"bounding", "effective", "inheritable", "permitted", "ambient"})
    capabilities[set] = Json::array();
  Json namespaces = Json::array();
  for (const char* type : {"pid", "network", "ipc", "uts", "mount"})
    namespaces.push_back({{"type", type}});
  Json linux_part = {
      {"namespaces", namespaces},
      {"resources",
       {{"devices", {{{"allow", false}, {"access", "rwm"}}}},
        // The same figure: memory and swap together, so no swap.
        {"memory", {{"limit", spec.memory_bytes}, {"swap", spec.memory_bytes}}},
        {"pids", {{"limit", spec.max_processes}}}}},
      {"maskedPaths",
       {"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
        "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"}},
      {"readonlyPaths",
       {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}}};
  if (spec.wants_gpu) add_gpu(linux_part);
  return {{"ociVersion", "1.0.2"},
          {"process",
           {{"terminal", false},
            {"user", user},
            {"args", spec.argv},
            {"env", env},
            {"cwd", spec.cwd},
            {"capabilities", capabilities},
            {"noNewPrivileges", true}}},
          {"root", {{"path", fs::absolute(bundle.rootfs).string()}, {"readonly", true}}},
          {"hostname", "sandbox"},
          {"mounts", mounts_of(spec)},
          {"linux", linux_part}};
}

SandboxReport run_in_runc(const SandboxSpec& spec) {
  const std::string runc = find_program("runc");
  if (runc.empty()) return engine_failure("runc: not found on PATH");
  if (::geteuid() != 0) return engine_failure("runc: only root can start it here");
  const std::optional<Bundle> bundle = find_bundle(default_cache());
  if (!bundle) return engine_failure("runc: no bundle; only a staged folder has one");
  prepare_mounts(spec, Ownership::kToSubject);
  // An interpreter can lie below /root; the subject is to reach the folder that is mounted there.
  std::error_code ignored;
  fs::permissions(bundle->rootfs / "root", fs::perms{0755}, ignored);
  const fs::path folder = spec.report.parent_path() / "oci";
  fs::remove_all(folder);
  fs::create_directories(folder);
  // The container's own group goes with it; the one around it stays to be read.
  const std::optional<Cgroup> group = Cgroup::create(spec.memory_bytes, spec.max_processes);
  if (!group) return engine_failure("runc: no cgroup with limits can be made here");
  Json config = runc_config(spec, *bundle);
  config["linux"]["cgroupsPath"] = group->name() + "/container";
  std::ofstream(folder / "config.json") << config.dump();
  const std::string id = fmt::format("patchbench-{}-{:08x}", ::getpid(), std::random_device{}());
  const fs::path pid_file = folder / "pid";
  std::optional<CgroupView> view;
  Supervision watch{.log = spec.log};
  watch.child.argv = {runc,   "--root",     folder / "state", "run", "--bundle",
                      folder, "--pid-file", pid_file,         id};
  watch.child.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  // A carried runc finds its library there.
  if (const char* libraries = std::getenv("LD_LIBRARY_PATH"); libraries != nullptr)
    watch.child.env.push_back(fmt::format("LD_LIBRARY_PATH={}", libraries));
  watch.child.death_signal = SIGKILL;
  watch.child.own_session = true;
  watch.timeout = std::chrono::duration<double>(spec.timeout_s);
  watch.look = [&](const ProcessTree*) {
    const auto pid = static_cast<pid_t>(std::atol(file_text(pid_file).value_or("").c_str()));
    if (!view && pid > 0) view = CgroupView::of(pid);
    const auto memory = view ? view->memory() : std::nullopt;
    return memory && memory->has_killed ? Limit::kMemory : Limit::kNone;
  };
  SandboxReport report = report_of(spec, supervise(watch));
  const bool has_started = fs::exists(pid_file);
  static_cast<void>(run({.argv = {runc, "--root", folder / "state", "delete", "--force", id}}));
  report.peak_bytes = group->memory().peak_bytes;
  group->remove_others();
  if (!report.engine_failed && !has_started) return engine_failure("runc: " + last_line(spec.log));
  if (report.exit_code > 128) report.signal = report.exit_code - 128;
  // Whether its OOM killer struck, the kernel says in the container's group alone (cgroup v1).
  const bool is_full = report.peak_bytes >= spec.memory_bytes / 16 * 15;
  if (report.signal == SIGKILL && !report.timed_out && is_full) report.out_of_memory = true;
  if (report.out_of_memory && report.error.empty())
    report.error = fmt::format("went over {} MiB of memory", spec.memory_bytes >> 20);
  report.meter = "cgroup";
  report.limits = "runc";
  return report;
}

}  // namespace patchbench::exec
