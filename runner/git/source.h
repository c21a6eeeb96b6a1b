#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/pin.h"
#include "exec/process.h"
#include "git/objects.h"

namespace patchbench::git {

/// Where upstream trees come from and where they are kept.
struct Places {
  std::filesystem::path cache, root;
  std::filesystem::path bare(const std::string& upstream) const {
    return cache / "git" / (upstream + ".git");
  }
  std::filesystem::path checkouts(const std::string& upstream) const {
    return cache / "checkouts" / upstream;
  }
};

/// A pin's tree in the bare repository.
struct Source {
  std::string commit, tree;
  std::string prefix;  ///< "" or ends in "/"
};

/// An exclusive lock of one upstream for the object's life. Waits; says so on stderr if it has to.
class UpstreamLock {
 public:
  UpstreamLock(const Places& places, const std::string& upstream);
  ~UpstreamLock();
  UpstreamLock(const UpstreamLock&) = delete;
  UpstreamLock& operator=(const UpstreamLock&) = delete;

 private:
  int fd_ = -1;
};

/// Brings a pin's tree into the bare repository (once; a path pin's every time). The caller holds
/// the lock. `package`: the upstream's import package, "" if unknown; finds the prefix of a path
/// pin, and is all that is fetched of a git pin.
Source bring(const Pin& pin, const std::string& package, const Places& places, Objects& objects);

/// Runs git on a bare repository, the caller's own GIT_DIR and its like left out. Throws
/// Error(kNotRunnable) `<what>: <git's last line>`.
std::string run_git(const std::filesystem::path& bare, const std::vector<std::string>& arguments,
                    const std::string& what);

/// A message on stderr that stays.
void say(const std::string& text);

/// Makes a bare repository one that may lack file contents which its remote "upstream" has.
void make_partial(const std::filesystem::path& bare, const std::string& url);

/// Runs git without the variables that point it at a user's repository inside a hook or a
/// bisection. Throws Error(kNotRunnable) without git.
exec::Exit start_git(const std::vector<std::string>& arguments);

/// Where a package lies in a user's folder: "", "src/" or `known`. Throws Error(kUsage) if in none
/// of them.
std::string prefix_of_folder(const std::filesystem::path& folder, const std::string& package,
                             const std::string& known);

/// The files of a user's folder: what git tracks or would add where it is a clone, all but caches
/// elsewhere. Folder-relative paths, sorted. Throws Error(kUsage) if it is not a folder.
std::vector<std::string> files_of_folder(const std::filesystem::path& folder);

/// One file on disk as a tree holds it: a link's bytes are its target.
struct DiskFile {
  std::string bytes, mode;
};
DiskFile read_disk_file(const std::filesystem::path& path);

}  // namespace patchbench::git
