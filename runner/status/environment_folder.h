#pragma once
#include <filesystem>
#include <string>

#include "status/inventory.h"

namespace patchbench {

/// Whether a folder's or file's name says that it holds the metadata of a package; it has no case.
bool is_metadata(const std::filesystem::path& path);

/// Reads an environment's folders into an inventory: what its dist-info folders say, where its
/// modules are imported from. Links that leave an image are not followed.
class EnvironmentFolder {
 public:
  explicit EnvironmentFolder(Inventory& inventory) : inventory_(inventory) {}
  /// A venv or another prefix: lib/python3*/{site,dist-packages}, and the base of a venv that takes
  /// its packages, too.
  void add_prefix(const std::filesystem::path& prefix);
  /// An interpreter in the bin folder of a prefix, with the user's packages where it is not a venv.
  void add_interpreter(const std::filesystem::path& python);
  /// One folder of packages, with what its .pth files add to the import path.
  void add_folder(const std::filesystem::path& folder);
  /// The folders of $PYTHONPATH, in front of all others.
  void add_import_path(const std::string& import_path);
  /// Of a venv with `include-system-site-packages = true` the packages of its base.
  void add_base_of(const std::filesystem::path& prefix);

 private:
  std::filesystem::path in_image(const std::filesystem::path& path) const;
  void add_root(const std::filesystem::path& folder);
  void add_path_file(const std::filesystem::path& file);
  void add_finder(const std::filesystem::path& file);
  void add_egg_link(const std::filesystem::path& file);
  void add_metadata(const std::filesystem::path& info, const std::filesystem::path& file);
  void add_source(const std::filesystem::path& direct_url, Listed& one);
  /// "" of a file that is not there; one that cannot be read is unread.
  std::string text_of(const std::filesystem::path& file);
  Inventory& inventory_;
};

}  // namespace patchbench
