#include "core/software_bill.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/lock_file.h"
#include "core/schema.h"

namespace patchbench {
namespace {

/// The types of package URLs whose packages pip, uv and conda do not install. Of every other one
/// (generic, github, huggingface, a type that is not known) the name may be a Python package's.
bool is_of_others(const std::string& type) {
  static const std::set<std::string> kOthers = {"alpm",      "apk",
                                                "bitnami",   "cargo",
                                                "cocoapods", "composer",
                                                "cpan",      "cran",
                                                "deb",       "gem",
                                                "golang",    "hackage",
                                                "hex",       "maven",
                                                "npm",       "nuget",
                                                "opam",      "pub",
                                                "qpkg",      "rpm",
                                                "swift",     "vscode-extension",
                                                "wordpress"};
  return kOthers.contains(type);
}

/// Reads one SBOM. What a component says of itself (name and version, each package URL, its
/// bom-ref) is an entry each, so that a contradiction hides nothing.
class Bill {
 public:
  Bill(const JsonLines& lines, std::string file) : lines_(lines), file_(std::move(file)) {
    list_.lists_all = false;
  }

  void read_components(const Json& rows, const std::string& pointer) {
    if (!rows.is_array()) fail(pointer, "must be an array");
    for (std::size_t i = 0; i < rows.size(); ++i)
      read_component(rows[i], pointer + "/" + std::to_string(i));
  }

  void read_component(const Json& row, const std::string& pointer) {
    static const std::set<std::string> kNoPackages = {
        "operating-system",    "device",  "device-driver", "firmware", "file", "data", "container",
        "cryptographic-asset", "platform"};
    if (!row.is_object()) fail(pointer, "must be an object");
    std::vector<std::string> purls = {text(row, "purl", pointer)};
    const std::string ref = text(row, "bom-ref", pointer);
    refs_.insert(ref);
    purls.push_back(ref);
    const Json evidence = row.value("evidence", Json());
    const Json identities = evidence.is_object() ? evidence.value("identity", Json()) : Json();
    for (const Json& one : identities.is_array() ? identities : Json::array({identities})) {
      if (one.is_object() && one.value("concludedValue", Json()).is_string())
        purls.push_back(one.at("concludedValue"));
    }
    const bool is_changed =
        row.value("modified", Json(false)) == Json(true) || row.contains("pedigree");
    if (kNoPackages.contains(text(row, "type", pointer))) erase_empty(purls);
    const bool is_named = !kNoPackages.contains(text(row, "type", pointer)) || !purls.empty();
    if (is_named)
      add({.name = text(row, "name", pointer),
           .version = text(row, "version", pointer),
           .source = is_changed ? "folder" : ""},
          purls, pointer);
    if (row.contains("components")) read_components(row.at("components"), pointer + "/components");
  }

  /// CycloneDX: a reference of the dependency graph may name what no component describes.
  void read_dependencies(const Json& rows) {
    if (!rows.is_array()) fail("/dependencies", "must be an array");
    for (const Json& row : rows) {
      if (!row.is_object()) fail("/dependencies", "must hold objects");
      const Json others = row.value("dependsOn", Json::array());
      std::vector<Json> refs(others.begin(), others.end());
      refs.push_back(row.value("ref", Json()));
      for (const Json& ref : refs) {
        if (!ref.is_string() || refs_.contains(ref.get<std::string>())) continue;
        const auto purl = parse_package_url(ref.get<std::string>());
        if (purl) add_url(*purl, "", "/dependencies");
      }
    }
  }

  /// SPDX 2.
  void read_packages(const Json& rows) {
    if (!rows.is_array()) fail("/packages", "must be an array");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string here = "/packages/" + std::to_string(i);
      if (!rows[i].is_object()) fail(here, "must be an object");
      const std::string place = text(rows[i], "downloadLocation", here);
      add({.name = text(rows[i], "name", here),
           .version = text(rows[i], "versionInfo", here),
           .source = place.starts_with("git+") ? "git" : "",
           .commit = place.starts_with("git+") ? commit_of(place) : ""},
          purls_in(rows[i], "externalRefs", "referenceLocator"), here);
    }
  }

  /// SPDX 3: the type of an element may be a compact or a whole IRI.
  void read_graph(const Json& rows) {
    if (!rows.is_array()) fail("/@graph", "must be an array");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string here = "/@graph/" + std::to_string(i);
      if (!rows[i].is_object()) fail(here, "must be an object");
      std::vector<std::string> purls = purls_in(rows[i], "externalIdentifier", "identifier");
      purls.push_back(text(rows[i], "software_packageUrl", here));
      const Json types = rows[i].value("type", rows[i].value("@type", Json()));
      bool is_package = !purls.back().empty();
      for (const Json& type : types.is_array() ? types : Json::array({types}))
        is_package |= type.is_string() && type.get<std::string>().ends_with("Package");
      if (is_package)
        add({.name = text(rows[i], "name", here),
             .version = text(rows[i], "software_packageVersion", here)},
            purls, here);
    }
  }

