#pragma once
#include <string>
#include <vector>

#include "status/inventory.h"

namespace patchbench {

/// The inventory of a path. A project's folder has one more for each list below it: locks,
/// requirements, projects, conda environments, Dockerfiles, scripts that install, SBOMs. Links are
/// not followed, and caches of tools and other environments are not read. A list that cannot be
/// read is unread. So is the rest when there are more files than the limit.
std::vector<Inventory> inventories_of(const std::string& path);

}  // namespace patchbench
