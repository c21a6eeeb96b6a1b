#pragma once
#include <git2.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace patchbench::git {

/// Starts libgit2 once, cut off from system and user configuration.
void start_libgit2();

/// What one path of a tree holds.
struct Entry {
  std::string id;    ///< blob id; a submodule's commit
  std::string mode;  ///< "100644", "100755", "120000" (link), "160000" (submodule)
  bool operator==(const Entry&) const = default;
};
/// A whole tree, flat: path -> entry.
using Entries = std::map<std::string, Entry>;

/// A repository in the cache is damaged: an object is missing or its bytes are not what its id
/// says.
struct Damaged : Error {
  explicit Damaged(const std::string& message) : Error(ErrorCode::kIntegrity, message) {}
};

/// A conflict region of a merge, in lines of the two sides.
struct MergeConflict {
  std::vector<std::string> ours, theirs;
  int theirs_first = 0;  ///< 1-based line of `theirs` where the region starts
};
struct Merged {
  bool is_clean = false;
  std::string text;  ///< the result where it is clean
  std::vector<MergeConflict> conflicts;
};
/// Three-way merge of one file's versions, line by line (libgit2's git_merge_file). Throws
/// Error(kInternal) if libgit2 does.
Merged merge_file(std::string_view base, std::string_view ours, std::string_view theirs);

/// The object database, trees and refs of one bare repository. libgit2 runs with the user's git
/// configuration left out: nothing here depends on it. Thread-compatible.
class Objects {
 public:
  /// Opens or makes a bare repository. Throws Damaged if what is there cannot be opened.
  static Objects open(const std::filesystem::path& bare);
  /// A repository that lives in memory only.
  static Objects in_memory();

  std::string write_blob(std::string_view bytes);
  bool has(const std::string& id) const;
  /// Throws Damaged if the object is absent or its bytes do not hash to its id.
  std::string read_blob(const std::string& id) const;
  std::string write_tree(const Entries& entries);
  Entries read_tree(const std::string& id) const;
  /// A commit without an author of its own; the same arguments give the same id.
  std::string write_commit(const std::string& tree, const std::string& message);
  std::string tree_of(const std::string& commit) const;
  /// The commit that a ref names, "" without such a ref.
  std::string ref(const std::string& name) const;
  void set_ref(const std::string& name, const std::string& commit);
  /// Unified diff of two trees, three lines of context, full blob ids, prefixes a/ and b/.
  std::string diff(const std::string& from_tree, const std::string& to_tree) const;
  /// The index that makes a fresh worktree of this tree look clean to git.
  void write_index(const std::filesystem::path& file, const std::string& tree) const;

 private:
  struct Free {
    void operator()(git_repository* repo) const { git_repository_free(repo); }
  };
  explicit Objects(git_repository* repo) : repo_(repo) {}
  std::unique_ptr<git_repository, Free> repo_;
};

}  // namespace patchbench::git
