#pragma once
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/scan_report.h"

namespace patchbench {

/// The rules of every pack as runner/python/code_rules.py takes them: one object for each rule,
/// with the index of its pack and trigger.
Json code_rules_json(const std::vector<Manifest>& packs);

/// What that program printed, as places in code. Error(kInternal) for what is none of it.
std::vector<CodeSite> code_sites_from(const std::string& printed,
                                      const std::vector<Manifest>& packs);

}  // namespace patchbench
