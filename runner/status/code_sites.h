#pragma once
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/scan_report.h"

namespace patchbench {

/// The rules of every pack as runner/python/code_rules.py takes them: one object for each rule,
/// with the index of its pack and trigger.
Json code_rules_json(const std::vector<Manifest>& packs);

/// Adds the places that the program printed, and what it left unread. Code of a project rules
/// nothing out: what runs may not be among what was read. Error(kInternal) for what is none of it.
void add_code_sites(ScanReport& report, const std::string& printed,
                    const std::vector<Manifest>& packs, bool is_of_project);

}  // namespace patchbench
