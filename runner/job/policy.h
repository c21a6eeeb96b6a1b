#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace patchbench::job {

enum class RuleKind { kEnvironment, kTorchConfig, kPackage, kDriver, kCode };

/// One rule of env/policy.json. A dropped rule is kept for its reason.
struct Rule {
  std::string name, target, why, cost, was, dropped, since, source;
  RuleKind kind = RuleKind::kEnvironment;
  /// equals, contains, folder, unset, range or at_most; "" for a dropped rule.
  std::string op;
  Json value;
  std::string variable, variable_value;    ///< what sets the same config line from outside
  std::string when_variable, when_choice;  ///< applies where the variable is set, the choice named
  /// The value in words: "1", "contains expandable_segments:True", "unset".
  std::string wanted() const;
};

/// What triage counts against.
struct Budgets {
  int graph_breaks_per_site = 0, graph_breaks_per_rank = 0, recompiles_per_site = 0,
      jump_window_steps = 0;
  double step_time_jump = 0;
};

struct Policy {
  std::vector<Rule> rules;
  Budgets budgets;
  /// Throws Error(kUsage) with path and line on what schema or rule does not allow.
  static Policy parse(std::string_view text, const std::string& path, std::string_view schema);
  /// Throws Error(kUsage) with did-you-mean.
  const Rule& rule(const std::string& name) const;
  /// The choices that some rule waits for; throws Error(kUsage) on one that none does.
  void check_choices(const std::set<std::string>& choices) const;
};

/// What was seen of a process or an environment. nullopt: cannot be seen from here.
struct Facts {
  std::optional<std::map<std::string, std::string>> environment;
  std::optional<Json> config;  ///< config line -> value, "absent" where that torch has none
  std::optional<std::map<std::string, std::string>> packages;
  std::optional<std::string> driver;
};

enum class State { kOk, kMissing, kDiffers, kUnknown };
std::string state_name(State state);  ///< "ok", "missing", "differs", "unknown here"

struct Finding {
  const Rule* rule = nullptr;
  State state = State::kUnknown;
  std::string has;  ///< what is there, or why it cannot be known
};

/// One finding a rule that applies; rules of kind code are a lint's and left out.
std::vector<Finding> check(const Policy& policy, const Facts& facts,
                           const std::set<std::string>& choices);

/// -1, 0 or 1 by the leading numbers of two dotted versions ("2.11.0+cu130" is 2.11.0).
int compare_versions(std::string_view a, std::string_view b);
/// Whether a version is within ">=A,<B" (also <=, >, ==). Throws Error(kUsage) on another form.
bool in_range(std::string_view version, const std::string& range);

}  // namespace patchbench::job
