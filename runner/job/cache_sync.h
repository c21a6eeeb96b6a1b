#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace patchbench::job {

/// Why code that will be run must not lie in a folder: "" if only this user (and root) can write to
/// it and to its parents, and this process can. A folder that is not there is judged by its
/// nearest parent.
std::string unfit_destination(const std::filesystem::path& folder);

struct SyncReport {
  int64_t num_copied = 0, num_matched = 0, bytes = 0;
  std::vector<std::string> left_out;  ///< "path: why"
};

/// Brings every file of a compile cache (inductor, Triton, TileLang) to another folder: contents
/// are compared by SHA-256, each file appears whole or not at all, whatever kills this process, and
/// the index of a Triton entry after what it names, its paths rewritten to the destination. Locks
/// and files that a compiler still writes are left out. Any number may run at once.
/// Throws Error(kUsage) on a source that is none, Error(kNotRunnable) on an unfit destination.
SyncReport sync_cache(const std::filesystem::path& source,
                      const std::filesystem::path& destination);

}  // namespace patchbench::job
