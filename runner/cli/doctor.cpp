#include "cli/doctor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "cli/cache_entries.h"
#include "core/file_text.h"
#include "core/json.h"
#include "exec/choice.h"
#include "exec/environment.h"
#include "exec/process.h"
#include "exec/sandbox.h"
#include "report/table.h"
#include "run/programs.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// One line of the doctor's table.
struct DoctorFinding {
  std::string part;
  bool is_there = false;
  std::string detail;
  std::string get;  ///< the command that brings it, "" if none is needed or known
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// A program by its own account: the first line of `--version`.
DoctorFinding program(const std::string& part, const std::string& name,
                      const std::string& package) {
  const std::string path = exec::find_program(name);
  if (path.empty()) return {part, false, name + " is not on PATH", "apt-get install -y " + package};
  const std::string version = shown(first_line(exec::run({.argv = {path, "--version"}}).out));
  return {part, true, version + " (" + path + ")", ""};
}

DoctorFinding engine(const Context& context, exec::SandboxKind kind) {
  const exec::SandboxProbe probe = exec::probe_sandbox(kind, context.cache, context.root);
  const char* package = kind == exec::SandboxKind::kPodman       ? "podman runc"
                        : kind == exec::SandboxKind::kBubblewrap ? "bubblewrap"
                                                                 : "docker.io";
  const bool is_installed =
      kind == exec::SandboxKind::kProcess || !exec::find_program(exec::sandbox_name(kind)).empty();
  return {"sandbox " + exec::sandbox_name(kind), probe.usable, probe.detail,
          !is_installed ? fmt::format("apt-get install -y {}", package)
          : kind == exec::SandboxKind::kDocker && !probe.usable ? "systemctl start docker"
                                                                : ""};
}

/// Whether a user who is not root may make namespaces, which bubblewrap and rootless podman need.
DoctorFinding user_namespaces() {
  const std::string most = first_line(file_text("/proc/sys/user/max_user_namespaces").value_or(""));
  if (most.empty() || most == "0")
    return {"user namespaces", false, "none allowed: sandboxes need root here",
            "sysctl user.max_user_namespaces=15000"};
  if (first_line(file_text("/proc/sys/kernel/unprivileged_userns_clone").value_or("")) == "0")
    return {"user namespaces", false, "for root alone",
            "sysctl kernel.unprivileged_userns_clone=1"};
  if (first_line(
          file_text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").value_or("")) == "1")
    return {"user namespaces", false, "AppArmor keeps them from programs without a profile",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"};
  return {"user namespaces", true, "at most " + most, ""};
}

/// The hierarchy that memory limits are set in.
DoctorFinding cgroups() {
  const bool is_unified = fs::exists("/sys/fs/cgroup/cgroup.controllers");
  const fs::path root = is_unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
  if (::access(root.c_str(), W_OK) == 0)
    return {"cgroups", true, is_unified ? "version 2, writable" : "version 1, writable", ""};
  return {"cgroups", false,
          fs::exists(root) ? "not writable: a watchdog on resident memory limits bwrap and process"
                           : "no memory controller: a watchdog on resident memory stands in",
          ""};
}

/// What a subject's own limits may be raised to.
DoctorFinding rlimits() {
  rlimit files{}, processes{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NPROC, &processes);
  const auto text = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::string("any") : std::to_string(value);
  };
  const bool is_enough = files.rlim_max >= 1024 && processes.rlim_max >= 1000;
  return {
      "rlimits", is_enough,
      fmt::format("open files {}, processes {}", text(files.rlim_max), text(processes.rlim_max)),
      is_enough ? "" : "ulimit -Hn 1024; ulimit -Hu 1000, as root"};
}

/// How many of a pack's cases are judged on what is here.
DoctorFinding pack(const Context& context, const std::string& slug) {
  const Manifest manifest = context.manifest(slug);
  if (const auto why = manifest.waived(Column::kRepro))
    return {"pack " + slug, false, "no reproducer: " + *why, ""};
  if (judge_program(context, slug).file.empty())
    return {"pack " + slug, false, "its reproducer is not there",
            "env/build.sh in a clone, else the wheel patchbench-judge"};
  const auto count = [&](const char* device) {
    return std::count_if(manifest.cases.begin(), manifest.cases.end(),
                         [&](const Case& item) { return item.counts_on(device); });
  };
  const bool has_gpu = !exec::find_gpus().empty();
  return {"pack " + slug, has_gpu || count("cpu") > 0,
          fmt::format("{} of {} cases are judged on a CPU, {} on a GPU{}", count("cpu"),
                      manifest.cases.size(), count("cuda"), has_gpu ? "" : " (none here)"),
          ""};
}

DoctorFinding nvcc() {
  std::string path = exec::find_program("nvcc");
  if (path.empty()) path = exec::find_program("/usr/local/cuda/bin/nvcc");
  if (path.empty()) {
    return {"nvcc", false, "not there: preset cpu is built, the ops go without their CUDA halves",
            "install the CUDA 13.0 toolkit (developer.nvidia.com/cuda-downloads)"};
  }
  const std::string text = exec::run({.argv = {path, "--version"}}).out;
  const auto release = text.find("release ");
  return {"nvcc", true, release == std::string::npos ? path : first_line(text.substr(release)), ""};
}

std::vector<DoctorFinding> gpus() {
  std::vector<DoctorFinding> list;
  for (const exec::Gpu& gpu : exec::find_gpus()) {
    list.push_back({fmt::format("GPU cuda:{}", gpu.index), true,
                    fmt::format("{}, capability {}, driver {}, {} MiB", gpu.name, gpu.capability,
                                gpu.driver, gpu.memory_bytes >> 20),
                    ""});
  }
  if (list.empty())
    list.push_back(
        {"GPU", false, "no NVIDIA GPU: subjects run on the CPU under Triton's interpreter", ""});
  return list;
}

/// "torch 2.11.0, triton 3.6.0": the packages of an unpacked environment, those first that decide
/// what runs.
std::string packages_in(const fs::path& site) {
  std::map<std::string, std::string> versions;
  for (const fs::path& entry : entries_of(site)) {
    const std::string name = entry.stem().string();
    const std::size_t dash = name.rfind('-');
    if (entry.extension() == ".dist-info" && dash != std::string::npos)
      versions[name.substr(0, dash)] = name.substr(dash + 1);
  }
  std::string text;
  const auto add = [&](const std::string& name) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, versions.at(name));
    versions.erase(name);
  };
  for (const char* name : {"torch", "triton", "numpy"}) {
    if (versions.contains(name)) add(name);
  }
  if (text.empty() && !versions.empty()) add(versions.begin()->first);
  return versions.empty() ? text : fmt::format("{} and {} more", text, versions.size());
}

/// The unpacked environment of a lock for one interpreter.
DoctorFinding unpacked(const Context& context, const fs::path& lock, const std::string& tag) {
  const std::string name = lock.stem().string(), part = name + " " + tag;
  for (const fs::path& site : entries_of(context.cache / "env")) {
    if (!site.filename().string().starts_with(name + "-" + tag + "-") ||
        !fs::exists(site / "patchbench-env.json"))
      continue;
    return {part, true, packages_in(site), ""};
  }
  return {part, false, "its wheels are not in the cache",
          fmt::format("python3 {} env {} --tag {}", (context.root / "env/fetch.py").string(),
                      lock.string(), tag)};
}

std::vector<DoctorFinding> environments(const Context& context, const std::string& tag) {
  std::vector<fs::path> locks = entries_of(context.root / "env/locks");
  // The others are not a subject's environment.
  std::erase_if(locks, [](const fs::path& lock) {
    const std::string stem = lock.stem();
    return stem == "tools" || stem == "wheels" || stem == "judge" || stem == "torch-2.15";
  });
  std::vector<DoctorFinding> found;
  for (const fs::path& lock : locks) {
    // The base image has Python 3.11, whatever this machine has.
    for (const std::string& one : std::set<std::string>{tag, "cp311"}) {
      if (one == "cp311" || lock.stem() == "torch-2.11")
        found.push_back(unpacked(context, lock, one));
    }
  }
  return found;
}

Json policy(const Context& context) {
  const fs::path file = context.root / "env/policy.json";
  return parse_json(read_file(file), file.string());
}

DoctorFinding packages(const Context& context) {
  const Json wanted = policy(context).at("packages");
  std::vector<std::string> names;
  for (const auto& [purpose, list] : wanted.items()) {
    // run-tests and env/wheels.sh bring what they need; of "headers" no package is installed.
    if (purpose == "tests" || purpose == "wheels" || purpose == "headers") continue;
    for (const Json& name : list) names.push_back(name.get<std::string>());
  }
  std::vector<std::string> argv = {"dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n"};
  argv.insert(argv.end(), names.begin(), names.end());
  const exec::Exit exit = exec::run({.argv = argv});
  if (!exit.error.empty())
    return {"packages", false, "no dpkg here: this is neither Debian nor Ubuntu", ""};
  std::set<std::string> there;
  std::istringstream lines(exit.out);
  for (std::string name, status; lines >> name >> status;) {
    if (status == "installed") there.insert(name);
  }
  std::string missing;
  for (const std::string& name : names) {
    if (!there.contains(name)) missing += (missing.empty() ? "" : " ") + name;
  }
  if (missing.empty())
    return {"packages", true, fmt::format("all {} Debian packages", names.size()), ""};
  return {"packages", false, "missing: " + missing,
          "apt-get install -y --no-install-recommends " + missing};
}

/// ID and VERSION_ID of /etc/os-release, as env/bootstrap.sh names its folder of headers.
std::string debian_release() {
  std::map<std::string, std::string> fields;
  std::istringstream lines(file_text("/etc/os-release").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::erase(line, '"');
    fields[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  }
  return fields["ID"] + "-" + fields["VERSION_ID"];
}

/// Packages whose headers alone are used, from the cache; an installed package serves as well.
DoctorFinding headers(const Context& context) {
  const fs::path folder = context.cache / "headers" / debian_release();
  std::string missing, there;
  for (const Json& name : policy(context).at("packages").value("headers", Json::array())) {
    const std::string package = name.get<std::string>();
    const bool is_there =
        fs::exists(folder / package) || exec::run({.argv = {"dpkg-query", "-L", package}}).ok();
    std::string& list = is_there ? there : missing;
    list += (list.empty() ? "" : " ") + package;
  }
  if (missing.empty()) return {"headers", true, there, ""};
  return {"headers", false, "missing: " + missing, "env/bootstrap.sh --host-only"};
}

DoctorFinding disk(const Context& context) {
  const auto need = policy(context).at("disk_gib").get<uint64_t>();
  fs::path folder = context.cache;
  while (!fs::exists(folder) && folder.has_parent_path()) folder = folder.parent_path();
  struct statvfs info {};
  ::statvfs(folder.c_str(), &info);
  const uint64_t free_gib = (uint64_t{info.f_bavail} * info.f_frsize) >> 30;
  const bool is_filled = fs::exists(context.cache / "env");
  return {
      "cache", is_filled || free_gib >= need,
      fmt::format("{}, {} GiB free (a first run takes {})", context.cache.string(), free_gib, need),
      is_filled || free_gib >= need ? "" : "set XDG_CACHE_HOME to a larger disk"};
}

std::vector<DoctorFinding> examine(const Context& context) {
  // Asked anew: what this command says is what is so now.
  exec::forget_probes(context.cache);
  std::vector<DoctorFinding> found;
  for (const exec::SandboxKind kind : exec::kSandboxKinds) found.push_back(engine(context, kind));
  found.push_back(user_namespaces());
  found.push_back(cgroups());
  found.push_back(rlimits());
  found.push_back(program("python", "python3", "python3"));
  const exec::Exit tag =
      exec::run({.argv = {"python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"}});
  for (DoctorFinding& one : environments(context, tag.ok() ? first_line(tag.out) : "cp311"))
    found.push_back(std::move(one));
  found.push_back(program("compiler", "g++", "g++"));
  found.push_back(program("cmake", "cmake", "cmake"));
  found.push_back(program("git", "git", "git"));
  found.push_back(nvcc());
  for (DoctorFinding& gpu : gpus()) found.push_back(std::move(gpu));
  found.push_back(packages(context));
  found.push_back(headers(context));
  found.push_back(disk(context));
  for (const std::string& slug : context.slugs()) found.push_back(pack(context, slug));
  return found;
}

}  // namespace

void doctor(const Context& context) {
  const std::vector<DoctorFinding> found = examine(context);
  if (context.json) {
    Json list = Json::array();
    for (const DoctorFinding& f : found)
      list.push_back(
          {{"part", f.part}, {"there", f.is_there}, {"detail", f.detail}, {"get", f.get}});
    print_json(context, {{"machine", exec::describe_machine("cpu")}, {"findings", list}});
    return;
  }
  report::Table table({"part", "here", "detail"});
  std::string commands;
  for (const DoctorFinding& f : found) {
    table.add({f.part, f.is_there ? "yes" : "no", f.detail});
    table.color(1, f.is_there ? report::Color::kGreen : report::Color::kYellow);
    if (!f.get.empty()) commands += fmt::format("  {:<16} {}\n", f.part, f.get);
  }
  context.out() << table.render(table_style(context));
  if (!commands.empty()) context.out() << "\nTo get what is missing:\n" << commands;
}

}  // namespace patchbench::cli
