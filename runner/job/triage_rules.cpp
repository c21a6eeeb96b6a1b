#include "job/triage_rules.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/day.h"
#include "core/json.h"
#include "core/schema.h"
#include "job/policy.h"

namespace patchbench::job {
namespace {

TriageRule triage_rule_from(const Json& json) {
  TriageRule rule;
  rule.name = json.at("name");
  rule.reason = json.at("reason");
  rule.pattern = {.text = json.value("regex", json.value("text", "")),
                  .is_regex = json.contains("regex"),
                  .name = rule.name};
  const std::string action = json.at("action");
  rule.action = action == "ignore"  ? Action::kIgnore
                : action == "alert" ? Action::kAlert
                                    : Action::kCount;
  rule.versions = json.value("versions", "");
  rule.expires = json.value("expires", "");
  rule.hang = json.value("hang", "");
  rule.bound = json.value("bound", int64_t{-1});
  rule.unless_step_jump = json.contains("unless");
  return rule;
}

/// What a schema cannot say, "" if nothing.
std::string wrong_with(const TriageRule& rule, const Json& json) {
  if (json.contains("regex") == json.contains("text")) return "a rule has either regex or text";
  if (rule.bound >= 0 && rule.action != Action::kCount) return "bound is of action count";
  if (rule.unless_step_jump && rule.action != Action::kIgnore) return "unless is of action ignore";
  if (!rule.expires.empty() && !is_day(rule.expires)) return "expires is a day, YYYY-MM-DD";
  return "";
}

}  // namespace

void TriageRules::add(std::string_view text, const std::string& path, std::string_view schema,
                      bool is_built_in) {
  JsonLines lines;
  const Json json = check_schema(text, path, schema, &lines);
  std::set<std::string> names;
  for (const TriageRule& rule : rules) names.insert(rule.name);
  for (std::size_t i = 0; i < json.at("rules").size(); ++i) {
    const Json& item = json["rules"][i];
    const std::string pointer = fmt::format("/rules/{}", i);
    TriageRule rule = triage_rule_from(item);
    rule.is_built_in = is_built_in;
    const std::string wrong = wrong_with(rule, item);
    if (!wrong.empty()) fail_at(path, lines, pointer, wrong);
    // A user's rule replaces the built-in one of the same name.
    if (!names.insert(rule.name).second) {
      if (is_built_in) continue;
      fail_at(path, lines, pointer, "a name is used twice");
    }
    if (!rule.versions.empty()) in_range("0", rule.versions);
    rules.push_back(std::move(rule));
  }
  for (const Json& item : json.value("step_time", Json::array()))
    step_times.push_back({item.at("after"), item.at("unit") == "ms" ? 1e-3 : 1.0});
}

}  // namespace patchbench::job
