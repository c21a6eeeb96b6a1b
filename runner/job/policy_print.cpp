#include "job/policy_print.h"

#include <fmt/format.h>

#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/shell_word.h"

namespace patchbench::job {
namespace {

/// One variable to set, and the one that must be set for it to apply ("" always).
struct Setting {
  std::string name, value, when;
};

std::vector<Setting> settings_of(const Policy& policy, const std::set<std::string>& choices,
                                 const std::string& folder) {
  std::vector<Setting> list;
  for (const Rule& rule : policy.rules) {
    if (!rule.dropped.empty()) continue;
    if (!rule.when_choice.empty() && !choices.contains(rule.when_choice)) continue;
    if (!rule.variable.empty())
      list.push_back({rule.variable, rule.variable_value, rule.when_variable});
    if (rule.kind != RuleKind::kEnvironment || rule.op == "unset") continue;
    const auto text = rule.value.get<std::string>();
    list.push_back(
        {rule.target, rule.op == "folder" ? folder + "/" + text : text, rule.when_variable});
  }
  return list;
}

/// Variables that must not be set, whatever the caller's environment brings.
std::vector<std::string> unset_of(const Policy& policy) {
  std::vector<std::string> names;
  for (const Rule& rule : policy.rules) {
    if (rule.kind == RuleKind::kEnvironment && rule.op == "unset") names.push_back(rule.target);
  }
  return names;
}

std::string python_literal(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.dump();
}

std::string sh(const Policy& policy, const std::vector<Setting>& settings) {
  std::string out;
  for (const std::string& name : unset_of(policy)) out += "unset " + name + "\n";
  for (const Setting& s : settings) {
    const std::string line = fmt::format("export {}={}\n", s.name, shell_word(s.value));
    out += s.when.empty() ? line : fmt::format("[ -z \"${{{}:-}}\" ] || {}", s.when, line);
  }
  return out;
}

/// What a TaskProlog prints, Slurm puts into the task's environment. A task has SLURM_LOCALID where
/// torchrun gives LOCAL_RANK.
std::string slurm(const Policy& policy, const std::vector<Setting>& settings) {
  std::string out =
      "#!/bin/sh\n# TaskProlog: what this prints goes into the environment of each task.\n";
  for (const std::string& name : unset_of(policy)) out += "echo 'unset " + name + "'\n";
  for (const Setting& s : settings) {
    const std::string line =
        "echo " + shell_word(fmt::format("export {}={}", s.name, s.value)) + "\n";
    out += s.when == "LOCAL_RANK" ? "[ -z \"${SLURM_LOCALID:-}\" ] || " + line
           : s.when.empty()       ? line
                                  : fmt::format("[ -z \"${{{}:-}}\" ] || {}", s.when, line);
  }
  return out;
}

/// A docker env-file takes the rest of the line as it is: no quotes.
std::string docker(const std::vector<Setting>& settings) {
  std::string out;
  for (const Setting& s : settings) {
    if (!s.when.empty()) out += "# needed only where " + s.when + " is set; harmless elsewhere\n";
    out += s.name + "=" + s.value + "\n";
  }
  return out;
}

std::string python(const Policy& policy, const std::vector<Setting>& settings) {
  std::string out =
      "# Before the first import of torch: torch reads most of these once.\nimport os\n\n";
  for (const std::string& name : unset_of(policy))
    out += fmt::format("os.environ.pop({}, None)\n", Json(name).dump());
  for (const Setting& s : settings) {
    const std::string line =
        fmt::format("os.environ[{}] = {}\n", Json(s.name).dump(), Json(s.value).dump());
    out += s.when.empty()
               ? line
               : fmt::format("if os.environ.get({}):\n    {}", Json(s.when).dump(), line);
  }
  out += "\nimport torch._dynamo  # noqa: E402\n\n";
  for (const Rule& rule : policy.rules) {
    if (rule.kind == RuleKind::kTorchConfig && rule.dropped.empty())
      out += rule.target + " = " + python_literal(rule.value) + "\n";
  }
  return out;
}

std::string json(const Policy& policy, const std::vector<Setting>& settings) {
  Json out = {{"environment", Json::object()},
              {"environment_when", Json::object()},
              {"unset", unset_of(policy)},
              {"torch_config", Json::object()}};
  for (const Setting& s : settings)
    (s.when.empty() ? out["environment"] : out["environment_when"][s.when])[s.name] = s.value;
  for (const Rule& rule : policy.rules) {
    if (rule.kind == RuleKind::kTorchConfig && rule.dropped.empty())
      out["torch_config"][rule.target] = rule.value;
  }
  return out.dump(2) + "\n";
}

}  // namespace

std::string print(const Policy& policy, Format format, const std::set<std::string>& choices,
                  const std::string& folder) {
  policy.check_choices(choices);
  if (folder.find('\n') != std::string::npos || !folder.starts_with("/"))
    throw Error(ErrorCode::kUsage, "--cache " + shown(folder) + ": want an absolute path");
  const std::vector<Setting> settings = settings_of(policy, choices, folder);
  switch (format) {
    case Format::kSh:
      return sh(policy, settings);
    case Format::kDocker:
      return docker(settings);
    case Format::kSlurm:
      return slurm(policy, settings);
    case Format::kPython:
      return python(policy, settings);
    case Format::kJson:
      return json(policy, settings);
  }
  throw Error(ErrorCode::kInternal, "no such format");
}

}  // namespace patchbench::job
