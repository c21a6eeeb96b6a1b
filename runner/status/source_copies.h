#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "status/inventory.h"

namespace patchbench {

/// One copy of an upstream's files: the folder that its package-relative paths start from.
struct SourceCopy {
  std::filesystem::path root;
  /// SHA-256 of every file of the upstream that is there; "unreadable" where it cannot be read.
  std::map<std::string, std::string> files;
  /// sha256 or "absent" of each of `wanted`; empty if none is there.
  std::map<std::string, std::string> digests(const std::vector<std::string>& wanted) const;
};

/// Every copy of each upstream below an inventory's roots: as installed, and vendored in any folder
/// below. `wanted`: upstream -> its package-relative files. What is too large to walk goes to the
/// inventory's `unread`.
std::map<std::string, std::vector<SourceCopy>> copies_in(
    Inventory& inventory, const std::map<std::string, std::set<std::string>>& wanted);

}  // namespace patchbench
