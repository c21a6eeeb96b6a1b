#pragma once
#include <string>
#include <vector>

#include "status/inventory.h"

namespace patchbench {

/// What a folder holds: as inventory_of, and of a folder that is no environment every list below
/// it, each an inventory of its own: locks, requirements, projects, conda environments,
/// Dockerfiles, scripts that install, SBOMs. Links are not followed; the caches of tools and other
/// environments are not walked. A list that cannot be read is unread, as is what is left when the
/// budget of files is spent.
std::vector<Inventory> inventories_of(const std::string& path);

}  // namespace patchbench
