#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/objects.h"

namespace patchbench::git {

/// A pin's tree, edits applied, as a worktree in the cache.
struct Checkout {
  std::filesystem::path path;     ///< worktree root (holds a `.git` file)
  std::filesystem::path package;  ///< path / prefix: the folder to put on PYTHONPATH
  std::string tree;               ///< git tree id of the files on disk, verified by this call
};

/// The cache of upstream trees: one bare repository per upstream (`<cache>/git/<upstream>.git`),
/// worktrees under
/// `<cache>/checkouts/<upstream>/<tree id>`. Safe for concurrent processes (a lock file per
/// upstream). Files come through `python3 <root>/env/fetch.py file …`; commits through the `git`
/// program (so the user's insteadOf, proxy and CA settings hold); all else is libgit2. A repository
/// that is found damaged is removed and filled again, which is announced on stderr.
class Store {
 public:
  Store(const std::filesystem::path& cache, const std::filesystem::path& root);

  /// The checkout of a pin with edits applied in order. Every use re-hashes the files on disk
  /// against the tree; a tampered checkout is made anew (announced on stderr). Throws
  /// Error(kNotRunnable) "upstream_unreachable: …" if a git pin or a file cannot be had,
  /// Error(kUsage) from an edit that does not apply.
  Checkout materialize(const Pin& pin, const std::vector<Edit>& edits);

  /// Bytes of a package-relative file of a pin, nullopt if there is none. No worktree is made.
  std::optional<std::string> read(const Pin& pin, const std::string& path);
  /// Every package-relative path of a pin.
  std::vector<std::string> list(const Pin& pin);
  /// The same with each file's blob id and mode.
  Entries entries(const Pin& pin);
  /// SHA-256 per package-relative file of a checkout (missing ones: "absent").
  static std::map<std::string, std::string> digests(const Checkout& checkout,
                                                    const std::vector<std::string>& files);
  /// Commits of the upstream's history that touch any of `files` after `good` up to and including
  /// `bad`, oldest first. A release is looked up by its tag (v<version>, <version>,
  /// core_v<version>, release_v<version>). History is fetched without file contents. Where `good`
  /// is not an ancestor of `bad` (release branches), the first of the list is the commit they were
  /// branched from: its state is unknown until it is measured. Throws Error(kNotRunnable)
  /// "upstream_unreachable: …", Error(kUsage) for path pins, releases without a tag and unrelated
  /// histories.
  std::vector<Pin> commits_between(const Pin& good, const Pin& bad,
                                   const std::vector<std::string>& files);

  /// env/pins.json's entry of a pin's upstream.
  Upstream upstream_of(const Pin& pin) const;

 private:
  std::filesystem::path cache_, root_;
};

/// Bytes of a package-relative file of a pin after the edits of `before`, nullopt if there is none
/// then. Throws Error(kUsage), with the edit's name in front, if one of them does not apply.
std::optional<std::string> read_after(Store& store, const Pin& pin, const std::vector<Edit>& before,
                                      const std::string& path);

}  // namespace patchbench::git
