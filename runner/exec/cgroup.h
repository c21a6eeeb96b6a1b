#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/spawn.h"

namespace patchbench::exec {

/// What the kernel says of a group's memory.
struct CgroupMemory {
  int64_t peak_bytes = 0;   ///< with page cache; a high-water mark where the kernel keeps one
  bool has_killed = false;  ///< its OOM killer struck inside
};

/// Where one process's memory is accounted: the folder of a v1 or v2 hierarchy.
class CgroupView {
 public:
  /// The memory group a process is in; nullopt where none can be read.
  static std::optional<CgroupView> of(pid_t pid);
  explicit CgroupView(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// nullopt once the folder is gone.
  std::optional<CgroupMemory> memory() const;

 private:
  std::filesystem::path folder_;
};

/// A group of our own below (or next to) the one we are in, v1 or v2, found by trying: memory and
/// process limits for what is started into it. Removed with the object, its members killed.
class Cgroup {
 public:
  /// nullopt unless both limits can be set here.
  static std::optional<Cgroup> create(int64_t memory_bytes, int max_processes);
  ~Cgroup();
  Cgroup(Cgroup&& other) noexcept = default;
  Cgroup& operator=(Cgroup&&) = delete;

  /// For SpawnRequest::cgroup_procs.
  std::vector<int> procs() const;
  CgroupMemory memory() const;
  /// Its folder's name, the same in each hierarchy; an engine makes a container's group in it.
  std::string name() const { return folders_.front().filename(); }
  /// Removes the empty groups of this name that an engine made in the other v1 hierarchies.
  void remove_others() const;
  /// Kills the members that are there now.
  void kill_members() const;

 private:
  Cgroup() = default;
  bool add(const std::filesystem::path& folder);
  std::vector<std::filesystem::path> folders_;  ///< one per hierarchy; the first accounts memory
  std::vector<Fd> procs_;
};

}  // namespace patchbench::exec
