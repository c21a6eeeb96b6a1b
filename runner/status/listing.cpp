#include "status/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "core/error.h"
#include "core/git_place.h"
#include "core/json.h"
#include "core/pasted_list.h"
#include "core/requirements_file.h"
#include "status/yaml_text.h"

namespace patchbench {
namespace {

[[noreturn]] void refuse(const std::string& file, int line, const std::string& reason) {
  throw Error(ErrorCode::kUsage, fmt::format("{}:{}: {}", file, line, reason));
}

/// What a conda environment (environment.yml) asks for.
class CondaEnvironment {
 public:
  CondaEnvironment(std::string file, const ReadIncluded& read_included)
      : file_(std::move(file)), read_included_(read_included) {
    list_.lists_all = false;
  }

  PackageList read(const YamlNode& dependencies) {
    if (dependencies.kind != YamlNode::Kind::kSequence)
      refuse(file_, dependencies.line, "dependencies must be a sequence");
    for (const YamlNode& one : dependencies.items) {
      if (one.kind == YamlNode::Kind::kScalar)
        add(one);
      else if (const YamlNode* pip = one.find("pip"))
        add_pip(*pip);
      else
        list_.leave_unread(fmt::format("{}:{}: a part of dependencies", file_, one.line));
    }
    return std::move(list_);
  }

 private:
  /// conda's builds are not an index's releases.
  void add(const YamlNode& one) {
    const auto [name, version] = conda_package(one.text);
    if (is_of_conda(name)) return;
    list_.num_unpinned += version.empty() ? 1 : 0;
    list_.add(name, {.version = version, .source = "conda", .file = file_, .line = one.line});
  }

  /// pip's requirements, each at its own line.
  void add_pip(const YamlNode& pip) {
    if (pip.kind == YamlNode::Kind::kScalar && pip.text.empty()) return;
    if (pip.kind != YamlNode::Kind::kSequence) refuse(file_, pip.line, "pip must be a sequence");
    std::vector<RequirementLine> lines;
    for (const YamlNode& one : pip.items) {
      if (one.kind != YamlNode::Kind::kScalar)
        refuse(file_, one.line, "a requirement of pip must be a text");
      lines.push_back({one.text, one.line});
    }
    list_.merge(required_packages(lines, file_, read_included_));
  }

  std::string file_;
  const ReadIncluded& read_included_;
  PackageList list_;
};

/// The text of a key; "" without it.
std::string text_at(const YamlNode& row, const char* key) {
  const YamlNode* value = row.find(key);
  return value == nullptr ? "" : value->text;
}

/// What a conda-lock pins, for every platform.
PackageList conda_lock_packages(const YamlNode& rows, const std::string& file) {
  PackageList list;
  for (const YamlNode& row : rows.items) {
    const std::string name = text_at(row, "name"), version = text_at(row, "version"),
                      url = text_at(row, "url");
    if (name.empty() || version.empty()) refuse(file, row.line, "is no package with its version");
    if (is_of_conda(name)) continue;
    const bool is_index = url.empty() || url.starts_with("https://files.pythonhosted.org/");
    list.add(name, {.version = version,
                    .source = text_at(row, "manager") != "pip" ? "conda"
                              : is_index                       ? ""
                                                               : "url",
                    .file = file,
                    .line = row.line});
  }
  return list;
}

/// What a pixi.lock pins, for every environment and platform. An environment names its packages by
/// their places.
class PixiLock {
 public:
  PixiLock(const YamlNode& root, std::string file) : root_(root), file_(std::move(file)) {}

  PackageList read() {
    const YamlNode* version = root_.find("version");
    const std::string form = version == nullptr ? "" : version->text;
    if (form != "5" && form != "6")
      refuse(file_, version == nullptr ? 1 : version->line,
             fmt::format("is a pixi.lock of version {}, and 5 and 6 are read; scan the "
                         "environment, or what pip list prints in it",
                         form.empty() ? "?" : shown(form)));
    const YamlNode& rows = *root_.find("packages");
    if (rows.kind != YamlNode::Kind::kSequence)
      refuse(file_, rows.line, "packages must be a sequence");
    for (const YamlNode& row : rows.items) add(row);
    need_places(*root_.find("environments"));
    return std::move(list_);
  }

