#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "workbench/context.h"

namespace patchbench::cli {

/// One thing in Patchbench's own cache.
struct CacheEntry {
  std::filesystem::path path;
  std::string kind;       ///< "file", "environment", "checkout", "git", "image", "run", …
  std::string needed_by;  ///< "liger-kernel" (a release of it), "lock torch-2.11"; "" if nothing is
  uintmax_t bytes = 0;
  int days_old = 0;  ///< since it was last written
};

/// The entries of a folder; none if it is not there.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Everything in the cache, by kind and name. A file is needed by the pin or the lock that names
/// its digest, an environment by the lock whose content it has, checkouts and clones by their
/// upstream.
std::vector<CacheEntry> cache_entries(const Context& context);

/// One entry of a cache that does not hold what its name says.
struct Damage {
  std::filesystem::path entry;
  std::string reason;
};

/// Prints, and with `removes` removes, what is damaged; exit status kExitNo if anything is.
/// `command`: what removes it.
void print_damage(Context& context, const std::vector<Damage>& damaged, int checked, bool removes,
                  const std::string& command);

}  // namespace patchbench::cli
