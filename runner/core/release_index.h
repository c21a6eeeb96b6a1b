#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/pin.h"

namespace patchbench {

/// A final or post release as numbers that compare in the order of PEP 440: 0.5.10 comes after
/// 0.5.9, 1.0 equals 1.0.0. nullopt for a pre-release, a dev release or other text.
std::optional<std::vector<int>> release_key(const std::string& version);

/// What one file of the package index is, read from its name.
struct IndexFileName {
  enum class Kind { kSdist, kPureWheel, kPlatformWheel };
  Kind kind = Kind::kSdist;
  std::string version;
  std::string python, abi, platform;  ///< the tags of a wheel
};

/// nullopt if the name is neither a wheel nor an sdist of `project`. Projects compare as PEP 503
/// says: `transformer_engine` and `transformer-engine` are the same.
std::optional<IndexFileName> parse_index_file_name(const std::string& file,
                                                   const std::string& project);

/// A release that can be locked: a file of a usable kind is on the index and not yanked.
struct LockableRelease {
  std::string version, date, file, sha256;
  bool is_hole = false;  ///< older than the newest locked release, by version and by day
};

/// A release that is neither locked nor left out, and for which no line can be proposed.
struct UnlockableRelease {
  std::string version, date;  ///< date: empty if the index has no file of the release
  std::string reason;         ///< "yanked: <the index's reason>" or "no usable file: it has …"
};

/// A locked release that the index has yanked. It stays locked: its records are evidence.
struct YankedLock {
  std::string version, reason;
};

/// What the index says of the releases of one upstream.
struct IndexComparison {
  std::string from;                           ///< the oldest locked version
  std::vector<LockableRelease> lockable;      ///< in the order of env/pins.json
  std::vector<UnlockableRelease> unlockable;  ///< oldest first
  std::vector<YankedLock> yanked;             ///< in the order of env/pins.json
  bool is_complete() const { return lockable.empty() && unlockable.empty(); }
};

/// Compares the locks with a PEP 691 page. Looked at are the final and post releases that are
/// newer than the oldest locked one by version, or newer than the newest locked one by day.
/// Usable is the kind of file of the newest locked release: an sdist, a pure wheel, or a wheel that
/// CPython 3.11 (the base image's) loads on x86-64 Linux. `upstream` must have a release. Throws
/// Error(kUsage) for a malformed page.
IndexComparison compare_with_index(const Upstream& upstream, const Json& page);

/// `text` of env/pins.json with one line a release, each where the order by day and version puts
/// it. Throws Error(kUsage) if a release of the upstream is not an object on a line of its own.
std::string with_lock_lines(std::string text, const Upstream& upstream,
                            const std::vector<LockableRelease>& releases);

/// The line of one release in env/pins.json, without comma and indent.
std::string lock_line(const LockableRelease& release);

}  // namespace patchbench
