#include "status/project_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/file_text.h"
#include "core/split.h"
#include "status/listing.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxWalked = 50'000, kMaxLists = 500, kMaxCode = 20'000;
constexpr std::uintmax_t kMaxBytesRead = std::uintmax_t{128} << 20;
constexpr std::uintmax_t kMaxBytesOfCode = std::uintmax_t{4} << 20;  ///< of one file of code

bool is_any(const std::string& name, std::initializer_list<std::string_view> of) {
  return std::find(of.begin(), of.end(), name) != of.end();
}

/// Folders that hold no source of the project.
bool is_left_out(const std::string& folder) {
  const bool is_hidden = folder.starts_with(".") && !is_any(folder, {".github", ".devcontainer"});
  return is_hidden ||
         is_any(folder, {"node_modules", "__pycache__", "site-packages", "dist-packages", "venv"});
}

/// How much of a file's name says that it is a list.
enum class Likely {
  kNo,
  kScript,  ///< a script may install nothing
  kList
};

Likely likely(const std::string& of) {
  const std::string name = lower(of);
  const std::string end = name.substr(std::min(name.rfind('.'), name.size()));
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool is_yaml = end == ".yml" || end == ".yaml";
  if (is_any(name, {"uv.lock", "poetry.lock", "pdm.lock", "pipfile.lock", "pyproject.toml",
                    "setup.cfg", "setup.py", "pixi.toml", "pixi.lock", "kernels.lock",
                    "environment.yml", "environment.yaml"}) ||
      (end == ".toml" && name.starts_with("pylock")) ||
      ((end == ".txt" || end == ".in") && (has("requirement") || has("constraint"))) ||
      (is_yaml && (has("conda") || has("environment"))) || name.ends_with(".cdx.json") ||
      name.ends_with(".spdx.json") || name == "bom.json" || name.starts_with("dockerfile") ||
      name.starts_with("containerfile") || end == ".dockerfile")
    return Likely::kList;
  return is_any(end, {".sh", ".bash", ".slurm", ".sbatch", ".def"}) ? Likely::kScript : Likely::kNo;
}

/// requirements/test.txt and its like.
bool is_in_requirements(const fs::path& file) {
  const std::string folder = file.parent_path().filename().string();
  return folder == "requirements" && file.extension() == ".txt";
}

/// What runner/python/code_rules.py reads.
bool is_code(const fs::path& file) {
  return is_any(file.extension().string(),
                {".py", ".pyi", ".ipynb", ".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".cfg",
                 ".ini", ".sbatch", ".slurm"});
}

bool is_environment(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "pyvenv.cfg", none) || fs::exists(folder / "conda-meta", none);
}

/// A folder that is an environment, or those that tools keep in a folder of their own: .tox/py311,
/// .pixi/envs/default.
std::vector<fs::path> environments_at(const fs::path& folder) {
  if (is_environment(folder)) return {folder};
  std::vector<fs::path> found;
  std::error_code none;
  if (!is_any(folder.filename().string(), {".tox", ".nox", ".pixi"})) return found;
  for (const fs::path& parent : {folder, folder / "envs"})
    for (const auto& one : fs::directory_iterator(parent, none))
      if (is_environment(one.path())) found.push_back(one.path());
  std::sort(found.begin(), found.end());
  return found;
}

class ProjectFolder {
 public:
  ProjectFolder(Inventory own, const IsIgnored& is_ignored)
      : own_(std::move(own)), is_ignored_(is_ignored) {}

  std::vector<Inventory> read() {
    walk();
    std::sort(lists_.begin(), lists_.end());
    if (lists_.size() > kMaxLists)
      own_.list.leave_unread(fmt::format("{}: more than {} lists", own_.name, kMaxLists));
    lists_.resize(std::min(lists_.size(), kMaxLists));
    std::vector<Inventory> all;
    for (const auto& [file, how] : lists_) add(file.string(), how, all);
    take_code();
    if (num_ignored_ > 0)
      own_.notes.push_back(fmt::format(
          "{}: {} files and folders that .gitignore names are not read; --all reads them",
          own_.name, num_ignored_));
    own_.may_be_empty = !all.empty() || !own_.list.unread.empty() || !own_.code.empty();
    all.insert(all.begin(), std::move(own_));
    return all;
  }

