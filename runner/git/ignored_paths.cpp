#include "git/ignored_paths.h"

#include <optional>

#include "git/objects.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

/// The repository whose work tree holds a folder; null where it is in none.
std::shared_ptr<git_repository> repository_of(const fs::path& folder) {
  git_repository* found = nullptr;
  if (git_repository_open_ext(&found, folder.c_str(), 0, nullptr) != 0) return nullptr;
  std::shared_ptr<git_repository> repository(found, git_repository_free);
  return git_repository_workdir(found) == nullptr ? nullptr : repository;
}

/// One without objects whose work tree is the folder.
std::shared_ptr<git_repository> repository_at(const fs::path& folder) {
  git_odb* objects = nullptr;
  git_repository* made = nullptr;
  int code = git_odb_new(&objects);
  if (code == 0) code = git_repository_wrap_odb(&made, objects);
  git_odb_free(objects);
  if (code == 0) code = git_repository_set_workdir(made, folder.c_str(), 0);
  std::shared_ptr<git_repository> repository(made, git_repository_free);
  if (code < 0) throw Error(ErrorCode::kInternal, folder.string() + ": git cannot read it");
  return repository;
}

/// The folder from the top of a work tree, "" for the top; nullopt where it is outside.
std::optional<fs::path> below(const fs::path& folder, git_repository* repository) {
  std::error_code failed;
  const fs::path top = fs::canonical(git_repository_workdir(repository), failed);
  const fs::path inside = folder.lexically_relative(top);
  if (failed || inside.empty() || *inside.begin() == "..") return std::nullopt;
  return inside == "." ? fs::path() : inside;
}

}  // namespace

IgnoredPaths::IgnoredPaths(const fs::path& folder) : folder_(folder) {
  start_libgit2();
  const fs::path real = fs::canonical(folder);
  repository_ = repository_of(real);
  const auto inside = repository_ == nullptr ? std::nullopt : below(real, repository_.get());
  if (inside) {
    below_ = *inside;
    git_index* index = nullptr;
    if (git_repository_index(&index, repository_.get()) == 0)
      index_.reset(index, git_index_free);
    else
      repository_.reset();
    if (below_.empty() || !is_out(below_.generic_string() + "/")) return;
  }
  // What is named is read, though the repository around it leaves it out.
  below_.clear();
  index_.reset();
  repository_ = repository_at(real);
}

bool IgnoredPaths::contains(const fs::path& path, bool is_folder) const {
  const fs::path inside = below_ / path.lexically_relative(folder_);
  return is_out(inside.generic_string() + (is_folder ? "/" : ""));
}

bool IgnoredPaths::is_out(const std::string& inside) const {
  if (repository_ == nullptr) return false;
  int is_ignored = 0;
  if (git_ignore_path_is_ignored(&is_ignored, repository_.get(), inside.c_str()) < 0)
    throw Error(ErrorCode::kInternal, inside + ": git cannot say whether it is ignored");
  if (is_ignored == 0 || index_ == nullptr) return is_ignored != 0;
  return inside.ends_with('/') ? git_index_find_prefix(nullptr, index_.get(), inside.c_str()) != 0
                               : git_index_get_bypath(index_.get(), inside.c_str(), 0) == nullptr;
}

}  // namespace patchbench::git
