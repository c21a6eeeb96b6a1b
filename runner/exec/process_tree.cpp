#include "exec/process_tree.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Parent and state of a process, from the fields behind its parenthesised name.
struct Stat {
  pid_t parent = 0;
  char state = '?';
};

bool read_stat(pid_t pid, Stat& stat) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const auto paren = text.rfind(')');
  if (paren == std::string::npos) return false;
  std::istringstream rest(text.substr(paren + 1));
  return static_cast<bool>(rest >> stat.state >> stat.parent);
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// Every process of the machine by its parent. Unlike /proc/PID/task/*/children this misses none
/// that lives through the whole scan.
std::multimap<pid_t, pid_t> scan_all() {
  std::multimap<pid_t, pid_t> children;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    Stat stat;
    if (is_number(name) && read_stat(std::stoi(name), stat))
      children.emplace(stat.parent, std::stoi(name));
  }
  return children;
}

std::vector<pid_t> children_of(pid_t pid, bool& is_known) {
  std::vector<pid_t> children;
  std::error_code failed;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (fs::directory_iterator it(tasks, failed), end; !failed && it != end; it.increment(failed)) {
    std::ifstream in(it->path() / "children");
    if (!in) {
      is_known = is_known && !fs::exists(tasks);
      continue;
    }
    for (pid_t child = 0; in >> child;) children.push_back(child);
  }
  return children;
}

/// Descendants of `root` by the kernel's lists of children: cheap, for watching. Where the kernel
/// has no such lists (CONFIG_PROC_CHILDREN), by a scan of all processes.
std::vector<pid_t> descendants(pid_t root, const std::set<pid_t>& except, bool must_be_complete) {
  std::vector<pid_t> found;
  std::vector<pid_t> open = {root};
  bool is_known = !must_be_complete;
  while (is_known && !open.empty()) {
    const pid_t pid = open.back();
    open.pop_back();
    for (const pid_t child : children_of(pid, is_known)) {
      if (except.contains(child)) continue;
      found.push_back(child);
      open.push_back(child);
    }
  }
  if (is_known) return found;
  const std::multimap<pid_t, pid_t> all = scan_all();
  found.clear();
  open = {root};
  while (!open.empty()) {
    const auto [begin, end] = all.equal_range(open.back());
    open.pop_back();
    for (auto it = begin; it != end; ++it) {
      if (except.contains(it->second)) continue;
      found.push_back(it->second);
      open.push_back(it->second);
    }
  }
  return found;
}

bool is_zombie(pid_t pid) {
  Stat stat;
  return !read_stat(pid, stat) || stat.state == 'Z' || stat.state == 'X';
}

int64_t memory_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  int64_t kib = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:")) {
      kib += std::stoll(line.substr(line.find(':') + 1));
    }
  }
  return kib * 1024;
}

TreeUsage usage_of(const std::vector<pid_t>& pids) {
  TreeUsage usage;
  for (const pid_t pid : pids) {
    if (is_zombie(pid)) continue;
    ++usage.num_processes;
    usage.memory_bytes += memory_of(pid);
  }
  return usage;
}

}  // namespace

ProcessTree::ProcessTree() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_reaper_, 0, 0, 0);
  for (const pid_t child : descendants(::getpid(), {}, true)) before_.insert(child);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

ProcessTree::~ProcessTree() { ::prctl(PR_SET_CHILD_SUBREAPER, was_reaper_, 0, 0, 0); }

std::vector<pid_t> ProcessTree::members() const { return descendants(::getpid(), before_, true); }

TreeUsage ProcessTree::usage() const { return usage_of(descendants(::getpid(), before_, false)); }

void ProcessTree::reap_orphans(pid_t keep) const {
  bool is_known = true;
  for (const pid_t child : children_of(::getpid(), is_known)) {
    if (child != keep && !before_.contains(child)) ::waitpid(child, nullptr, WNOHANG);
  }
}

bool ProcessTree::kill_all(pid_t keep) const {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (Clock::now() < deadline) {
    const std::vector<pid_t> all = members();
    // Stopped first, so that a tree which forks faster than it can be killed stops growing.
    for (const pid_t pid : all) ::kill(pid, SIGSTOP);
    bool is_left = false;
    for (const pid_t pid : all) {
      ::kill(pid, SIGKILL);
      if (pid != keep) ::waitpid(pid, nullptr, WNOHANG);
      is_left = is_left || !is_zombie(pid);
    }
    if (!is_left) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

TreeUsage usage_below(pid_t root) {
  std::vector<pid_t> pids = descendants(root, {}, false);
  pids.push_back(root);
  return usage_of(pids);
}

}  // namespace patchbench::exec
