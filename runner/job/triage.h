#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "job/policy.h"
#include "job/triage_rules.h"

namespace patchbench::job {

/// How a run is judged.
struct TriageOptions {
  std::string torch_version;  ///< "": rules of every version act
  std::string today;          ///< YYYY-MM-DD, for rules that expire
  bool is_hung = false;  ///< the caller says that the job hung: the last activity is the suspect
};

/// Where a line stands.
struct LogLocation {
  std::string file;
  int64_t line = 0;
};

/// Something a person should look at, with lines of the same rank around it.
struct Alert {
  std::string rule, rank, text;
  LogLocation location;
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

}  // namespace patchbench::job
