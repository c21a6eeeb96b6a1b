#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// One version of a distribution, as an environment or a file lists it.
struct Listed {
  std::string version;  ///< "" where it is named without one
  /// "" from a package index. "git", "folder" or "url": the version alone does not name a release.
  std::string source;
  auto operator<=>(const Listed&) const = default;
};

/// What an environment or a file lists.
struct Installed {
  /// Distribution (name as PEP 503 normalises it) -> every version that is listed.
  std::map<std::string, std::set<Listed>> packages;
  std::set<std::filesystem::path> folders;  ///< an environment's package folders; a file has none
  std::vector<std::string> unread;  ///< requirements that name a URL or a folder and no package
};

/// "Liger_Kernel" -> "liger-kernel".
std::string normalised(std::string_view name);

/// What an environment's dist-info folders say, nothing is run. `python` is a venv or an
/// interpreter in its bin folder. Error(kUsage) if no package folder belongs to it.
Installed installed_in(const std::filesystem::path& python);

/// What a lock file pins: a TOML lock of [[package]] tables (uv, poetry, pdm, pylock), a
/// Pipfile.lock, or a requirements file. Error(kUsage) if it is unreadable or names nothing.
Installed locked_in(const std::filesystem::path& lock);

/// What a requirements file names, the files that it includes too. Error(kUsage) as above.
Installed required_in(const std::filesystem::path& requirements);

/// SHA-256 of each package-relative file as it is installed, "absent" for one that is not there;
/// empty if none is.
std::map<std::string, std::string> installed_files(const Installed& installed,
                                                   const std::vector<std::string>& files);

}  // namespace patchbench
