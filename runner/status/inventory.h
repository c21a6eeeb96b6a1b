#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/package_list.h"

namespace patchbench {

/// What one environment or file lists, and the folders that its modules are imported from.
struct Inventory {
  std::string name;    ///< as it was named, or where it was found
  std::string python;  ///< what `reproduce --python` takes; "" for a file
  PackageList list;
  std::vector<std::filesystem::path> roots;  ///< in the order of the import path; a file has none
  std::set<std::filesystem::path> left_out;  ///< folders below `roots` that are not walked
  bool is_project = false;        ///< a folder that is neither an environment nor one of packages
  std::vector<std::string> code;  ///< of a project: its Python files and configurations
  std::vector<std::string> unread_code;  ///< of a project: what of them is not read
  std::vector<std::string> notes;        ///< of a project: what its .gitignore leaves out
  bool may_be_empty = false;  ///< one of several inputs that were found below a folder or a root
  /// The root of an image: nothing outside of it belongs to the inventory. "" without one.
  std::filesystem::path image;
  /// Whether `path`, all links followed, may be read.
  bool may_read(const std::filesystem::path& path) const;
};

/// Where the environment that runs `scan` is: $VIRTUAL_ENV, else python3 on PATH. Error(kUsage)
/// without one.
std::string running_environment();

/// What a PATH lists. A venv, an interpreter, a folder of packages or a folder of sources; else a
/// file (status/listing.h), "-" for standard input. `import_path`: $PYTHONPATH where PATH is the
/// environment that runs, else "". Nothing is run. Error(kUsage) `<path>: <reason>`.
Inventory inventory_of(const std::string& path, const std::string& import_path);

/// Every environment below the root of an unpacked or mounted image, by path, and last the sources
/// outside of all of them; links are followed inside the root only. Error(kUsage) where there is
/// none.
std::vector<Inventory> inventories_below(const std::string& root);

/// What a file lists, "-" for standard input; `kind` where its form does not tell. Error(kUsage) as
/// above.
Inventory list_inventory(const std::string& path, std::optional<ListKind> kind);

}  // namespace patchbench
