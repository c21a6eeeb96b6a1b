#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "status/inventory.h"

namespace patchbench {

/// Whether .gitignore names a path below a folder.
using IsIgnored = std::function<bool(const std::filesystem::path& path, bool is_folder)>;

/// The inventory of a path. A project's folder has one more for each list below it: locks,
/// requirements, projects, conda environments, Dockerfiles, scripts that install, SBOMs; and its
/// own names the code and the configurations. Links are not followed, caches of tools are not
/// read, and other environments are named as unread. So is a list that cannot be read, and the
/// rest where there is more than the limits of files and bytes. `is_ignored` may be empty.
std::vector<Inventory> inventories_of(const std::string& path, const IsIgnored& is_ignored);

}  // namespace patchbench
