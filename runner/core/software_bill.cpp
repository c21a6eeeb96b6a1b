#include "core/software_bill.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/json.h"
#include "core/lock_file.h"
#include "core/schema.h"

namespace patchbench {
namespace {

/// Reads one SBOM; `count` is the number of all components, of every ecosystem.
class Bill {
 public:
  Bill(const JsonLines& lines, std::string file) : lines_(lines), file_(std::move(file)) {}

  void read_components(const Json& rows, const std::string& pointer) {
    if (!rows.is_array()) fail(pointer, "must be an array");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string here = pointer + "/" + std::to_string(i);
      if (!rows[i].is_object()) fail(here, "must be an object");
      read_component(rows[i], here);
      if (rows[i].contains("components"))
        read_components(rows[i].at("components"), here + "/components");
    }
  }

  /// SPDX 2.
  void read_packages(const Json& rows) {
    if (!rows.is_array()) fail("/packages", "must be an array");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string here = "/packages/" + std::to_string(i);
      if (!rows[i].is_object()) fail(here, "must be an object");
      std::string purl;
      const Json references = rows[i].value("externalRefs", Json::array());
      for (const Json& one : references.is_array() ? references : Json::array()) {
        if (text(one, "referenceType") == "purl") purl = text(one, "referenceLocator");
      }
      Listed one = listed(text(rows[i], "versionInfo"), here);
      const std::string place = text(rows[i], "downloadLocation");
      if (place.starts_with("git+")) {
        one.source = "git";
        one.commit = commit_of(place);
      }
      add(text(rows[i], "name"), purl, std::move(one));
    }
  }

  /// SPDX 3.
  void read_graph(const Json& rows) {
    if (!rows.is_array()) fail("/@graph", "must be an array");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (text(rows[i], "type") != "software_Package") continue;
      std::string purl = text(rows[i], "software_packageUrl");
      const Json others = rows[i].value("externalIdentifier", Json::array());
      for (const Json& one : others.is_array() ? others : Json::array()) {
        if (purl.empty() && text(one, "identifier").starts_with("pkg:"))
          purl = text(one, "identifier");
      }
      add(text(rows[i], "name"), purl,
          listed(text(rows[i], "software_packageVersion"), "/@graph/" + std::to_string(i)));
    }
  }

  PackageList found() {
    if (list_.packages.empty()) {
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

  static std::string text(const Json& row, const char* key) {
    const bool has_text = row.is_object() && row.contains(key) && row.at(key).is_string();
    return has_text ? row.at(key).get<std::string>() : "";
  }

  Listed listed(std::string version, const std::string& pointer) const {
    const auto line = lines_.find(pointer);
    return {.version = std::move(version),
            .file = file_,
            .line = line == lines_.end() ? 0 : line->second};
  }

  void read_component(const Json& row, const std::string& pointer) {
    const std::string type = text(row, "type");
    const bool is_package = type == "library" || type == "framework" || type == "application";
    Listed one = listed(text(row, "version"), pointer);
    const std::string purl = text(row, "purl");
    if (!is_package && purl.empty()) return;
    const bool is_changed = row.value("modified", Json(false)) == Json(true) ||
                            (row.contains("pedigree") && row.at("pedigree").contains("patches"));
    if (is_changed) one.source = "folder";
    add(text(row, "name"), purl, std::move(one));
  }

  void add(std::string name, const std::string& purl, Listed one) {
    ++count_;
    const std::string source = one.source;
    if (!purl.empty() && !read_purl(purl, name, one)) return;
    if (one.source.empty()) one.source = source;
    if (purl.empty() && one.source.empty()) one.source = "url";
    if (!name.empty()) list_.add(name, std::move(one));
  }

  const JsonLines& lines_;
  std::string file_;
  PackageList list_;
  std::size_t count_ = 0;
};

}  // namespace

PackageList json_packages(std::string_view text, const std::string& file) {
  JsonLines lines;
  const Json document = parse_json(text, file, &lines);
  if (!document.is_object()) throw Error(ErrorCode::kUsage, file + ": is no JSON object");
  Bill bill(lines, file);
  if (document.value("bomFormat", Json()) == "CycloneDX") {
    bill.read_components(document.value("components", Json::array()), "/components");
    return bill.found();
  }
  if (document.contains("spdxVersion")) {
    bill.read_packages(document.value("packages", Json::array()));
    return bill.found();
  }
  if (document.contains("@graph")) {
    bill.read_graph(document.at("@graph"));
    return bill.found();
  }
  if (document.contains("_meta") || document.contains("default"))
    return pipfile_packages(document, lines, file);
  throw Error(ErrorCode::kUsage,
              file +
                  ": is JSON of another kind; want CycloneDX (bomFormat), SPDX (spdxVersion or "
                  "@graph) or a Pipfile.lock (_meta)");
}

}  // namespace patchbench
