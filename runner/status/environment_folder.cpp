#include "status/environment_folder.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/json.h"
#include "core/split.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxMetadataBytes = 4 << 20;

/// The lines of a text, which Python ends at "\n", "\r\n" and "\r".
std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + (text.substr(end).starts_with("\r\n") ? 2 : 1), text.size()));
  }
  return lines;
}

/// The extension in lower case.
std::string kind_of(const fs::path& path) { return lower(path.extension().string()); }

std::string stripped(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

/// lib/python3*/{site,dist-packages} below a prefix, and Lib/site-packages.
std::set<fs::path> package_folders(const fs::path& prefix) {
  std::set<fs::path> folders;
  std::error_code none;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    for (const auto& python : fs::directory_iterator(prefix / lib, none)) {
      if (!python.path().filename().string().starts_with("python3")) continue;
      for (const char* kind : {"site-packages", "dist-packages"}) {
        if (fs::is_directory(python.path() / kind, none))
          folders.insert(fs::canonical(python.path() / kind, none));
      }
    }
  }
  if (fs::is_directory(prefix / "Lib/site-packages", none))
    folders.insert(fs::canonical(prefix / "Lib/site-packages", none));
  return folders;
}

/// `key = value` of a pyvenv.cfg.
std::string setting(const std::string& text, const std::string& key) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos && stripped(line.substr(0, equals)) == key)
      return stripped(line.substr(equals + 1));
  }
  return "";
}

/// "/home/u/a b" of "file:///home/u/a%20b"; "" for another URL.
std::string path_of_url(const std::string& url) {
  constexpr std::string_view kFile = "file://";
  if (!url.starts_with(kFile)) return "";
  return percent_decoded(url.substr(kFile.size()));
}

}  // namespace

fs::path EnvironmentFolder::in_image(const fs::path& path) const {
  const bool is_outside = !inventory_.image.empty() && path.is_absolute() &&
                          !path.string().starts_with(inventory_.image.string());
  return is_outside ? inventory_.image / path.relative_path() : path;
}

std::string EnvironmentFolder::text_of(const fs::path& file) {
  std::error_code none;
  if (!fs::exists(fs::symlink_status(file, none))) return "";
  try {
    if (inventory_.may_read(file)) return read_plain_file(file, kMaxMetadataBytes);
  } catch (const Error&) {
    // Said below.
  }
  inventory_.list.leave_unread(file.string() + ": cannot be read");
  return "";
}

void EnvironmentFolder::add_root(const fs::path& folder) {
  std::error_code failed;
  const fs::path real = fs::canonical(in_image(folder), failed);
  if (failed || !inventory_.may_read(real)) return;
  if (fs::is_regular_file(real, failed))
    inventory_.list.leave_unread(real.string() + ": a zipped package");
  if (!fs::is_directory(real, failed)) return;
  if (std::find(inventory_.roots.begin(), inventory_.roots.end(), real) == inventory_.roots.end())
    inventory_.roots.push_back(real);
}

void EnvironmentFolder::add_import_path(const std::string& import_path) {
  for (std::size_t at = 0; at < import_path.size();) {
    const std::size_t end = std::min(import_path.find(':', at), import_path.size());
    add_folder(end > at ? import_path.substr(at, end - at) : ".");
    at = end + 1;
  }
}

void EnvironmentFolder::add_prefix(const fs::path& prefix) {
  for (const fs::path& folder : package_folders(prefix)) add_folder(folder);
  add_base_of(prefix);
}

void EnvironmentFolder::add_base_of(const fs::path& prefix) {
  const std::string text = text_of(prefix / "pyvenv.cfg");
  if (setting(text, "include-system-site-packages") != "true") return;
  const std::string home = setting(text, "home");
  if (home.empty()) return;
  const fs::path base = in_image(fs::path(home).parent_path());
  std::error_code none;
  if (fs::equivalent(base, prefix, none)) return;
  for (const fs::path& folder : package_folders(base)) add_folder(folder);
}

void EnvironmentFolder::add_interpreter(const fs::path& python) {
  std::error_code none;
  const fs::path prefix = fs::absolute(python).parent_path().parent_path();
  add_prefix(prefix);
  if (fs::exists(prefix / "pyvenv.cfg", none)) return;
  const fs::path real = fs::canonical(python, none);
  if (!none) add_prefix(real.parent_path().parent_path());
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0' && !inventory_.roots.empty())
    add_prefix(fs::path(home) / ".local");
}

void EnvironmentFolder::add_folder(const fs::path& folder) {
  const std::size_t num_roots = inventory_.roots.size();
  add_root(folder);
  if (inventory_.roots.size() == num_roots) return;
  const fs::path root = inventory_.roots.back();
  std::error_code none;
  std::set<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(root, none)) entries.insert(entry.path());
  if (none) inventory_.list.leave_unread(root.string() + ": cannot be read");
  for (const fs::path& path : entries) {
    const std::string kind = kind_of(path), name = path.filename().string();
    if (kind == ".dist-info") add_metadata(path, path / "METADATA");
    if (kind == ".egg-info") {
      const fs::path inner = path / "PKG-INFO";
      add_metadata(path, fs::is_directory(path, none) ? inner : path);
    }
    if (kind == ".egg" && !fs::is_directory(path, none)) add_root(path);
    if (kind == ".egg" && fs::is_directory(path, none)) {
      add_root(path);
      add_metadata(path, path / "EGG-INFO/PKG-INFO");
    }
    if (kind == ".pth") add_path_file(path);
    if (kind == ".egg-link") add_egg_link(path);
    if (name.starts_with("__editable__") && kind == ".py") add_finder(path);
  }
}

