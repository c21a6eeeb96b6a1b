#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "job/line_matcher.h"
#include "job/policy.h"

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

/// How a run is judged.
struct TriageOptions {
  std::string torch_version;  ///< "": rules of every version act
  std::string today;          ///< YYYY-MM-DD, for rules that expire
  bool is_hung = false;  ///< the caller says that the job hung: the last activity is the suspect
};

/// Where a line stands.
struct LinePlace {
  std::string file;
  int64_t line = 0;
};

/// Something a person should look at, with lines of the same rank around it.
struct Alert {
  std::string rule, rank, text;
  LinePlace place;
  std::vector<std::string> before, after;
};

/// Reads training logs block by block; memory does not grow with their length.
class Triage {
 public:
  Triage(TriageRules rules, Budgets budgets, TriageOptions options);
  ~Triage();
  /// Starts or goes on with a file; its name may tell the rank of lines that do not.
  void open(const std::string& file);
  /// The file of that name is a new one: its lines count from 1.
  void restart(const std::string& file);
  /// Whole lines that follow those fed last for the open file.
  void feed(std::string_view block);
  /// Alerts since the last call, for following a log as it grows.
  std::vector<Alert> take_alerts();
  /// All that was seen, as one document: {"lines", "bytes", "rules", "alerts", "unknown", "sites",
  /// "stale", "hang", …}. Budgets are judged here.
  Json finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The rank that a line names in front ("[rank3]:", "[default3]:", "3: "), "" if none; `rest`
/// receives what follows. Exposed for tests.
std::string_view rank_of_line(std::string_view line, std::string_view* rest);
/// The rank that a path tells (".../3/stderr.log", "rank_3.log"), "-" if none.
std::string rank_of_path(const std::string& path);
/// A warning without what changes from one time to the next: numbers, addresses, times.
std::string shape_of(std::string_view line);
/// torch's own prefix "W1122 01:05:44.525000 20632 file.py:5127]" if the text begins with one,
/// from its level on.
std::string_view log_prefix(std::string_view text);

}  // namespace patchbench::job