 private:
  void walk() {
    std::error_code none;
    std::size_t num_entries = 0;
    auto it = fs::recursive_directory_iterator(own_.name,
                                               fs::directory_options::skip_permission_denied, none);
    for (; it != fs::recursive_directory_iterator(); it.increment(none)) {
      if (++num_entries > kMaxWalked) {
        own_.list.leave_unread(fmt::format(
            "{}: what lies behind the first {} files; name the lists", own_.name, kMaxWalked));
        own_.unread_code.push_back(
            fmt::format("{}: what lies behind the first {} files", own_.name, kMaxWalked));
        return;
      }
      if (it->is_symlink(none)) continue;
      if (it->is_directory(none)) {
        if (!enters(it->path(), it.depth())) it.disable_recursion_pending();
      } else if (it->is_regular_file(none)) {
        find(*it);
      }
    }
  }

  /// Whether a folder is read. An environment is not, and is named, ignored or not.
  bool enters(const fs::path& folder, int depth) {
    const std::string name = folder.filename().string();
    // inventory_of reads these two.
    if (depth == 0 && is_any(name, {".venv", "venv"})) return false;
    const std::vector<fs::path> environments = environments_at(folder);
    for (const fs::path& one : environments)
      own_.list.leave_unread(one.string() + ": an environment; scan it by its name");
    if (!environments.empty() || is_left_out(name)) return false;
    return !is_ignored(folder, true);
  }

  bool is_ignored(const fs::path& path, bool is_folder) {
    const bool is_out = is_ignored_ && is_ignored_(path, is_folder);
    num_ignored_ += is_out ? 1 : 0;
    return is_out;
  }

  void find(const fs::directory_entry& file) {
    const fs::path& path = file.path();
    const Likely found =
        is_in_requirements(path) ? Likely::kList : likely(path.filename().string());
    if ((found == Likely::kNo && !is_code(path)) || is_ignored(path, false)) return;
    if (found != Likely::kNo) lists_.emplace_back(path, found);
    std::error_code failed;
    const std::uintmax_t size = file.file_size(failed);
    if (is_code(path)) code_.emplace_back(path.string(), failed ? 0 : size);
  }

  /// The first files within the limits, by path.
  void take_code() {
    std::sort(code_.begin(), code_.end());
    std::uintmax_t num_bytes = 0;
    for (const auto& [file, size] : code_) {
      num_bytes += std::min(size, kMaxBytesOfCode);
      if (own_.code.size() == kMaxCode || num_bytes > kMaxBytesRead) break;
      own_.code.push_back(file);
    }
    if (own_.code.size() < code_.size())
      own_.unread_code.push_back(fmt::format(
          "{}: {} of its {} Python files and configurations, behind the first {} or "
          "{} MiB; --code reads a folder that is named",
          own_.name, code_.size() - own_.code.size(), code_.size(), kMaxCode, kMaxBytesRead >> 20));
  }

  void add(const std::string& file, Likely how, std::vector<Inventory>& all) {
    Inventory one{.name = file, .may_be_empty = true};
    try {
      const std::string text = text_in_utf8(read_plain_file(file, kMaxInputBytes), file);
      if (text.find_first_not_of(" \t\r\n") == std::string::npos) return;
      const ListKind kind = list_kind_of(text, file);
      if (how == Likely::kScript && kind != ListKind::kScript) return;
      one.list = read_list(text, kind, file, [&](const std::string& included) {
        return read_plain_file(included_by(file, included), kMaxInputBytes);
      });
    } catch (const Error& error) {
      return own_.list.leave_unread(error.what());
    }
    if (!one.list.packages.empty() || !one.list.unread.empty()) all.push_back(std::move(one));
  }

  /// A recipe may name a file from the folder in which it is used: the project's.
  std::string included_by(const std::string& file, const std::string& included) const {
    const fs::path of_project =
        fs::path(own_.name) / fs::path(included).lexically_relative(fs::path(file).parent_path());
    std::error_code none;
    return !fs::exists(included, none) && fs::exists(of_project, none) ? of_project.string()
                                                                       : included;
  }

  Inventory own_;
  const IsIgnored& is_ignored_;
  std::vector<std::pair<fs::path, Likely>> lists_;
  std::vector<std::pair<std::string, std::uintmax_t>> code_;  ///< with its bytes
  std::size_t num_ignored_ = 0;
};

}  // namespace

std::vector<Inventory> inventories_of(const std::string& path, const IsIgnored& is_ignored) {
  std::vector<Inventory> all;
  all.push_back(inventory_of(path, ""));
  if (!all.front().is_project) return all;
  return ProjectFolder(std::move(all.front()), is_ignored).read();
}

}  // namespace patchbench
