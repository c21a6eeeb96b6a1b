#include "status/source_copies.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/digest.h"
#include "core/file_text.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;
using Copies = std::map<std::string, std::vector<SourceCopy>>;

constexpr std::size_t kMaxEntries = 1'000'000;
constexpr std::uintmax_t kMaxFileBytes = 32 << 20;
constexpr int kMaxDepth = 40;

/// A file that is looked for.
struct WantedFile {
  std::string upstream, path;
};

std::string digest_of(const Inventory& inventory, const fs::path& file) {
  std::error_code failed;
  const bool is_small = fs::file_size(file, failed) <= kMaxFileBytes && !failed;
  if (is_small && inventory.may_read(file)) {
    if (const auto text = file_text(file)) return sha256_hex(*text);
  }
  return "unreadable";
}

class Finder {
 public:
  Finder(Inventory& inventory, const std::map<std::string, std::set<std::string>>& wanted)
      : inventory_(inventory) {
    for (const auto& [upstream, files] : wanted) {
      for (const std::string& file : files)
        by_name_[fs::path(file).filename().string()].push_back({upstream, file});
    }
  }

  Copies find() {
    for (const fs::path& root : inventory_.roots) {
      // A link into a checkout is not walked.
      for (const auto& [name, files] : by_name_) {
        for (const WantedFile& one : files) add(one, root);
      }
    }
    for (const fs::path& root : inventory_.roots) {
      const bool is_below =
          std::any_of(inventory_.roots.begin(), inventory_.roots.end(), [&](const fs::path& other) {
            return other != root && root.string().starts_with(other.string() + "/");
          });
      if (!is_below) walk(root);
    }
    Copies found;
    for (auto& [key, copy] : copies_) found[key.first].push_back(std::move(copy));
    return found;
  }

 private:
  void add(const WantedFile& one, const fs::path& root) {
    std::error_code none;
    if (!fs::is_regular_file(root / one.path, none)) return;
    const fs::path real = fs::canonical(root, none);
    SourceCopy& copy = copies_[{one.upstream, real}];
    copy.root = real;
    if (!copy.files.contains(one.path))
      copy.files[one.path] = digest_of(inventory_, root / one.path);
  }

  void walk(const fs::path& root) {
    std::error_code none;
    std::size_t num_entries = 0;
    auto it =
        fs::recursive_directory_iterator(root, fs::directory_options::skip_permission_denied, none);
    for (; it != fs::recursive_directory_iterator(); it.increment(none)) {
      if (++num_entries > kMaxEntries || it.depth() > kMaxDepth) {
        inventory_.list.leave_unread(
            fmt::format("{}: more than {} files or {} folders deep; name the folder of one "
                        "environment",
                        root.string(), kMaxEntries, kMaxDepth));
        return;
      }
      const std::string name = it->path().filename().string();
      if (it->is_directory(none)) {
        const bool is_skipped = name == "__pycache__" || name == ".git" ||
                                name.ends_with(".dist-info") ||
                                inventory_.left_out.contains(it->path());
        if (is_skipped) it.disable_recursion_pending();
        const bool is_closed = ::access(it->path().c_str(), R_OK | X_OK) != 0;
        if (is_closed && !it->is_symlink(none))
          inventory_.list.leave_unread(it->path().string() + ": cannot be read");
        continue;
      }
      const auto wanted = by_name_.find(name);
      if (wanted == by_name_.end()) continue;
      const std::string path = it->path().string();
      for (const WantedFile& one : wanted->second) {
        if (path.ends_with("/" + one.path))
          add(one, path.substr(0, path.size() - one.path.size() - 1));
      }
    }
    if (none) inventory_.list.leave_unread(root.string() + ": " + none.message());
  }

  Inventory& inventory_;
  std::map<std::string, std::vector<WantedFile>> by_name_;
  std::map<std::pair<std::string, fs::path>, SourceCopy> copies_;
};

}  // namespace

std::map<std::string, std::string> SourceCopy::digests(
    const std::vector<std::string>& wanted) const {
  std::map<std::string, std::string> out;
  bool is_any = false;
  for (const std::string& file : wanted) {
    const auto at = files.find(file);
    out[file] = at == files.end() ? "absent" : at->second;
    is_any |= at != files.end();
  }
  return is_any ? out : std::map<std::string, std::string>{};
}

Copies copies_in(Inventory& inventory, const std::map<std::string, std::set<std::string>>& wanted) {
  return Finder(inventory, wanted).find();
}

}  // namespace patchbench
