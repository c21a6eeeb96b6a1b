#include "status/environment_folder.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "core/digest.h"
#include "core/file_text.h"
#include "core/json.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxMetadataBytes = 4 << 20;

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
  std::string name;
  Listed one;
  // The decoding of a package URL's name serves.
  return read_purl("pkg:pypi/" + url.substr(kFile.size()), name, one) ? name : "";
}

}  // namespace

fs::path EnvironmentFolder::in_image(const fs::path& path) const {
  const bool is_outside = !inventory_.image.empty() && path.is_absolute() &&
                          !path.string().starts_with(inventory_.image.string());
  return is_outside ? inventory_.image / path.relative_path() : path;
}

std::string EnvironmentFolder::text_of(const fs::path& file) const {
  std::error_code none;
  const bool is_small =
      fs::is_regular_file(file, none) && fs::file_size(file, none) <= kMaxMetadataBytes;
  return is_small && inventory_.may_read(file) ? file_text(file).value_or("") : "";
}

void EnvironmentFolder::add_root(const fs::path& folder) {
  std::error_code failed;
  const fs::path real = fs::canonical(in_image(folder), failed);
  if (failed || !inventory_.may_read(real)) return;
  if (fs::is_regular_file(real, failed))
    inventory_.list.unread.push_back(real.string() + ": a zipped package");
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
  if (none) inventory_.list.unread.push_back(root.string() + ": cannot be read");
  for (const fs::path& path : entries) {
    const std::string kind = path.extension().string(), name = path.filename().string();
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
  std::istringstream in(text_of(file));
  for (std::string line; std::getline(in, line);) {
    const std::string place = stripped(line);
    const bool is_code = place.starts_with("import ") || place.starts_with("import\t");
    if (place.empty() || place.starts_with("#") || is_code) continue;
    // What is installed there counts as installed here.
    add_folder(fs::path(place).is_absolute() ? fs::path(place) : file.parent_path() / place);
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
  const fs::path place = in_image(stripped(text.substr(0, text.find('\n'))));
  if (place.empty()) return;
  add_root(place);
  inventory_.list.add(
      file.stem().string(),
      {.source = "folder", .file = file.string(), .line = 1, .roots = {place.string()}});
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
  const std::string place = url.is_string() ? path_of_url(url) : "";
  const Json& folder = said.at("dir_info");
  const bool is_editable = folder.is_object() && folder.value("editable", Json()) == Json(true);
  if (place.empty() || !is_editable) return;
  for (const fs::path& root : {in_image(place), in_image(place) / "src"}) {
    add_root(root);
    const fs::path real = fs::canonical(root, none);
    if (!none) one.roots.insert(real.string());
  }
}

void EnvironmentFolder::add_metadata(const fs::path& info, const fs::path& file) {
  std::istringstream in(text_of(file));
  std::string name;
  Listed one{.file = file.string()};
  int number = 0;
  for (std::string line; std::getline(in, line) && !stripped(line).empty();) {
    ++number;
    const std::size_t colon = std::min(line.find(':'), line.size());
    const std::string key = normalised(line.substr(0, colon));
    if (key == "name" && name.empty()) name = stripped(line.substr(colon + 1));
    if (key != "version" || !one.version.empty()) continue;
    one.version = stripped(line.substr(colon + 1));
    one.line = number;
  }
  if (name.empty()) {
    // A damaged METADATA: the folder is called NAME-VERSION.
    const std::string stem = info.stem().string();
    const std::size_t dash = stem.find('-');
    name = stem.substr(0, dash);
    if (dash != std::string::npos) one.version = stem.substr(dash + 1);
    if (name.empty() || name.starts_with("~")) return;
  }
  one.roots.insert(info.extension() == ".egg" ? info.string() : info.parent_path().string());
  add_source(info / "direct_url.json", one);
  inventory_.list.add(name, std::move(one));
}

}  // namespace patchbench