 private:
  /// 6 has "conda: PLACE" or "pypi: PLACE", 5 has "kind: pypi" with a url or a path.
  void add(const YamlNode& row) {
    const bool is_pypi = row.find("pypi") != nullptr || text_at(row, "kind") == "pypi";
    std::string place = text_at(row, is_pypi ? "pypi" : "conda");
    for (const char* key : {"url", "path"})
      if (place.empty()) place = text_at(row, key);
    if (place.empty()) refuse(file_, row.line, "is no package with its place");
    places_.insert(place);
    const auto told = is_pypi ? package_of_archive(place) : package_of_conda_url(place);
    Listed one{.version = text_at(row, "version"),
               .source = is_pypi ? kind_of_place(place) : "conda",
               .file = file_,
               .line = row.line};
    if (one.source == "git") read_git_place(place, one);
    if (place.starts_with("https://files.pythonhosted.org/")) one.source.clear();
    const std::string name = text_at(row, "name");
    if (is_of_conda(name) || (told && is_of_conda(told->first))) return;
    if (!name.empty()) list_.add(name, one);
    if (name.empty() && !told)
      list_.leave_unread(fmt::format("{}:{}: {}", file_, row.line, shown(place)));
    const bool is_same = told && normalised(told->first) == normalised(name) &&
                         is_same_version(told->second, one.version);
    if (!told || is_same) return;
    one.version = told->second;
    list_.add(told->first, std::move(one));
  }

  /// A list that does not have all of its packages is not whole.
  void need_places(const YamlNode& environments) {
    for (const YamlNode& environment : environments.items) {
      const YamlNode* platforms = environment.find("packages");
      if (platforms == nullptr) continue;
      for (const YamlNode& platform : platforms->items) {
        for (const YamlNode& one : platform.items) {
          const std::string conda = text_at(one, "conda");
          const std::string place = conda.empty() ? text_at(one, "pypi") : conda;
          if (!places_.contains(place))
            list_.leave_unread(
                fmt::format("{}:{}: {} is not among its packages", file_, one.line, shown(place)));
        }
      }
    }
  }

  const YamlNode& root_;
  std::string file_;
  std::set<std::string> places_;
  PackageList list_;
};

PackageList yaml_packages(std::string_view text, const std::string& file,
                          const ReadIncluded& read_included) {
  const YamlNode root = parse_yaml(text, file);
  if (const YamlNode* dependencies = root.find("dependencies"))
    return CondaEnvironment(file, read_included).read(*dependencies);
  const YamlNode* rows = root.find("package");
  if (rows != nullptr && rows->kind == YamlNode::Kind::kSequence)
    return conda_lock_packages(*rows, file);
  if (root.find("environments") != nullptr && root.find("packages") != nullptr)
    return PixiLock(root, file).read();
  throw Error(ErrorCode::kUsage,
              file +
                  ": is YAML of a kind that is not read; want a conda "
                  "environment (dependencies), a conda-lock (package) or a pixi.lock (environments "
                  "and packages); --code reads a configuration");
}

}  // namespace

PackageList read_list(std::string_view text, ListKind kind, const std::string& file,
                      const ReadIncluded& read_included) {
  return kind == ListKind::kYaml ? yaml_packages(text, file, read_included)
                                 : listed_packages(text, kind, file, read_included);
}

PackageList packages_in(std::string_view bytes, const std::string& file,
                        const ReadIncluded& read_included, std::optional<ListKind> kind) {
  const std::string text = text_in_utf8(bytes, file);
  PackageList found = read_list(text, kind ? *kind : list_kind_of(text, file), file, read_included);
  if (!found.packages.empty() || !found.unread.empty()) return found;
  throw Error(
      ErrorCode::kUsage,
      file +
          ": names no package; want requirements, a lock (uv, poetry, pdm, pylock, "
          "Pipfile.lock, conda-lock, Pixi), an SBOM (CycloneDX or SPDX JSON), a pyproject.toml, "
          "a conda environment, a Dockerfile, a script that installs, or what pip list, "
          "conda list or a report of a tool prints");
}

}  // namespace patchbench
