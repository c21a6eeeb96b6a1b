#include "status/installed.h"

#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <set>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/json.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

void add(Installed& found, std::string_view name, Listed one) {
  std::set<Listed>& versions = found.packages[normalised(name)];
  const Listed bare;
  // A bare name says nothing where the same package is listed with a version.
  if (one == bare && !versions.empty()) return;
  versions.erase(bare);
  versions.insert(std::move(one));
}

/// Where PEP 610 says a distribution came from: "" for an index.
std::string source_of(const fs::path& direct_url) {
  if (!fs::exists(direct_url)) return "";
  const Json said = Json::parse(read_file(direct_url), nullptr, false);
  if (said.is_object() && said.contains("vcs_info")) return "git";
  return said.is_object() && said.contains("dir_info") ? "folder" : "url";
}

/// Name and version of one METADATA: its first lines, up to the empty one.
void read_metadata(const fs::path& file, Installed& found) {
  std::ifstream in(file);
  std::string line, name, version;
  while (std::getline(in, line) && !trimmed(line).empty()) {
    if (line.starts_with("Name:")) name = trimmed(line.substr(5));
    if (line.starts_with("Version:")) version = trimmed(line.substr(8));
  }
  if (!name.empty()) add(found, name, {version, source_of(file.parent_path() / "direct_url.json")});
}

/// lib/python3*/{site,dist-packages} below a prefix.
std::set<fs::path> package_folders(const fs::path& prefix) {
  std::set<fs::path> folders;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    std::error_code none;
    for (const auto& python : fs::directory_iterator(prefix / lib, none)) {
      if (!python.path().filename().string().starts_with("python3")) continue;
      for (const char* kind : {"site-packages", "dist-packages"}) {
        if (fs::is_directory(python.path() / kind, none))
          folders.insert(fs::canonical(python.path() / kind));
      }
    }
  }
  return folders;
}

/// What a requirement that is a URL or a folder leads to.
std::string kind_of_place(const std::string& place) {
  if (place.starts_with("git+") || place.starts_with("git:")) return "git";
  return place.find("://") == std::string::npos ? "folder" : "url";
}

/// A requirement that is a URL or a folder: only `#egg=` names its package.
void read_place(const std::string& place, Installed& found) {
  const size_t egg = place.find("egg=");
  if (egg == std::string::npos) {
    found.unread.push_back(place);
  } else {
    const std::string name = place.substr(egg + 4);
    add(found, name.substr(0, name.find_first_of("&[ ;")), {"", kind_of_place(place)});
  }
}

/// One line of a requirements file: `name[extra]==1.2 ; marker --hash=…`, `name @ URL`, a URL, a
/// folder, or a name without a version.
void read_requirement(const std::string& line, Installed& found) {
  size_t end = 0;
  while (end < line.size() && is_name_char(line[end])) ++end;
  std::string rest = trimmed(line.substr(end));
  const bool is_place = !rest.empty() && std::string_view("+:/").find(rest[0]) != std::string::npos;
  if (is_place) return read_place(line, found);
  if (end == 0) return;
  if (rest.starts_with("["))
    rest = trimmed(rest.substr(std::min(rest.find(']'), rest.size() - 1) + 1));
  Listed one;
  if (rest.starts_with("==")) {
    rest = trimmed(rest.substr(rest.starts_with("===") ? 3 : 2));
    one.version = rest.substr(0, rest.find_first_of(" ;,\t"));
    if (one.version.find('*') != std::string::npos) one.version.clear();
  } else if (rest.starts_with("@")) {
    one.source = kind_of_place(trimmed(rest.substr(1)));
  }
  add(found, line.substr(0, end), std::move(one));
}

void read_requirements(const fs::path& file, Installed& found, std::set<fs::path>& read) {
  if (!read.insert(fs::weakly_canonical(file)).second) return;
  std::istringstream in(read_file(file));
  std::string line, joined;
  while (std::getline(in, line)) {
    joined += line.substr(0, line.starts_with("#") ? 0 : line.find(" #"));
    if (joined.ends_with("\\")) {
      joined.pop_back();
      continue;
    }
    const std::string text = trimmed(joined);
    joined.clear();
    for (const std::string word : {"-r", "--requirement"}) {
      if (text.starts_with(word + " ") || text.starts_with(word + "="))
        read_requirements(file.parent_path() / trimmed(text.substr(word.size() + 1)), found, read);
    }
    for (const std::string word : {"-e", "--editable"}) {
      if (text.starts_with(word + " ") || text.starts_with(word + "="))
        read_place(trimmed(text.substr(word.size() + 1)), found);
    }
    if (!text.starts_with("-")) read_requirement(text, found);
  }
}

/// The value of `key = "value"`, "" for another line.
std::string toml_string(const std::string& line, std::string_view key) {
  const size_t equals = line.find('=');
  if (equals == std::string::npos || trimmed(line.substr(0, equals)) != key) return "";
  const std::string value = trimmed(line.substr(equals + 1));
  const bool is_quoted = value.size() > 1 && (value[0] == '"' || value[0] == '\'');
  return is_quoted ? value.substr(1, value.find(value[0], 1) - 1) : "";
}

/// One [[package]] of a lock, with the table that a line belongs to.
struct LockedPackage {
  std::string name, version, source;
};

