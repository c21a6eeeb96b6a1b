#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "exec/process_tree.h"
#include "exec/spawn.h"

namespace patchbench::exec {

/// At most this much of a subject's output is kept.
inline constexpr std::size_t kMaxLog = std::size_t{8} << 20;

/// What is killed: the child with every descendant, or the child alone (a client of an engine whose
/// daemons must live to clean up; `Supervision::kill` ends their work).
enum class KillScope { kTree, kChild };

/// A limit that was passed.
enum class Limit { kNone, kMemory, kProcesses };

/// One child to watch to its end and how.
struct Supervision {
  SpawnRequest child;  ///< its stdout and stderr become the log
  std::filesystem::path log;
  std::chrono::duration<double> timeout{0};
  KillScope scope = KillScope::kTree;
  /// Called several times a second and once after the end with the child's tree (null for
  /// KillScope::kChild); what it answers first is what the child is killed for. May be empty.
  std::function<Limit(const ProcessTree* tree)> look;
  std::function<void()> kill;  ///< the engine's own way, before `scope` is killed; may be empty
};

/// How it ended, and what it was killed for if it was.
struct Ending {
  std::string error;  ///< the child could not be started, or its remains could not be killed
  int exit_code = -1, signal = 0;
  bool timed_out = false;
  Limit limit = Limit::kNone;
  int stopped_by = 0;  ///< the signal given to `request_stop`
  double wall_s = 0;
};

/// Starts the child, keeps its log, kills it when a limit is passed; when it returns nothing of
/// `scope` is alive. One at a time per process (see ProcessTree). Throws Error(kInternal) if the
/// log cannot be written.
Ending supervise(const Supervision& supervision);

/// Asks a running `supervise` to kill its child and return; async-signal-safe, for handlers.
void request_stop(int signal);

}  // namespace patchbench::exec
