#pragma once
#include <string>
#include <vector>

#include "workbench/context.h"

namespace patchbench {

enum class ThreadState { kOpen, kClosed, kMerged, kSuperseded, kUnchecked };
/// "open", "closed", "merged", "superseded", "unchecked".
std::string thread_state_name(ThreadState state);

/// An upstream thread as somebody last saw it.
struct Thread {
  std::string name;   ///< owner/name#number
  std::string about;  ///< in our words
  ThreadState state = ThreadState::kUnchecked;
  std::string checked;  ///< the day of which the source speaks; "" if unchecked
  std::string source, superseded_by;
  struct Relation {
    std::string slug, relation;
  };
  std::vector<Relation> packs;
};

/// env/threads.json against its schema and the packs that are there. Throws Error(kUsage)
/// `<path>:<line>: <json pointer>: <reason>`.
std::vector<Thread> read_upstream_threads(const Context& context);

/// The names of the threads that report or fix the bug of a pack.
std::vector<std::string> threads_about(const std::vector<Thread>& threads, const std::string& slug);

/// Days from one YYYY-MM-DD to another. Throws Error(kUsage) if either is not a day.
int days_between(const std::string& from, const std::string& to);

}  // namespace patchbench
