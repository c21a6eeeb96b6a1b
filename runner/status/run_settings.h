#pragma once
#include <map>
#include <set>
#include <string>

#include "core/manifest.h"
#include "core/scan_report.h"
#include "status/yaml_text.h"

namespace patchbench {

/// What a run was set to: a name, with "-" as "_", and every value that its files give it, as text:
/// "true", "none", "8". A group of settings has the value "{}".
using RunSettings = std::map<std::string, std::set<std::string>>;

/// Adds the settings in a configuration and in its groups. wandb writes a setting as a group with
/// the key `value`, which is then its value.
void add_settings(RunSettings& settings, const YamlNode& node);
void add_setting(RunSettings& settings, const std::string& name, const std::string& text);

/// Whether a run met the condition of a failure class, as the keys of its triggers say
/// (`trigger[].code`). Met: one key has a value that meets. Not met: every key that the settings
/// are for has a value that does not meet, and only these keys can meet it (the pack has one
/// upstream, and its calls are about the same names). Else open.
ConditionState condition_of_run(const Manifest& pack, const std::string& failure_class,
                                const RunSettings& settings);

}  // namespace patchbench
