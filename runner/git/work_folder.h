#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/edit.h"
#include "git/checkout.h"

namespace patchbench::git {

/// What a folder for editing was made from; kept in its `.git/patchbench.json`.
struct WorkFolder {
  std::string slug, upstream, version;
  std::string prefix;               ///< where the package root lies in it
  std::vector<std::string> series;  ///< names of the edits that are applied
};

/// Copies a checkout into a new or empty folder as a git repository of its own, with one commit, so
/// that `git diff` there shows what is edited. Nothing is left behind on a failure. Throws
/// Error(kUsage) if the folder holds anything.
void make_work_folder(const std::filesystem::path& folder, const Checkout& checkout,
                      WorkFolder work);

/// Throws Error(kUsage) if the folder was not made by make_work_folder.
WorkFolder read_work_folder(const std::filesystem::path& folder);

/// Applies edits, in order, to the files under a user's package root: all of them or, on a throw,
/// none. Returns the paths that changed. Throws Error(kUsage) naming edit, file and both blobs
/// where a file is another one than the edit wants.
std::vector<std::string> apply_to_folder(const std::filesystem::path& package,
                                         const std::vector<Edit>& edits);

}  // namespace patchbench::git