void EnvironmentFolder::add_path_file(const fs::path& file) {
  std::string text = text_of(file);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  for (const std::string& line : lines_of(text)) {
    const std::string key = stripped(line);
    const bool is_code = key.starts_with("import ") || key.starts_with("import\t");
    if (key.empty() || key.starts_with("#") || is_code) continue;
    // What is installed there counts as installed here.
    add_folder(fs::path(key).is_absolute() ? fs::path(key) : file.parent_path() / key);
  }
}

void EnvironmentFolder::add_finder(const fs::path& file) {
  // setuptools writes MAPPING = {'package': '/folder/package', …}.
  std::istringstream in(text_of(file));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("MAPPING")) continue;
    for (std::size_t at = line.find("'/"); at != std::string::npos;) {
      const std::size_t end = line.find('\'', at + 1);
      if (end == std::string::npos) break;
      add_root(fs::path(line.substr(at + 1, end - at - 1)).parent_path());
      at = line.find("'/", end + 1);
    }
  }
}

void EnvironmentFolder::add_egg_link(const fs::path& file) {
  const std::string text = text_of(file);
  const fs::path key = in_image(stripped(text.substr(0, text.find('\n'))));
  if (key.empty()) return;
  add_root(key);
  inventory_.list.add(
      file.stem().string(),
      {.source = "folder", .file = file.string(), .line = 1, .roots = {key.string()}});
}

void EnvironmentFolder::add_source(const fs::path& direct_url, Listed& one) {
  std::error_code none;
  if (!fs::exists(direct_url, none)) return;
  const Json said = Json::parse(text_of(direct_url), nullptr, false);
  one.source = "url";
  if (!said.is_object()) return;
  if (said.contains("vcs_info")) {
    one.source = "git";
    const Json& vcs = said.at("vcs_info");
    const Json commit = vcs.is_object() ? vcs.value("commit_id", Json()) : Json();
    if (commit.is_string() && is_hex(commit.get<std::string>(), 40)) one.commit = commit;
  }
  if (!said.contains("dir_info")) return;
  one.source = "folder";
  const Json url = said.value("url", Json());
  const std::string key = url.is_string() ? path_of_url(url) : "";
  const Json& folder = said.at("dir_info");
  const bool is_editable = folder.is_object() && folder.value("editable", Json()) == Json(true);
  if (key.empty() || !is_editable) return;
  for (const fs::path& root : {in_image(key), in_image(key) / "src"}) {
    add_root(root);
    const fs::path real = fs::canonical(root, none);
    if (!none) one.roots.insert(real.string());
  }
}

void EnvironmentFolder::add_metadata(const fs::path& info, const fs::path& file) {
  // Name -> its line; a header that is written twice says two things.
  std::vector<std::pair<std::string, int>> names, versions;
  int number = 0;
  const std::string text = text_of(file);
  for (const std::string& line : lines_of(text)) {
    if (stripped(line).empty()) break;
    ++number;
    const std::size_t colon = std::min(line.find(':'), line.size());
    const std::string key = normalised(line.substr(0, colon)),
                      value = stripped(line.substr(std::min(colon + 1, line.size())));
    if (value.empty()) continue;
    if (key == "name") names.emplace_back(value, number);
    if (key == "version") versions.emplace_back(value, number);
  }
  // The folder is called NAME-VERSION[-PYTHON], too; a name may hold dashes.
  const std::string stem = info.stem().string();
  if (stem.starts_with("~")) return;
  std::size_t dash = stem.size();
  bool is_split = false;
  for (std::size_t at = stem.size(); at-- > 0;) {
    if (stem[at] != '-') continue;
    const std::string start = normalised(stem.substr(0, at));
    const bool is_name = std::any_of(names.begin(), names.end(), [&](const auto& one) {
      return normalised(one.first) == start;
    });
    const bool is_version = std::isdigit(static_cast<unsigned char>(stem[at + 1])) != 0;
    if (is_name || (is_version && !is_split)) dash = at;
    is_split |= is_name;
  }
  const std::string name = stem.substr(0, dash);
  const std::string version = dash == stem.size() ? "" : stem.substr(dash + 1);
  const bool is_egg = kind_of(info) != ".dist-info";
  const auto is_new_name = [&](const auto& one) {
    return normalised(one.first) != normalised(name);
  };
  if (std::all_of(names.begin(), names.end(), is_new_name)) names.emplace_back(name, 0);
  const std::string told = is_egg ? version.substr(0, version.find('-')) : version;
  const auto is_new = [&](const auto& one) { return !is_same_version(one.first, told); };
  const bool is_told = !told.empty() || versions.empty();
  if (is_told && std::all_of(versions.begin(), versions.end(), is_new))
    versions.emplace_back(told, 0);
  for (const auto& [one_name, name_line] : names) {
    for (const auto& [one_version, line] : versions) {
      Listed one{.version = one_version, .file = file.string(), .line = line};
      one.roots.insert(is_egg && kind_of(info) == ".egg" ? info.string()
                                                         : info.parent_path().string());
      add_source(info / "direct_url.json", one);
      inventory_.list.add(one_name, std::move(one));
    }
  }
}

bool is_metadata(const fs::path& path) {
  const std::string kind = kind_of(path);
  return kind == ".dist-info" || kind == ".egg-info" || kind == ".egg";
}

}  // namespace patchbench
