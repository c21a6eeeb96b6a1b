#include "core/lock_file.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/git_place.h"
#include "core/release_index.h"
#include "core/requirement.h"
#include "core/schema.h"
#include "core/toml_text.h"

namespace patchbench {
namespace {

int lock_line(const JsonLines& lines, const std::string& pointer) {
  const auto at = lines.find(pointer);
  return at == lines.end() ? 0 : at->second;
}

/// The text under a key; "" where there is none. Error(kUsage) where it is another value.
std::string text_at(const Json& row, const char* key, const std::string& where) {
  if (!row.contains(key)) return "";
  if (!row.at(key).is_string())
    throw Error(ErrorCode::kUsage, fmt::format("{}: {} must be a text", where, key));
  return row.at(key);
}

/// The text under a key of a table; "" where the value is not a table or has none.
std::string text_in(const Json& table, const char* key) {
  const bool has_text = table.is_object() && table.contains(key) && table.at(key).is_string();
  return has_text ? table.at(key).get<std::string>() : "";
}

/// The files of a package by name, which a lock names in addition to the version: each may tell
/// another one. uv and pylock: wheels, sdist, archive; poetry and pdm: files.
void add_files(const Json& row, const std::string& name, const Listed& one, PackageList& found) {
  for (const char* group : {"wheels", "sdist", "archive", "files"}) {
    const Json files = row.value(group, Json());
    for (const Json& file : files.is_array() ? files : Json::array({files})) {
      for (const char* key : {"file", "filename", "name", "url", "path"}) {
        const std::string text = text_in(file, key),
                          place = text.substr(0, text.find_first_of("#?"));
        auto told = package_of_archive(place);
        if (!told) continue;
        // Of an sdist the name decides where its version begins.
        const std::string base = percent_decoded(place.substr(place.rfind('/') + 1));
        if (const auto own = parse_index_file_name(base, name)) told = {name, own->version};
        const bool is_same = normalised(told->first) == normalised(name);
        if (is_same && is_same_version(told->second, one.version)) continue;
        Listed other = one;
        other.version = told->second;
        found.add(told->first, std::move(other));
      }
    }
  }
}

/// The place that the keys of a table name, as pip writes it.
std::string git_place(const Json& table, const char* url, const char* commit) {
  const std::string folder = text_in(table, "subdirectory"), at = text_in(table, commit);
  return text_in(table, url) + (at.empty() ? "" : "@" + at) +
         (folder.empty() ? "" : "#subdirectory=" + folder);
}

/// uv: source = { git = "URL?rev=x#COMMIT" }; poetry: [package.source] type = "git".
void read_source(const Json& source, const std::string& where, Listed& one) {
  if (!source.is_object())
    throw Error(ErrorCode::kUsage,
                where + ": source must be a table, as in a lock of Python packages");
  const std::string type = text_in(source, "type");
  const bool is_index = source.contains("registry") || type == "legacy";
  if (!is_index) one.source = "url";
  if (source.contains("git") || type == "git") one.source = "git";
  for (const char* key : {"editable", "directory", "path", "virtual"}) {
    if (source.contains(key)) one.source = "folder";
  }
  if (type == "directory") one.source = "folder";
  if (one.source != "git") return;
  // A lock names the commit; a reference that is not resolved may be a branch.
  const std::string place = text_in(source, "git");
  read_git_place(place.empty() ? git_place(source, "url", "resolved_reference") : place, one);
}

/// pylock has tables of their own, pdm has keys in the package's table.
void read_place(const Json& row, Listed& one) {
  if (row.contains("vcs")) {
    read_git_place(git_place(row.at("vcs"), "url", "commit-id"), one);
  }
  if (row.contains("directory") || row.contains("path")) one.source = "folder";
  if (row.contains("archive") || row.contains("url")) one.source = "url";
  if (row.contains("git")) {
    read_git_place(git_place(row, "git", "revision"), one);
  }
}

}  // namespace

PackageList toml_lock_packages(std::string_view text, const std::string& file) {
  JsonLines lines;
  const Json document = parse_toml(text, file, &lines);
  PackageList found;
  for (const char* key : {"package", "packages"}) {
    if (!document.contains(key)) continue;
    const Json& rows = document.at(key);
    if (!rows.is_array())
      throw Error(ErrorCode::kUsage, fmt::format("{}: {} must be an array of tables", file, key));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string pointer = fmt::format("/{}/{}", key, i);
      const std::string where = fmt::format("{}:{}", file, lock_line(lines, pointer));
      if (!rows[i].is_object())
        throw Error(ErrorCode::kUsage, where + ": a package must be a table");
      const std::string name = text_at(rows[i], "name", where);
      if (name.empty()) throw Error(ErrorCode::kUsage, where + ": a package has no name");
      Listed one{.version = text_at(rows[i], "version", where), .file = file};
      const int line = lock_line(lines, pointer + "/version");
      one.line = line == 0 ? lock_line(lines, pointer) : line;
      read_place(rows[i], one);
      if (rows[i].contains("source")) read_source(rows[i].at("source"), where, one);
      add_files(rows[i], name, one, found);
      found.add(name, std::move(one));
    }
  }
  return found;
}

PackageList pipfile_packages(const Json& document, const JsonLines& lines,
                             const std::string& file) {
  PackageList found;
  for (const auto& [group, packages] : document.items()) {
    if (group == "_meta") continue;
    if (!packages.is_object())
      fail_at(file, lines, "/" + pointer_segment(group), "must be an object");
    for (const auto& [name, row] : packages.items()) {
      const auto pin = parse_requirement("x" + text_in(row, "version"));
      Listed one{.version = pin ? pin->version : "", .file = file};
      one.line = lock_line(lines, "/" + pointer_segment(group) + "/" + pointer_segment(name));
      if (row.is_object()) {
        if (row.contains("path") || row.contains("file")) one.source = "folder";
        if (row.contains("git")) read_git_place(git_place(row, "git", "ref"), one);
      }
      found.add(name, std::move(one));
    }
  }
  return found;
}

}  // namespace patchbench
