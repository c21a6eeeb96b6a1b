#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "job/line_matcher.h"

namespace patchbench::job {

enum class Action { kIgnore, kCount, kAlert };

/// One rule of env/triage.json or of a user's file.
struct TriageRule {
  std::string name, reason, versions, expires, hang;
  LinePattern pattern;
  Action action = Action::kCount;
  int64_t bound = -1;  ///< of a count; -1: none
  bool unless_step_jump = false;
  bool is_built_in = false;
};

/// What stands before a step's time in a line, and its unit in seconds.
struct StepTime {
  std::string after;
  double unit_s = 1;
};

/// Rules in the order in which they decide a line.
struct TriageRules {
  std::vector<TriageRule> rules;
  std::vector<StepTime> step_times;
  /// Appends a file's. Throws Error(kUsage) with path and line.
  void add(std::string_view text, const std::string& path, std::string_view schema,
           bool is_built_in);
};

}  // namespace patchbench::job
