#include "status/project_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/file_text.h"
#include "status/listing.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxWalked = 50'000, kMaxLists = 500;

bool is_any(const std::string& name, std::initializer_list<std::string_view> of) {
  return std::find(of.begin(), of.end(), name) != of.end();
}

/// Folders that hold no source of the project. inventory_of reads .venv and venv of the folder.
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

Likely likely(const std::string& name) {
  const std::string lower = [&] {
    std::string out = name;
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
  }();
  const std::string end = lower.substr(std::min(lower.rfind('.'), lower.size()));
  const auto has = [&](const char* part) { return lower.find(part) != std::string::npos; };
  const bool is_yaml = end == ".yml" || end == ".yaml";
  if (is_any(lower, {"uv.lock", "poetry.lock", "pdm.lock", "pipfile.lock", "pyproject.toml",
                     "setup.cfg", "setup.py", "environment.yml", "environment.yaml"}) ||
      (end == ".toml" && lower.starts_with("pylock")) ||
      ((end == ".txt" || end == ".in") && (has("requirement") || has("constraint"))) ||
      (is_yaml && (has("conda") || has("environment"))) || lower.ends_with(".cdx.json") ||
      lower.ends_with(".spdx.json") || lower == "bom.json" || lower.starts_with("dockerfile") ||
      lower.starts_with("containerfile") || end == ".dockerfile")
    return Likely::kList;
  return is_any(end, {".sh", ".bash", ".slurm", ".sbatch", ".def"}) ? Likely::kScript : Likely::kNo;
}

/// requirements/test.txt and its like.
bool is_in_requirements(const fs::path& file) {
  const std::string folder = file.parent_path().filename().string();
  return folder == "requirements" && file.extension() == ".txt";
}

class ProjectFolder {
 public:
  explicit ProjectFolder(Inventory own) : own_(std::move(own)) {}

  std::vector<Inventory> read() {
    std::error_code none;
    std::size_t num_entries = 0;
    auto it = fs::recursive_directory_iterator(own_.name,
                                               fs::directory_options::skip_permission_denied, none);
    std::vector<std::pair<fs::path, Likely>> files;
    for (; it != fs::recursive_directory_iterator(); it.increment(none)) {
      if (++num_entries > kMaxWalked) {
        own_.list.leave_unread(fmt::format(
            "{}: what lies behind the first {} files; name the lists", own_.name, kMaxWalked));
        break;
      }
      const std::string name = it->path().filename().string();
      if (it->is_symlink(none)) continue;
      if (it->is_directory(none)) {
        if (is_left_out(name)) it.disable_recursion_pending();
        continue;
      }
      const Likely found = is_in_requirements(it->path()) ? Likely::kList : likely(name);
      if (found != Likely::kNo && it->is_regular_file(none)) files.emplace_back(it->path(), found);
    }
    std::sort(files.begin(), files.end());
    if (files.size() > kMaxLists)
      own_.list.leave_unread(fmt::format("{}: more than {} lists", own_.name, kMaxLists));
    files.resize(std::min(files.size(), kMaxLists));
    std::vector<Inventory> all;
    for (const auto& [file, how] : files) add(file.string(), how, all);
    own_.may_be_empty = !all.empty() || !own_.list.unread.empty();
    all.insert(all.begin(), std::move(own_));
    return all;
  }

 private:
  void add(const std::string& file, Likely how, std::vector<Inventory>& all) {
    Inventory one{.name = file, .may_be_empty = true};
    try {
      const std::string text = text_in_utf8(read_plain_file(file, kMaxInputBytes), file);
      if (text.find_first_not_of(" \t\r\n") == std::string::npos) return;
      const ListKind kind = list_kind_of(text, file);
      if (how == Likely::kScript && kind != ListKind::kScript) return;
      one.list = read_list(text, kind, file, [](const std::string& included) {
        return read_plain_file(included, kMaxInputBytes);
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
};

}  // namespace

std::vector<Inventory> inventories_of(const std::string& path) {
  std::vector<Inventory> all;
  all.push_back(inventory_of(path, ""));
  if (!all.front().is_project) return all;
  return ProjectFolder(std::move(all.front())).read();
}

}  // namespace patchbench
