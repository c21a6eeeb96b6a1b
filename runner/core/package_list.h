#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench {

/// One version of a distribution, as an environment or a file lists it.
struct Listed {
  std::string version;  ///< "" where it is named without one
  /// "" from a package index. "git", "folder", "url" or "conda": the version alone does not name a
  /// release.
  std::string source;
  std::string commit;  ///< of "git", 40 hex digits; "" where it is not said
  std::string file;    ///< where it is listed
  int line = 0;        ///< of that file; 0 where there is none
  /// Folders below which its modules lie; empty for a file's entry.
  std::set<std::string> roots;
};

/// What an environment or a file lists.
struct PackageList {
  /// Distribution (name as PEP 503 normalises it) -> every entry.
  std::map<std::string, std::vector<Listed>> packages;
  /// What names a package that cannot be known: a URL, a folder, a line that is not a requirement.
  std::vector<std::string> unread;
  bool lists_all = true;  ///< what is not listed is not there
  /// Adds an entry; one without a version says nothing where the package is listed with one.
  void add(std::string_view name, Listed one);
};

/// "Liger_Kernel" -> "liger-kernel".
std::string normalised(std::string_view name);

/// The text of a file that a requirements file includes, by its path as written there.
using ReadIncluded = std::function<std::string(const std::string& path)>;

/// The most that an input may hold.
inline constexpr std::size_t kMaxInputBytes = std::size_t{64} << 20;

/// What a text lists, by its form: a lock (uv, poetry, pdm, pylock, Pipfile.lock), an SBOM
/// (CycloneDX or SPDX JSON), else requirements. Error(kUsage) `<file>[:<line>]: <reason>` if it is
/// none of them, if it cannot be parsed or if it names no Python package.
PackageList listed_packages(std::string_view text, const std::string& file,
                            const ReadIncluded& read_included);

/// What a requirement that is a URL or a folder leads to: "git", "folder" or "url".
std::string kind_of_place(std::string_view place);
/// The commit of "git+https://host/a/b@<40 hex>#egg=x"; "" without one.
std::string commit_of(std::string_view place);
/// "pkg:pypi/liger-kernel@0.8.0?vcs_url=git%2Bhttps://…" -> an entry. False where the text names no
/// Python package.
bool read_purl(std::string_view purl, std::string& name, Listed& one);

}  // namespace patchbench
