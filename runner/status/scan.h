#pragma once
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/scan_report.h"
#include "status/inventory.h"
#include "status/verdict_table.h"

namespace patchbench {

/// The answers of every pack to one inventory: one for each listed version of each upstream, one
/// for each copy of its files that no listed package has, one for a pack of which nothing is there.
///
/// Files decide where they are at hand: files of exactly one measured state give its answer, files
/// with a validated edit give not_hit; others are judged by their code (status/same_code.h), and
/// code that no measured release has gives unknown. Where no files are at hand, the version
/// decides if it is a release's: never a local version ("0.19.2+abc"), nor one from git, a folder
/// or a URL (a commit that was measured decides). A hit needs the packages of its condition
/// (`requires`). What was not measured is unknown. Each hit names the release to upgrade to
/// (status/scan_advice.h).
///
/// What cannot be walked is added to the inventory's `unread`.
std::vector<ScanAnswer> answers_of(const std::vector<Manifest>& packs, const VerdictTable& table,
                                   Inventory& inventory);

/// The same without the releases to upgrade to, which take most of the time: for many inventories.
std::vector<ScanAnswer> answers_without_upgrades(const std::vector<Manifest>& packs,
                                                 const VerdictTable& table, Inventory& inventory);

/// The answers about copies of a pack's functions in the Python files at or below `path`, whatever
/// the files are called (status/function_copies.h). For a project's folder, `answers_of` has them.
std::vector<ScanAnswer> copies_in_code(const std::vector<Manifest>& packs,
                                       const VerdictTable& table, const std::string& path,
                                       Inventory& inventory);

}  // namespace patchbench
