#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace patchbench {

/// One version of a distribution, as an environment or a file lists it.
struct Listed {
  std::string version;  ///< "" where it is named without one
  std::string range;    ///< ">=0.5,<1" where that is asked for in place of a version
  /// "" from a package index. "git", "folder", "url" or "conda": the version alone does not name a
  /// release.
  std::string source;
  std::string commit;      ///< of "git", 40 hex digits; "" where it is not said
  std::string repository;  ///< of "git", "github.com/owner/name" in lower case; "" as above
  std::string tag;         ///< of "git", the tag or branch that is asked for; "" as above
  std::string file;        ///< where it is listed
  int line = 0;            ///< of that file; 0 where there is none
  /// Folders below which its modules lie; empty for a file's entry.
  std::set<std::string> roots;
};

/// What an environment or a file lists. Where it contradicts itself (two versions in one METADATA,
/// a file name against the version that names it) each claim is an entry: one that is a hit is
/// seen.
struct PackageList {
  /// Distribution (name as PEP 503 normalises it) -> every entry.
  std::map<std::string, std::vector<Listed>> packages;
  /// What names a package that cannot be known: a URL, a folder, a line that is not understood.
  std::vector<std::string> unread;
  /// Of `unread` the places in git without a name, which their repository may tell.
  std::vector<std::pair<std::string, Listed>> unnamed;
  std::size_t num_unpinned =
      0;  ///< requirements without a version; what they bring in is not known
  /// What is not listed is not there. Never with something unread, of requirements, which name what
  /// somebody asked for, or of an SBOM, which lists what its maker recognised: neither says that it
  /// is whole.
  bool lists_all = true;
  /// Adds an entry. What has no name that a package can have is unread.
  void add(std::string_view name, Listed one);
  void leave_unread(std::string_view what);
  void leave_unnamed(std::string_view place, Listed one);
  /// Adds what another list has, which is of the same input.
  void merge(const PackageList& other);
};

/// The range of a requirement that takes any version.
inline constexpr const char* kAnyVersion = ">=0";
/// The unread line of requirements without a version.
std::string unpinned_text(std::size_t num_unpinned);

/// "Liger_Kernel" -> "liger-kernel".
std::string normalised(std::string_view name);
/// Name and version that conda is asked for: "channel::name=1.2=build", "name >=1.2". The version
/// is "" where it is none.
std::pair<std::string, std::string> conda_package(std::string_view spec);
/// Whether a package index can have a package of this name (PEP 508).
bool is_package_name(std::string_view name);
/// Whether two versions are one as PEP 440 compares, local parts too.
bool is_same_version(const std::string& a, const std::string& b);

/// The text of a file that a requirements file includes, by its path as written there.
using ReadIncluded = std::function<std::string(const std::string& path)>;

/// The most that an input may hold.
inline constexpr std::size_t kMaxInputBytes = std::size_t{64} << 20;

/// The kinds of text that list packages. YAML is read by status/listing.h.
enum class ListKind {
  kJson,
  kLock,
  kProject,
  kSetup,
  kSetupProgram,
  kCondaList,
  kPipList,
  kReport,
  kScript,
  kYaml,
  kRequirements
};
/// "json", "lock", "pyproject", "setup.cfg", "setup.py", "conda-list", "pip-list", "report",
/// "script", "yaml", "requirements", in that order.
const std::vector<std::string>& list_kind_names();
ListKind list_kind_named(const std::string& name);
/// The kind of a text by its form. Error(kUsage) for one that no reader takes.
ListKind list_kind_of(std::string_view text, const std::string& file);

/// What a text of UTF-8 lists: JSON (an SBOM in CycloneDX or SPDX, a Pipfile.lock, what `pip list`
/// and `conda list` write), a lock in TOML (uv, poetry, pdm, pylock), a project
/// (core/project_file.h), what tools print (core/pasted_list.h), what installs
/// (core/install_script.h), requirements. Error(kUsage) `<file>[:<line>]: <reason>` if it is not of
/// that kind or cannot be parsed.
PackageList listed_packages(std::string_view text, ListKind kind, const std::string& file,
                            const ReadIncluded& read_included);

/// A text without its byte order mark, in UTF-8 where it was UTF-16. Error(kUsage) where it is
/// longer than kMaxInputBytes or holds zero characters.
std::string text_in_utf8(std::string_view text, const std::string& file);

/// "%41" -> "A".
std::string percent_decoded(std::string_view text);
/// What a requirement that is a URL or a folder leads to: "git", "folder" or "url".
std::string kind_of_place(std::string_view place);
/// The commit of "git+https://host/a/b@<40 hex>#egg=x"; "" without one.
std::string commit_of(std::string_view place);
/// Whether a path or a URL ends as an archive that pip installs.
bool is_archive(std::string_view place);
/// Name and version that the file name of a wheel or an sdist tells; nullopt for other names.
std::optional<std::pair<std::string, std::string>> package_of_archive(std::string_view place);

/// A package URL.
struct PackageUrl {
  std::string type, name, version;  ///< type in lower case; name without its namespace
  std::string source, commit;       ///< as of Listed
};
/// "pkg:pypi/liger-kernel@0.8.0?vcs_url=git%2Bhttps://…"; nullopt for another text.
std::optional<PackageUrl> parse_package_url(std::string_view purl);

}  // namespace patchbench
