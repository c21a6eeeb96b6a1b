#include "exec/cgroup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

/// A mounted hierarchy and a process's place in it.
struct CgroupPath {
  fs::path mount, path;  ///< path is relative to mount
};

/// Writes a whole value; false if the kernel refuses it.
bool put(const fs::path& file, const std::string& value) {
  const Fd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
}

std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

/// The value behind `key` in a file of "key value" lines, 0 if there is none.
int64_t keyed(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (int64_t value = 0; in >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// Where the hierarchy of a controller is mounted ("": v2), "" if nowhere.
fs::path mount_of(const std::string& controller) {
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream head(line.substr(0, dash)), tail(line.substr(dash + 3));
    std::string skip, mount, type, source, options;
    head >> skip >> skip >> skip >> skip >> mount;
    tail >> type >> source >> options;
    if (controller.empty() ? type == "cgroup2" : type == "cgroup" && has_word(options, controller))
      return mount;
  }
  return {};
}

std::optional<CgroupPath> place_of(const std::string& process, const std::string& controller) {
  const fs::path mount = mount_of(controller);
  if (mount.empty()) return std::nullopt;
  std::ifstream in("/proc/" + process + "/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? line.starts_with("0::") : has_word(names, controller)) {
      return CgroupPath{mount, fs::path(line.substr(second + 1)).relative_path()};
    }
  }
  return std::nullopt;
}

/// A name no other process of ours takes.
std::string fresh_name() {
  static std::atomic<int> count{0};
  return fmt::format("patchbench-{}-{}", ::getpid(), count++);
}

bool set_memory(const fs::path& folder, int64_t bytes, bool is_v2) {
  const std::string value = std::to_string(bytes);
  if (is_v2) {
    // A missing swap account is not a failure: many machines have no swap.
    put(folder / "memory.swap.max", "0");
    put(folder / "memory.oom.group", "1");
    return put(folder / "memory.max", value) && number_in(folder / "memory.max").has_value();
  }
  const bool is_set = put(folder / "memory.limit_in_bytes", value);
  put(folder / "memory.memsw.limit_in_bytes", value);
  return is_set;
}

bool set_processes(const fs::path& folder, int count) {
  return put(folder / "pids.max", std::to_string(count));
}

}  // namespace

std::optional<CgroupView> CgroupView::of(pid_t pid) {
  for (const char* controller : {"memory", ""}) {
    const auto place = place_of(std::to_string(pid), controller);
    if (!place) continue;
    const fs::path folder = place->mount / place->path;
    if (CgroupView(folder).memory()) return CgroupView(folder);
  }
  return std::nullopt;
}

std::optional<CgroupMemory> CgroupView::memory() const {
  CgroupMemory found;
  for (const char* name : {"memory.peak", "memory.max_usage_in_bytes", "memory.current"}) {
    const auto value = number_in(folder_ / name);
    if (!value) continue;
    found.peak_bytes = *value;
    found.has_killed = keyed(folder_ / "memory.events", "oom_kill") > 0 ||
                       keyed(folder_ / "memory.oom_control", "oom_kill") > 0;
    return found;
  }
  return std::nullopt;
}

bool Cgroup::add(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0755) != 0) return false;
  folders_.push_back(folder);
  procs_.emplace_back(::open((folder / "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  return static_cast<bool>(procs_.back());
}

std::optional<Cgroup> Cgroup::create(int64_t memory_bytes, int max_processes) {
  const std::string name = fresh_name();
  if (const auto v2 = place_of("self", "")) {
    // From the nearest group above ours, our own last: a group that holds processes cannot hand
    // controllers down, and one that does not may hand down some of them alone.
    std::vector<fs::path> parents;
    for (fs::path above = v2->path; !above.empty();) parents.push_back(above = above.parent_path());
    parents.push_back(v2->path);
    for (const fs::path& parent : parents) {
      const fs::path folder = v2->mount / parent / name;
      Cgroup group;
      if (group.add(folder) && set_memory(folder, memory_bytes, true) &&
          set_processes(folder, max_processes)) {
        return group;
      }
    }
  }
  const auto memory = place_of("self", "memory"), pids = place_of("self", "pids");
  if (!memory || !pids) return std::nullopt;
  Cgroup group;
  const fs::path for_memory = memory->mount / memory->path / name;
  const fs::path for_pids = pids->mount / pids->path / name;
  if (group.add(for_memory) && set_memory(for_memory, memory_bytes, false) && group.add(for_pids) &&
      set_processes(for_pids, max_processes)) {
    return group;
  }
  return std::nullopt;
}

Cgroup::~Cgroup() {
  for (const fs::path& folder : folders_) {
    // A killed member leaves its group a moment after its end was taken.
    for (int i = 0; i < 200 && ::rmdir(folder.c_str()) != 0 && errno == EBUSY; ++i) {
      kill_members();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

void Cgroup::remove_others() const {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const std::string names = line.substr(first + 1, line.find(':', first + 1) - first - 1);
    const auto place = place_of("self", names.substr(0, names.find(',')));
    const fs::path folder = place ? place->mount / place->path / name() : fs::path();
    const bool is_ours = std::find(folders_.begin(), folders_.end(), folder) != folders_.end();
    if (place && !is_ours) ::rmdir(folder.c_str());
  }
}

std::vector<int> Cgroup::procs() const {
  std::vector<int> list;
  for (const Fd& fd : procs_) list.push_back(fd.get());
  return list;
}

CgroupMemory Cgroup::memory() const {
  return CgroupView(folders_.front()).memory().value_or(CgroupMemory{});
}

void Cgroup::kill_members() const {
  for (const fs::path& folder : folders_) {
    if (put(folder / "cgroup.kill", "1")) continue;
    std::ifstream in(folder / "cgroup.procs");
    for (pid_t pid = 0; in >> pid;) ::kill(pid, SIGKILL);
  }
}

}  // namespace patchbench::exec