/// What a line of a package's own table adds to it.
void read_package_line(const std::string& line, LockedPackage& package) {
  if (const std::string value = toml_string(line, "name"); !value.empty()) package.name = value;
  if (const std::string value = toml_string(line, "version"); !value.empty())
    package.version = value;
  // pdm
  for (const auto& [key, source] : {std::pair("git", "git"), {"path", "folder"}, {"url", "url"}}) {
    if (!toml_string(line, key).empty()) package.source = source;
  }
  // uv: source = { git = "…" }; pylock: vcs = { type = "git", … }
  const size_t equals = line.find('=');
  if (equals == std::string::npos) return;
  const std::string key = trimmed(line.substr(0, equals));
  const std::string table = line.substr(equals + 1);
  const auto has = [&](const char* word) {
    const size_t at = table.find(std::string(word) + " =");
    return key == "source" && at != std::string::npos &&
           (table[at - 1] == ' ' || table[at - 1] == '{');
  };
  if (key == "vcs" || has("git")) package.source = "git";
  if (key == "directory" || has("editable") || has("directory") || has("path") || has("virtual"))
    package.source = "folder";
  if (key == "archive" || has("url")) package.source = "url";
}

/// What a line of a table below a package's says of its source.
void read_source_line(const std::string& table, const std::string& line, LockedPackage& package) {
  const std::string type = toml_string(line, "type");
  if (table == "[packages.vcs]" || (table == "[package.source]" && type == "git"))
    package.source = "git";
  if (table == "[packages.directory]" || (table == "[package.source]" && type == "directory"))
    package.source = "folder";
  if (table == "[packages.archive]" ||
      (table == "[package.source]" && (type == "url" || type == "file")))
    package.source = "url";
}

Installed toml_packages(const std::string& text) {
  std::vector<LockedPackage> packages;
  std::istringstream in(text);
  std::string line, table;
  while (std::getline(in, line)) {
    line = trimmed(line);
    if (line.starts_with("[")) table = line;
    const bool is_package = table == "[[package]]" || table == "[[packages]]";
    if (is_package && line == table) {
      packages.emplace_back();
    } else if (is_package) {
      read_package_line(line, packages.back());
    } else if (!packages.empty()) {
      read_source_line(table, line, packages.back());
    }
  }
  Installed found;
  for (LockedPackage& one : packages) {
    if (!one.name.empty()) add(found, one.name, {std::move(one.version), std::move(one.source)});
  }
  return found;
}

Installed pipfile_packages(const std::string& text, const fs::path& file) {
  const Json document = Json::parse(text, nullptr, false);
  if (!document.is_object()) throw Error(ErrorCode::kUsage, file.string() + ": is no JSON object");
  Installed found;
  for (const char* group : {"default", "develop"}) {
    const Json packages = document.value(group, Json::object());
    for (const auto& [name, one] : packages.items()) {
      const std::string version = one.is_object() ? one.value("version", "") : "";
      const bool is_git = one.is_object() && one.contains("git");
      const bool is_folder = one.is_object() && (one.contains("path") || one.contains("file"));
      add(found, name,
          {version.starts_with("==") ? version.substr(2) : "", is_git      ? "git"
                                                               : is_folder ? "folder"
                                                                           : ""});
    }
  }
  return found;
}

Installed named(Installed found, const fs::path& file) {
  if (found.packages.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: names no package; want requirements, a lock of [[package]] tables "
                            "(uv, poetry, pdm, pylock) or a Pipfile.lock",
                            file.string()));
  }
  return found;
}

}  // namespace

std::string normalised(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool is_separator = c == '.' || c == '_' || c == '-';
    if (is_separator && out.ends_with("-")) continue;
    out += is_separator ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

Installed installed_in(const fs::path& python) {
  const fs::path prefix =
      fs::is_directory(python) ? python : fs::absolute(python).parent_path().parent_path();
  const std::set<fs::path> folders =
      fs::exists(python) ? package_folders(prefix) : std::set<fs::path>{};
  if (folders.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--python {}: no lib/python3*/site-packages belongs to it; name a venv "
                            "or the interpreter in its bin folder",
                            python.string()));
  }
  Installed found;
  for (const fs::path& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const fs::path& path = entry.path();
      if (path.extension() == ".dist-info") read_metadata(path / "METADATA", found);
      if (path.extension() == ".egg-info")
        read_metadata(entry.is_directory() ? path / "PKG-INFO" : path, found);
    }
  }
  found.folders = folders;
  return found;
}

Installed locked_in(const fs::path& lock) {
  const std::string text = read_file(lock);
  if (text.find("[[package") != std::string::npos) return named(toml_packages(text), lock);
  if (trimmed(text).starts_with("{")) return named(pipfile_packages(text, lock), lock);
  return required_in(lock);
}

Installed required_in(const fs::path& requirements) {
  Installed found;
  std::set<fs::path> read;
  read_requirements(requirements, found, read);
  return named(found, requirements);
}

std::map<std::string, std::string> installed_files(const Installed& installed,
                                                   const std::vector<std::string>& files) {
  std::map<std::string, std::string> digests;
  bool is_any = false;
  for (const std::string& file : files) {
    digests[file] = "absent";
    for (const fs::path& folder : installed.folders) {
      if (!fs::is_regular_file(folder / file)) continue;
      digests[file] = sha256_hex(read_file(folder / file));
      is_any = true;
      break;
    }
  }
  return is_any ? digests : std::map<std::string, std::string>{};
}

}  // namespace patchbench
