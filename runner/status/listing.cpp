#include "status/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/json.h"
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
    // conda's own, such as _libgcc_mutex: no index has such a name.
    if (name.starts_with("_")) return;
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

/// What a conda-lock pins, for every platform.
PackageList conda_lock_packages(const YamlNode& rows, const std::string& file) {
  PackageList list;
  for (const YamlNode& row : rows.items) {
    const auto text = [&](const char* key) {
      const YamlNode* value = row.find(key);
      return value == nullptr ? "" : value->text;
    };
    if (text("name").empty() || text("version").empty())
      refuse(file, row.line, "is no package with its version");
    if (text("name").starts_with("_")) continue;
    const std::string url = text("url");
    const bool is_index = url.empty() || url.starts_with("https://files.pythonhosted.org/");
    list.add(text("name"), {.version = text("version"),
                            .source = text("manager") != "pip" ? "conda"
                                      : is_index               ? ""
                                                               : "url",
                            .file = file,
                            .line = row.line});
  }
  return list;
}

PackageList yaml_packages(std::string_view text, const std::string& file,
                          const ReadIncluded& read_included) {
  const YamlNode root = parse_yaml(text, file);
  if (const YamlNode* dependencies = root.find("dependencies"))
    return CondaEnvironment(file, read_included).read(*dependencies);
  const YamlNode* rows = root.find("package");
  if (rows != nullptr && rows->kind == YamlNode::Kind::kSequence)
    return conda_lock_packages(*rows, file);
  throw Error(ErrorCode::kUsage,
              file +
                  ": is YAML of a kind that is not read; want a conda "
                  "environment (dependencies) or a conda-lock (package); --code reads a "
                  "configuration");
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
  throw Error(ErrorCode::kUsage,
              file +
                  ": names no package; want requirements, a lock (uv, poetry, pdm, pylock, "
                  "Pipfile.lock, conda-lock), an SBOM (CycloneDX or SPDX JSON), a pyproject.toml, "
                  "a conda environment, a Dockerfile, a script that installs, or what pip list, "
                  "conda list or a report of a tool prints");
}

}  // namespace patchbench
