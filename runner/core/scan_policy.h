#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/scan_report.h"

namespace patchbench {

/// One [[ignore]] of .patchbench.toml.
struct IgnoredPack {
  std::string pack, reason, until;  ///< `until`: a day, the last on which it acts
  int line = 0;
};

/// The entries of a .patchbench.toml. `slugs`: the packs that there are. Error(kUsage)
/// `<file>:<line>: <reason>` for an unknown key or pack, a missing value and a day that is none.
std::vector<IgnoredPack> ignored_packs(std::string_view text, const std::string& file,
                                       const std::vector<std::string>& slugs);

/// Marks the answers and places of ignored packs; an entry that has expired does not act, and a
/// note names it. `today`: YYYY-MM-DD.
void apply_ignored(ScanReport& report, const std::vector<IgnoredPack>& entries,
                   const std::string& file, const std::string& today);

/// Ignores the places in code that a comment on their line names with a reason. A comment without a
/// reason, or with a pack that is none of `slugs`, ignores nothing, and a note names it.
void apply_comments(ScanReport& report, const std::vector<std::string>& slugs);

/// Marks the answers of which an OpenVEX document says `not_affected` or `fixed`, for the same
/// vulnerability and product (`report/scan_vex.h` writes both). A product without a version is
/// every version of its package. Error(kUsage) `<file>: <reason>` for anything but an OpenVEX
/// document, and for `not_affected` without a justification or an impact statement.
void apply_vex(ScanReport& report, std::string_view text, const std::string& file);

}  // namespace patchbench
