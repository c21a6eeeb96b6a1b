#include "status/inventory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <set>

#include "core/error.h"
#include "core/file_text.h"
#include "core/json.h"
#include "status/environment_folder.h"
#include "status/listing.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxImageEntries = 5'000'000;
constexpr std::string_view kStandardInput = "-";

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ErrorCode::kUsage, path + ": " + reason);
}

bool is_interpreter(const fs::path& path) {
  const std::string name = path.filename().string(), digits = "0123456789.";
  return name.starts_with("python") &&
         name.find_first_not_of(digits, std::string("python").size()) == std::string::npos;
}

/// A program on PATH; "" without one.
std::string on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  const std::string folders = path == nullptr ? "" : path;
  for (std::size_t at = 0; at <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    const fs::path file = fs::path(folders.substr(at, end - at)) / program;
    std::error_code none;
    if (end > at && fs::is_regular_file(file, none)) return file.string();
    at = end + 1;
  }
  return "";
}

std::string first_word(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_first_of(" \t\r\n:", first) - first);
}

/// The interpreter that a shim of pyenv starts, by the files that pyenv reads; `python` itself
/// where it is none.
std::string behind_shim(const std::string& python) {
  const fs::path folder = fs::path(python).parent_path(), root = folder.parent_path();
  std::error_code none;
  if (folder.filename() != "shims" || !fs::is_directory(root / "versions", none)) return python;
  const char* named = std::getenv("PYENV_VERSION");
  std::string version = first_word(named == nullptr ? "" : named);
  for (fs::path at = fs::current_path(none); version.empty(); at = at.parent_path()) {
    version = first_word(file_text(at / ".python-version").value_or(""));
    if (at == at.parent_path()) break;
  }
  if (version.empty()) version = first_word(file_text(root / "version").value_or(""));
  const fs::path found = root / "versions" / version / "bin/python3";
  return !version.empty() && fs::exists(found, none) ? found.string() : python;
}

/// The prefix of an environment that a folder of packages belongs to; the folder itself where its
/// place says nothing.
fs::path prefix_of(const fs::path& folder) {
  const fs::path python = folder.parent_path();
  fs::path lib = python.parent_path();
  const std::string name = python.filename().string();
  if (name == "Lib") return lib;
  if (!name.starts_with("python3") || !lib.filename().string().starts_with("lib")) return folder;
  const fs::path prefix = lib.parent_path();
  // Debian's own interpreter takes both /usr/lib and /usr/local/lib.
  const bool is_local =
      folder.filename() == "dist-packages" && prefix.filename().string() == "local";
  return is_local ? prefix.parent_path() : prefix;
}

/// prefix -> its folders of packages, below the root of an image.
std::map<fs::path, std::set<fs::path>> environments_in(const fs::path& root) {
  std::map<fs::path, std::set<fs::path>> found;
  std::error_code none;
  std::size_t num_entries = 0;
  auto it =
      fs::recursive_directory_iterator(root, fs::directory_options::skip_permission_denied, none);
  for (; it != fs::recursive_directory_iterator(); it.increment(none)) {
    if (++num_entries > kMaxImageEntries)
      refuse(root.string(), fmt::format("holds more than {} files; name the folder of one "
                                        "environment in it",
                                        kMaxImageEntries));
    const std::string name = it->path().filename().string();
    const bool is_system = it.depth() == 0 && (name == "proc" || name == "sys" || name == "dev");
    if (is_system || name == "__pycache__" || name == ".git") {
      it.disable_recursion_pending();
      continue;
    }
    if (it->is_symlink(none)) continue;
    if (is_metadata(it->path())) {
      const fs::path folder = it->path().parent_path();
      found[prefix_of(folder)].insert(folder);
      it.disable_recursion_pending();
      continue;
    }
    if (!it->is_directory(none)) continue;
    if (name == "site-packages" || name == "dist-packages") {
      found[prefix_of(it->path())].insert(it->path());
      it.disable_recursion_pending();
    }
  }
  if (none) refuse(root.string(), none.message());
  return found;
}

}  // namespace

