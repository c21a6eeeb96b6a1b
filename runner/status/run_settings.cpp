#include "status/run_settings.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/split.h"

namespace patchbench {
namespace {

std::optional<double> setting_number(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool is_absent(const std::string& value) {
  return value.empty() || value == "~" || value == "null" || value == "none" || value == "false";
}

/// Whether a setting is a value of the manifest.
bool is_value(const std::string& value, const Json& wanted) {
  if (wanted.is_null() || wanted == false || wanted == "") return is_absent(value);
  if (wanted.is_boolean()) return value == "true";
  if (wanted.is_number()) return setting_number(value) == wanted.get<double>();
  return value == lower(wanted.get<std::string>());
}

bool value_meets(const Json& spec, const std::string& value) {
  const auto is_one_of = [&](const Json& values) {
    return std::any_of(values.begin(), values.end(),
                       [&](const Json& one) { return is_value(value, one); });
  };
  if (spec.contains("unless")) return !is_one_of(spec.at("unless"));
  return !spec.contains("values") || is_one_of(spec.at("values"));
}

/// A setting that is not there, is chosen elsewhere ("auto") or has two values is open.
ConditionState named_value(const Json& spec, const RunSettings& settings) {
  const auto at = settings.find(spec.at("name").get<std::string>());
  if (at == settings.end()) return ConditionState::kOpen;
  std::set<bool> said;
  for (const std::string& value : at->second) {
    if (value == "auto") return ConditionState::kOpen;
    said.insert(value_meets(spec, value));
  }
  if (said.size() != 1) return ConditionState::kOpen;
  return *said.begin() ? ConditionState::kMet : ConditionState::kNotMet;
}

/// Nothing where the key is for files without a setting that the run has (`without`): several
/// files make the settings of one run.
std::optional<ConditionState> key_state(const Json& spec, const RunSettings& settings) {
  if (spec.contains("without") &&
      settings.contains(spec.at("without").at("name").get<std::string>()))
    return std::nullopt;
  ConditionState state = named_value(spec, settings);
  if (state == ConditionState::kNotMet) return state;
  if (spec.contains("with")) {
    const ConditionState other = named_value(spec.at("with"), settings);
    if (other == ConditionState::kNotMet) return other;
    if (other == ConditionState::kOpen) state = other;
  }
  // What meets a part alone leaves the condition open.
  return spec.value("is_part", false) ? ConditionState::kOpen : state;
}

/// Whether a call asks about nothing but settings that the keys name.
bool asks_the_same(const CodeRule& rule, const std::set<std::string>& names) {
  return rule.calls.empty() ||
         (!rule.arguments.empty() &&
          std::all_of(rule.arguments.begin(), rule.arguments.end(), [&](const Json& one) {
            return names.contains(one.at("name").get<std::string>());
          }));
}

}  // namespace

void add_setting(RunSettings& settings, const std::string& name, const std::string& text) {
  std::string key = name;
  std::replace(key.begin(), key.end(), '-', '_');
  settings[key].insert(lower(text));
}

void add_settings(RunSettings& settings, const YamlNode& node) {
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode* value = node.items[i].find("value");
    const YamlNode& own = value == nullptr ? node.items[i] : *value;
    if (own.kind == YamlNode::Kind::kScalar)
      add_setting(settings, node.keys[i], own.text);
    else if (own.kind == YamlNode::Kind::kMapping)
      settings[node.keys[i]].insert("{}");
    add_settings(settings, own);
  }
  if (node.kind != YamlNode::Kind::kSequence) return;
  for (const YamlNode& one : node.items) add_settings(settings, one);
}

ConditionState condition_of_run(const Manifest& pack, const std::string& failure_class,
                                const RunSettings& settings) {
  std::vector<const CodeRule*> rules;
  for (const Trigger& trigger : pack.triggers) {
    if (trigger.failure_class != failure_class) continue;
    for (const CodeRule& rule : trigger.code)
      if (rule.rules_out.empty()) rules.push_back(&rule);
  }
  std::set<std::string> names;
  std::set<ConditionState> states;
  for (const CodeRule* rule : rules) {
    for (const Json& spec : rule->keys) {
      names.insert(spec.at("name").get<std::string>());
      if (const auto state = key_state(spec, settings)) states.insert(*state);
    }
  }
  if (states.contains(ConditionState::kMet)) return ConditionState::kMet;
  const bool is_ruled_out =
      states == std::set{ConditionState::kNotMet} && pack.upstreams.size() == 1 &&
      std::all_of(rules.begin(), rules.end(),
                  [&](const CodeRule* rule) { return asks_the_same(*rule, names); });
  return is_ruled_out ? ConditionState::kNotMet : ConditionState::kOpen;
}

}  // namespace patchbench
