#pragma once
#include <sys/types.h>

#include <cstdint>
#include <set>
#include <vector>

namespace patchbench::exec {

/// What the members of a tree use together.
struct TreeUsage {
  int num_processes = 0;
  int64_t memory_bytes =
      0;  ///< resident anonymous and shared memory; shared pages count per process
};

/// A started process and all its descendants, those included that became daemons: while an object
/// of this class lives, the calling process is their reaper (PR_SET_CHILD_SUBREAPER). Children that
/// the caller had before do not count. For a caller with one thread that starts no other child
/// meanwhile.
class ProcessTree {
 public:
  ProcessTree();
  ~ProcessTree();
  ProcessTree(const ProcessTree&) = delete;
  ProcessTree& operator=(const ProcessTree&) = delete;

  TreeUsage usage() const;
  /// Takes the ends of daemons that were handed to the caller; `keep` is left for its own wait.
  void reap_orphans(pid_t keep) const;
  /// Kills every member until none is left, at most for 20 seconds; `keep` is killed but not
  /// reaped. Returns whether all are gone.
  bool kill_all(pid_t keep) const;

 private:
  std::vector<pid_t> members() const;

  std::set<pid_t> before_;
  int was_reaper_ = 0;
};

/// The same figures of one process and its descendants, which need not be the caller's.
TreeUsage usage_below(pid_t root);

}  // namespace patchbench::exec