bool Inventory::may_read(const fs::path& path) const {
  if (image.empty()) return true;
  std::error_code failed;
  const fs::path real = fs::canonical(path, failed);
  if (failed) return false;
  const auto ends = std::mismatch(image.begin(), image.end(), real.begin(), real.end());
  return ends.first == image.end();
}

std::string running_environment() {
  const char* active = std::getenv("VIRTUAL_ENV");
  if (active != nullptr && *active != '\0') return active;
  if (const std::string python = on_path("python3"); !python.empty()) return behind_shim(python);
  throw Error(ErrorCode::kUsage,
              "no venv is active and no python3 is on PATH; name what to scan: a venv, a lock, a "
              "requirements file or an SBOM");
}

Inventory list_inventory(const std::string& path, std::optional<ListKind> kind) {
  Inventory inventory{.name = path == kStandardInput ? "stdin" : path};
  const std::string bytes =
      path == kStandardInput ? standard_input() : read_plain_file(path, kMaxInputBytes);
  inventory.list = packages_in(
      bytes, inventory.name,
      [](const std::string& included) { return read_plain_file(included, kMaxInputBytes); }, kind);
  return inventory;
}

Inventory inventory_of(const std::string& path, const std::string& import_path) {
  if (path == kStandardInput) return list_inventory(path, {});
  std::error_code none;
  const fs::path key = fs::path(path).lexically_normal();
  const bool is_folder = fs::is_directory(key, none);
  if (!is_folder && !fs::exists(key, none))
    refuse(path, "is not there; name a venv, a lock, a requirements file or an SBOM");
  if (!is_folder && !is_interpreter(key)) return list_inventory(path, {});
  Inventory inventory{.name = path, .python = path};
  EnvironmentFolder reader(inventory);
  reader.add_import_path(import_path);
  if (is_folder) {
    reader.add_prefix(key);
    if (inventory.roots.empty()) {
      reader.add_folder(fs::canonical(key, none));
      for (const char* venv : {".venv", "venv"}) reader.add_prefix(key / venv);
      // A folder of sources, or of packages in addition to an environment's.
      const std::string name = key.filename().string();
      inventory.is_project = name != "site-packages" && name != "dist-packages";
      if (inventory.is_project) inventory.list.lists_all = false;
    }
  } else {
    reader.add_interpreter(key);
  }
  if (inventory.roots.empty())
    refuse(path,
           "no lib/python3*/site-packages belongs to it; name a venv or the interpreter in "
           "its bin folder");
  if (inventory.list.packages.empty()) inventory.list.lists_all = false;
  return inventory;
}

std::vector<Inventory> inventories_below(const std::string& root) {
  std::error_code failed;
  const fs::path image = fs::canonical(root, failed);
  if (failed || !fs::is_directory(image, failed))
    refuse(root, "is no folder; --root takes the root of an unpacked or mounted image");
  std::vector<Inventory> all;
  std::vector<fs::path> walked;
  for (const auto& [prefix, folders] : environments_in(image)) {
    Inventory inventory;
    inventory.name = inventory.python = prefix.string();
    inventory.image = image;
    inventory.may_be_empty = true;
    EnvironmentFolder reader(inventory);
    for (const fs::path& folder : folders) reader.add_folder(folder);
    reader.add_base_of(prefix);
    walked.insert(walked.end(), inventory.roots.begin(), inventory.roots.end());
    if (!inventory.list.packages.empty()) all.push_back(std::move(inventory));
  }
  if (all.empty())
    refuse(root, "no environment lies below it (no site-packages, dist-packages or *.dist-info)");
  Inventory rest;
  rest.name = root;
  rest.image = image;
  rest.may_be_empty = true;
  rest.list.lists_all = false;
  rest.roots = {image};
  rest.left_out = {walked.begin(), walked.end()};
  all.push_back(std::move(rest));
  return all;
}

}  // namespace patchbench
