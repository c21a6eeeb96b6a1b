#pragma once
#include <filesystem>
#include <memory>
#include <string>

struct git_index;
struct git_repository;

namespace patchbench::git {

/// What the .gitignore files of a folder and of the folders above and below it leave out, as git
/// reads them. In a folder of no repository, and in one that its repository leaves out, the files
/// below it alone count.
class IgnoredPaths {
 public:
  /// Error(kInternal) if libgit2 cannot say.
  explicit IgnoredPaths(const std::filesystem::path& folder);
  /// Whether git would leave out a path below the folder. A file that the repository tracks is
  /// not left out, nor is a folder that holds one, nor anything where the index cannot be read.
  bool contains(const std::filesystem::path& path, bool is_folder) const;

 private:
  /// `inside`: from the top of the work tree; a folder ends with a slash.
  bool is_out(const std::string& inside) const;
  std::filesystem::path folder_;                ///< as it was named
  std::filesystem::path below_;                 ///< the same, from the top of the work tree
  std::shared_ptr<git_repository> repository_;  ///< null where its index cannot be read
  std::shared_ptr<git_index> index_;  ///< what is tracked; null in a folder of no repository
};

}  // namespace patchbench::git
