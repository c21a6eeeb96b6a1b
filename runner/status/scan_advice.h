#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/scan_report.h"
#include "status/verdict_table.h"

namespace patchbench {

/// Package -> the release that replaces the input's release.
using PinnedPackages = std::map<std::string, std::string>;
/// The answers of every pack to an input in which some packages are replaced.
using Rescan = std::function<std::vector<ScanAnswer>(const PinnedPackages&)>;

/// Gives every hit the newer release of its package that leaves the least (`ScanAnswer::upgrade`):
/// the fewest hits that no mitigation answers, of these the fewest hits, then the fewest unknown
/// answers, then the oldest. All packs are asked of each release, with the upgrades of the packages
/// before it in place, so that taking all of them brings no hit that `brings` does not name.
void add_upgrades(std::vector<ScanAnswer>& answers, const VerdictTable& table,
                  const Rescan& rescan);

}  // namespace patchbench
