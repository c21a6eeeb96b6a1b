#include "job/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/schema.h"
#include "core/slug.h"

namespace patchbench::job {
namespace {

RuleKind kind_from(const std::string& name) {
  if (name == "torch_config") return RuleKind::kTorchConfig;
  if (name == "package") return RuleKind::kPackage;
  if (name == "driver") return RuleKind::kDriver;
  return name == "code" ? RuleKind::kCode : RuleKind::kEnvironment;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Rule rule_from(const Json& json) {
  Rule rule;
  rule.name = json.at("name");
  rule.kind = kind_from(json.at("kind"));
  rule.target = json.at("target");
  rule.why = json.at("why");
  rule.cost = json.value("cost", "");
  rule.was = json.value("was", "");
  rule.dropped = json.value("dropped", "");
  rule.since = json.at("since");
  rule.source = json.at("source");
  const Json expect = json.value("expect", Json::object());
  for (const auto& [op, value] : expect.items()) {
    rule.op = op;
    rule.value = value;
  }
  if (json.contains("variable")) {
    rule.variable = json["variable"].at("name");
    rule.variable_value = json["variable"].at("value");
  }
  if (json.contains("when")) {
    rule.when_variable = json["when"].value("variable", "");
    rule.when_choice = json["when"].value("choice", "");
  }
  return rule;
}

/// What a schema cannot say: names in order, each rule with one of expect and dropped.
void check_rules(const Json& rules, const std::string& path, const JsonLines& lines) {
  std::string before;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const std::string pointer = fmt::format("/rules/{}", i);
    const std::string name = rules[i].at("name");
    if (name <= before) fail_at(path, lines, pointer, "rules are sorted by name, each name once");
    if (rules[i].contains("expect") == rules[i].contains("dropped"))
      fail_at(path, lines, pointer, "a rule has either expect or dropped");
    if (rules[i].contains("expect") && rules[i]["expect"].contains("range"))
      in_range("0", rules[i]["expect"]["range"]);
    before = name;
  }
}

/// Whether a value is what the rule wants; all but ranges.
bool holds(const Rule& rule, const Json& has) {
  if (rule.op == "equals") return has == rule.value;
  if (rule.op == "contains")
    return text_of(has).find(rule.value.get<std::string>()) != std::string::npos;
  if (rule.op == "folder") return text_of(has).starts_with("/");
  return false;
}

std::optional<std::string> variable_of(const Facts& facts, const std::string& name) {
  const auto found = facts.environment->find(name);
  if (found == facts.environment->end()) return std::nullopt;
  return found->second;
}

Finding check_environment(const Rule& rule, const Facts& facts) {
  if (!facts.environment) return {&rule, State::kUnknown, "its environment cannot be read"};
  std::optional<std::string> has = variable_of(facts, rule.target);
  if (!has && !rule.was.empty()) has = variable_of(facts, rule.was);
  if (!rule.dropped.empty()) {
    if (!has) return {&rule, State::kOk, "not set"};
    return {&rule, State::kDiffers, *has + ", without effect"};
  }
  if (rule.op == "unset")
    return {&rule, !has || has->empty() ? State::kOk : State::kDiffers, has.value_or("not set")};
  if (!has) return {&rule, State::kMissing, "not set"};
  return {&rule, holds(rule, *has) ? State::kOk : State::kDiffers, *has};
}

Finding check_config(const Rule& rule, const Facts& facts) {
  if (facts.config) {
    const Json has = facts.config->value(rule.target, Json("absent"));
    if (has == "absent") return {&rule, State::kUnknown, "this torch has no such line"};
    return {&rule, holds(rule, has) ? State::kOk : State::kDiffers, text_of(has)};
  }
  if (facts.environment && !rule.variable.empty()) {
    const std::optional<std::string> has = variable_of(facts, rule.variable);
    if (has == rule.variable_value) return {&rule, State::kOk, rule.variable + "=" + *has};
    if (has) return {&rule, State::kDiffers, rule.variable + "=" + *has};
  }
  return {&rule, State::kUnknown, "--python asks a torch"};
}

Finding check_range(const Rule& rule, const std::optional<std::string>& has,
                    const std::string& unknown) {
  if (!has) return {&rule, State::kUnknown, unknown};
  if (has->empty()) return {&rule, State::kMissing, "not installed"};
  const bool is_in = in_range(*has, rule.value.get<std::string>());
  return {&rule, is_in ? State::kOk : State::kDiffers, *has};
}

std::optional<std::string> package_of(const Facts& facts, const std::string& name) {
  if (!facts.packages) return std::nullopt;
  const auto found = facts.packages->find(name);
  return found == facts.packages->end() ? "" : found->second;
}

}  // namespace

std::string Rule::wanted() const {
  if (!dropped.empty()) return "not set (dropped)";
  if (op == "equals" || op == "range") return text_of(value);
  if (op == "folder") return "an absolute path";
  if (op == "unset") return "unset";
  if (op == "at_most") return value == 0 ? "no site" : fmt::format("at most {} site", value.dump());
  return "contains " + text_of(value);
}

Policy Policy::parse(std::string_view text, const std::string& path, std::string_view schema) {
  JsonLines lines;
  const Json json = check_schema(text, path, schema, &lines);
  check_rules(json.at("rules"), path, lines);
  Policy policy;
  for (const Json& rule : json["rules"]) policy.rules.push_back(rule_from(rule));
  const Json& budgets = json.at("budgets");
  policy.budgets = {budgets.at("graph_breaks_per_site"), budgets.at("graph_breaks_per_rank"),
                    budgets.at("recompiles_per_site"), budgets.at("jump_window_steps"),
                    budgets.at("step_time_jump")};
  return policy;
}

const Rule& Policy::rule(const std::string& name) const {
  std::vector<std::string> names;
  for (const Rule& rule : rules) {
    if (rule.name == name) return rule;
    names.push_back(rule.name);
  }
  throw Error(ErrorCode::kUsage,
              "no rule \"" + shown(name) + "\"" + did_you_mean(shown(name), names));
}

void Policy::check_choices(const std::set<std::string>& choices) const {
  std::vector<std::string> known;
  for (const Rule& rule : rules) {
    const bool is_new = std::find(known.begin(), known.end(), rule.when_choice) == known.end();
    if (!rule.when_choice.empty() && is_new) known.push_back(rule.when_choice);
  }
  for (const std::string& choice : choices) {
    if (std::find(known.begin(), known.end(), choice) == known.end())
      throw Error(ErrorCode::kUsage, "--with " + shown(choice) + ": no rule waits for it" +
                                         did_you_mean(shown(choice), known));
  }
}

std::string state_name(State state) {
  switch (state) {
    case State::kOk:
      return "ok";
    case State::kMissing:
      return "missing";
    case State::kDiffers:
      return "differs";
    case State::kUnknown:
      return "unknown here";
  }
  return "";
}

std::vector<Finding> check(const Policy& policy, const Facts& facts,
                           const std::set<std::string>& choices) {
  std::vector<Finding> found;
  const std::optional<std::string> torch = package_of(facts, "torch");
  for (const Rule& rule : policy.rules) {
    if (rule.kind == RuleKind::kCode) continue;
    if (!rule.when_choice.empty() && !choices.contains(rule.when_choice)) continue;
    if (!rule.when_variable.empty() && facts.environment &&
        !facts.environment->contains(rule.when_variable))
      continue;
    if (torch && !torch->empty() && rule.kind != RuleKind::kDriver &&
        compare_versions(*torch, rule.since) < 0) {
      found.push_back({&rule, State::kUnknown, "checked from torch " + rule.since + " on"});
    } else if (rule.kind == RuleKind::kEnvironment) {
      found.push_back(check_environment(rule, facts));
    } else if (rule.kind == RuleKind::kTorchConfig) {
      found.push_back(check_config(rule, facts));
    } else if (rule.kind == RuleKind::kPackage) {
      found.push_back(
          check_range(rule, package_of(facts, rule.target), "--python asks an environment"));
    } else {
      found.push_back(check_range(rule, facts.driver, "no NVIDIA driver here"));
    }
  }
  return found;
}

int compare_versions(std::string_view a, std::string_view b) {
  const auto next = [](std::string_view& text) {
    int64_t number = 0;
    std::size_t i = 0;
    for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0; ++i)
      number = std::min<int64_t>(number * 10 + (text[i] - '0'), 1'000'000'000);
    // A suffix (rc1, +cu130) ends the numbers.
    text = i < text.size() && text[i] == '.' ? text.substr(i + 1) : std::string_view();
    return number;
  };
  while (!a.empty() || !b.empty()) {
    const int64_t left = next(a), right = next(b);
    if (left != right) return left < right ? -1 : 1;
  }
  return 0;
}

bool in_range(std::string_view version, const std::string& range) {
  for (std::size_t at = 0; at <= range.size();) {
    const std::size_t end = std::min(range.find(',', at), range.size());
    const std::string part = range.substr(at, end - at);
    const std::size_t digits = part.find_first_of("0123456789");
    const std::string op = part.substr(0, digits);
    const int order = digits == std::string::npos
                          ? 0
                          : compare_versions(version, std::string_view(part).substr(digits));
    if (digits == std::string::npos ||
        (op != ">=" && op != "<=" && op != ">" && op != "<" && op != "=="))
      throw Error(ErrorCode::kUsage, "range \"" + shown(range) + "\": want >=A,<B");
    const bool is_in = op == "=="   ? order == 0
                       : order == 0 ? op.size() == 2
                                    : (order > 0) == (op.front() == '>');
    if (!is_in) return false;
    at = end + 1;
  }
  return true;
}

}  // namespace patchbench::job