  PackageList found() {
    if (list_.packages.empty() && list_.unread.empty()) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("{}: holds {} components, and none is a Python package; make the SBOM "
                      "of the environment that trains",
                      file_, count_));
    }
    return std::move(list_);
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, const std::string& reason) const {
    fail_at(file_, lines_, pointer, reason);
  }

  /// The text under a key; "" without one.
  std::string text(const Json& row, const char* key, const std::string& pointer) const {
    if (!row.contains(key) || row.at(key).is_null()) return "";
    if (!row.at(key).is_string()) fail(pointer, std::string(key) + " must be a text");
    return row.at(key);
  }

  static void erase_empty(std::vector<std::string>& purls) {
    std::erase_if(purls, [](const std::string& one) { return !parse_package_url(one); });
  }

  /// The package URLs in the objects of an array.
  static std::vector<std::string> purls_in(const Json& row, const char* rows, const char* key) {
    std::vector<std::string> purls;
    const Json others = row.value(rows, Json());
    for (const Json& one : others.is_array() ? others : Json::array()) {
      if (one.is_object() && one.value(key, Json()).is_string()) purls.push_back(one.at(key));
    }
    return purls;
  }

  void add_entry(const PackageUrl& one, const std::string& pointer) {
    const auto line = lines_.find(pointer);
    list_.add(one.name, {.version = one.version,
                         .source = one.source,
                         .commit = one.commit,
                         .file = file_,
                         .line = line == lines_.end() ? 0 : line->second});
  }

  /// `source`: of the component, where its URL names none.
  void add_url(PackageUrl purl, const std::string& source, const std::string& pointer) {
    if (is_of_others(purl.type)) return;
    if (purl.source.empty()) purl.source = source;
    if (purl.type == "pypi" || is_package_name(purl.name)) add_entry(purl, pointer);
  }

  /// `own`: the component's own name and version.
  void add(PackageUrl own, std::vector<std::string> purls, const std::string& pointer) {
    ++count_;
    erase_empty(purls);
    bool is_python = false, is_other = false;
    for (const std::string& text : purls) {
      PackageUrl purl = *parse_package_url(text);
      is_python |= purl.type == "pypi";
      is_other |= is_of_others(purl.type);
      // A URL without a version has the component's.
      if (purl.version.empty()) purl.version = own.version;
      if (purl.commit.empty()) purl.commit = own.commit;
      own.source = own.source.empty() ? purl.source : own.source;
      const bool is_same = normalised(purl.name) == normalised(own.name) &&
                           is_same_version(purl.version, own.version);
      if (is_same) own.commit = purl.commit;
      add_url(purl, own.source, pointer);
      if (is_same && purl.type == "pypi") own.name.clear();
    }
    if (is_other && !is_python) return;
    if (!is_python && own.source.empty()) own.source = "url";
    // A name for people may have spaces.
    std::replace(own.name.begin(), own.name.end(), ' ', '-');
    if (own.version.empty() && is_python) return;
    if (is_package_name(own.name)) add_entry(own, pointer);
  }

  const JsonLines& lines_;
  std::string file_;
  std::set<std::string> refs_;
  PackageList list_;
  std::size_t count_ = 0;
};

}  // namespace

namespace {

/// `pip list --format json` and `conda list --json`: rows of name and version; conda's have a
/// channel. Or a kernels.lock: rows of repo_id, of kernels of the Hub; none is read.
PackageList tool_packages(const Json& rows, const JsonLines& lines, const std::string& file) {
  PackageList list;
  list.lists_all = false;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const std::string pointer = fmt::format("/{}", at);
    const int line = lines.at(pointer);
    const auto text = [&](const char* key) {
      const Json value = rows[at].is_object() ? rows[at].value(key, Json()) : Json();
      return value.is_string() ? value.get<std::string>() : "";
    };
    if (const std::string kernel = text("repo_id"); !kernel.empty()) {
      list.leave_unread(fmt::format("{}:{}: {}, a kernel of the Hub, which is not read", file, line,
                                    shown(kernel)));
      continue;
    }
    if (text("name").empty() || text("version").empty())
      throw Error(ErrorCode::kUsage, fmt::format("{}:{}: is no package with its version, as pip "
                                                 "list or conda list write one",
                                                 file, line));
    const std::string channel = text("channel");
    list.add(text("name"), {.version = text("version"),
                            .source = !text("editable_project_location").empty() ? "folder"
                                      : channel.empty() || channel == "pypi"     ? ""
                                                                                 : "conda",
                            .file = file,
                            .line = line});
  }
  return list;
}

}  // namespace

PackageList json_packages(std::string_view text, const std::string& file) {
  JsonLines lines;
  Json document = parse_json(text, file, &lines);
  // GitHub's API puts a bill into an object of its own; its lines are not known.
  if (document.is_object() && document.size() == 1 && document.contains("sbom")) {
    document = Json(document.at("sbom"));
    lines.clear();
  }
  if (document.is_array()) return tool_packages(document, lines, file);
  if (!document.is_object()) throw Error(ErrorCode::kUsage, file + ": is no JSON object");
  const bool is_cyclonedx = document.value("bomFormat", Json()) == "CycloneDX",
             is_spdx = document.contains("spdxVersion"), is_graph = document.contains("@graph"),
             is_pipfile = document.contains("_meta") || document.contains("default");
  if (is_cyclonedx + is_spdx + is_graph + is_pipfile > 1)
    throw Error(ErrorCode::kUsage, file + ": is JSON of several kinds at once");
  Bill bill(lines, file);
  if (is_cyclonedx) {
    const Json metadata = document.value("metadata", Json());
    if (metadata.is_object() && metadata.contains("component"))
      bill.read_component(metadata.at("component"), "/metadata/component");
    bill.read_components(document.value("components", Json::array()), "/components");
    bill.read_dependencies(document.value("dependencies", Json::array()));
    return bill.found();
  }
  if (is_spdx) {
    bill.read_packages(document.value("packages", Json::array()));
    return bill.found();
  }
  if (is_graph) {
    bill.read_graph(document.at("@graph"));
    return bill.found();
  }
  if (is_pipfile) return pipfile_packages(document, lines, file);
  throw Error(ErrorCode::kUsage,
              file +
                  ": is JSON of another kind; want CycloneDX (bomFormat), SPDX (spdxVersion or "
                  "@graph) or a Pipfile.lock (_meta); --code reads a configuration");
}

}  // namespace patchbench
