#include "git/checkout.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "git/history.h"
#include "git/source.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out)
    throw Error(ErrorCode::kInternal, path.string() + ": cannot be written; is the disk full?");
}

/// The first thing on disk that is not what the tree says, "" if all is.
std::string first_difference(const fs::path& root, const Entries& entries) {
  size_t num_seen = 0;
  for (auto at = fs::recursive_directory_iterator(root); at != fs::recursive_directory_iterator();
       ++at) {
    const std::string name = at->path().lexically_relative(root).generic_string();
    if (name == ".git") continue;
    if (at->is_directory() && !at->is_symlink()) continue;
    const auto entry = entries.find(name);
    if (entry == entries.end()) return name + " was added";
    const bool is_file = at->is_symlink() || at->is_regular_file();
    if (!is_file) return name + " is no file";
    const DiskFile disk = read_disk_file(at->path());
    if (disk.mode != entry->second.mode) return name + " has mode " + disk.mode;
    if (git_blob_id(disk.bytes) != entry->second.id) return name + " differs";
    ++num_seen;
  }
  const auto num_files = static_cast<size_t>(std::count_if(
      entries.begin(), entries.end(), [](const auto& row) { return row.second.mode != "160000"; }));
  return num_seen == num_files ? "" : std::to_string(num_files - num_seen) + " files are missing";
}

void write_entry(const fs::path& path, const Entry& entry, const Objects& objects) {
  if (entry.mode == "160000") {
    fs::create_directories(path);
    return;
  }
  fs::create_directories(path.parent_path());
  const std::string bytes = objects.read_blob(entry.id);
  if (entry.mode == "120000") {
    fs::create_symlink(bytes, path);
    return;
  }
  write_text(path, bytes);
  ::chmod(path.c_str(), entry.mode == "100755" ? 0755 : 0644);
}

/// One upstream's part of the cache, locked.
class Vault {
 public:
  Vault(Places places, const Pin& pin, const std::string& package)
      : places_(std::move(places)),
        lock_(places_, pin.upstream),
        objects_(Objects::open(places_.bare(pin.upstream))),
        pin_(pin),
        source_(bring(pin, package, places_, objects_)) {}

  const Source& source() const { return source_; }
  Objects& objects() { return objects_; }

  /// Package-relative path -> entry.
  Entries package_entries() const {
    Entries inside;
    for (auto& [path, entry] : objects_.read_tree(source_.tree)) {
      if (path.starts_with(source_.prefix)) inside[path.substr(source_.prefix.size())] = entry;
    }
    return inside;
  }

  /// The tree with the edits applied in order.
  std::string edited_tree(const std::vector<Edit>& edits) {
    if (edits.empty()) return source_.tree;
    Entries entries = objects_.read_tree(source_.tree);
    for (const Edit& edit : edits) {
      for (const FileEdit& file : edit.files) {
        try {
          apply(file, entries);
        } catch (const Error& e) {
          throw e.in(edit.name + " on " + pin_.upstream + " " + pin_.version);
        }
      }
    }
    return objects_.write_tree(entries);
  }

  /// The worktree of a tree: what is there if it is sound, else made anew.
  Checkout worktree(const std::string& tree) {
    const fs::path path = places_.checkouts(pin_.upstream) / tree;
    const Entries entries = objects_.read_tree(tree);
    if (fs::exists(path)) {
      const std::string difference = first_difference(path, entries);
      if (!difference.empty()) {
        say(path.string() + ": " + difference + " since it was checked out; making it anew");
        fs::remove_all(path);
      }
    }
    if (!fs::exists(path)) write_files(path, entries);
    link(path, tree);
    const std::string& prefix = source_.prefix;
    return {path, prefix.empty() ? path : path / prefix.substr(0, prefix.size() - 1), tree};
  }

 private:
  void apply(const FileEdit& file, Entries& entries) {
    const std::string path = source_.prefix + file.path;
    const auto entry = entries.find(path);
    if (entry == entries.end() && !file.blob.empty()) {
      throw Error(ErrorCode::kUsage, file.path + ": the edit wants the base blob " + file.blob +
                                         ", this version has no such file");
    }
    if (entry != entries.end() && file.blob.empty()) {
      throw Error(ErrorCode::kUsage,
                  file.path + ": the edit adds this file, this version has it already");
    }
    const std::string base = entry == entries.end() ? "" : objects_.read_blob(entry->second.id);
    const std::string mode = entry == entries.end() ? "100644" : entry->second.mode;
    const std::string text = apply_file_edit(file, base);
    if (file.result.empty()) {
      entries.erase(entry);
    } else {
      entries[path] = {objects_.write_blob(text), file.mode.empty() ? mode : file.mode};
    }
  }

  void write_files(const fs::path& path, const Entries& entries) const {
    const fs::path part = path.string() + ".tmp";
    fs::remove_all(part);
    fs::create_directories(part);
    for (const auto& [name, entry] : entries) write_entry(part / name, entry, objects_);
    write_text(part / ".git", "gitdir: " + admin(path).string() + "\n");
    fs::rename(part, path);
  }

  /// Where git keeps its half of a worktree.
  fs::path admin(const fs::path& path) const {
    return fs::absolute(places_.bare(pin_.upstream)) / "worktrees" / path.filename();
  }

  /// Makes the folder a worktree in git's eyes; HEAD is written last and marks the work as done.
  void link(const fs::path& path, const std::string& tree) {
    const fs::path folder = admin(path);
    if (fs::exists(folder / "HEAD")) return;
    fs::create_directories(folder);
    write_text(folder / "commondir", "../..\n");
    write_text(folder / "gitdir", (fs::absolute(path) / ".git").string() + "\n");
    objects_.write_index(folder / "index", tree);
    const std::string commit =
        tree == source_.tree
            ? source_.commit
            : objects_.write_commit(tree, pin_.upstream + " " + pin_.version + ", edited");
    write_text(folder / "HEAD.tmp", commit + "\n");
    fs::rename(folder / "HEAD.tmp", folder / "HEAD");
  }

  Places places_;
  UpstreamLock lock_;
  Objects objects_;
  Pin pin_;
  Source source_;
};

/// Runs `work` on the pin's vault; a damaged repository is removed and filled once more.
template <typename Work>
auto with_vault(const Places& places, const Pin& pin, const std::string& package,
                const Work& work) {
  try {
    Vault vault(places, pin, package);
    return work(vault);
  } catch (const Damaged& e) {
    say(places.bare(pin.upstream).string() + " is damaged (" + e.what() + "); filling it again");
    const UpstreamLock lock(places, pin.upstream);
    fs::remove_all(places.bare(pin.upstream));
  }
  Vault vault(places, pin, package);
  return work(vault);
}

/// The import package of a folder's or a commit's upstream; a released file is taken whole.
std::string package_of(const Store& store, const Pin& pin) {
  return pin.kind == PinKind::kFile ? "" : store.upstream_of(pin).package;
}

}  // namespace

Store::Store(const fs::path& cache, const fs::path& root)
    : cache_(fs::absolute(cache)), root_(fs::absolute(root)) {}

Upstream Store::upstream_of(const Pin& pin) const {
  const fs::path path = root_ / "env" / "pins.json";
  return Pins::parse(read_file(path), path.string()).upstream(pin.upstream);
}

Checkout Store::materialize(const Pin& pin, const std::vector<Edit>& edits) {
  return with_vault(Places{cache_, root_}, pin, package_of(*this, pin),
                    [&](Vault& vault) { return vault.worktree(vault.edited_tree(edits)); });
}

std::optional<std::string> Store::read(const Pin& pin, const std::string& path) {
  return with_vault(Places{cache_, root_}, pin, package_of(*this, pin),
                    [&](Vault& vault) -> std::optional<std::string> {
                      const Entries entries = vault.package_entries();
                      const auto entry = entries.find(path);
                      if (entry == entries.end() || entry->second.mode == "160000")
                        return std::nullopt;
                      return vault.objects().read_blob(entry->second.id);
                    });
}

Entries Store::entries(const Pin& pin) {
  return with_vault(Places{cache_, root_}, pin, package_of(*this, pin),
                    [](Vault& vault) { return vault.package_entries(); });
}

std::vector<std::string> Store::list(const Pin& pin) {
  std::vector<std::string> paths;
  for (const auto& [path, entry] : entries(pin)) paths.push_back(path);
  return paths;
}

std::map<std::string, std::string> Store::digests(const Checkout& checkout,
                                                  const std::vector<std::string>& files) {
  std::map<std::string, std::string> digests;
  for (const std::string& file : files) {
    const fs::path path = checkout.package / file;
    digests[file] = fs::is_regular_file(path) ? sha256_hex(read_file(path)) : "absent";
  }
  return digests;
}

std::vector<Pin> Store::commits_between(const Pin& good, const Pin& bad,
                                        const std::vector<std::string>& files) {
  return History(Places{cache_, root_}, upstream_of(bad)).commits_between(good, bad, files);
}

std::optional<std::string> read_after(Store& store, const Pin& pin, const std::vector<Edit>& before,
                                      const std::string& path) {
  std::optional<std::string> bytes = store.read(pin, path);
  for (const Edit& edit : before) {
    for (const FileEdit& file : edit.files) {
      if (file.path != path) continue;
      const std::string where = edit.name + " on " + pin.upstream + " " + pin.version;
      if (bytes.has_value() == file.blob.empty()) {
        throw Error(ErrorCode::kUsage, where + ": " + path +
                                           (bytes ? " is there already" : " is not there") +
                                           "; the series does not apply");
      }
      try {
        const std::string text = apply_file_edit(file, bytes.value_or(""));
        bytes = file.result.empty() ? std::nullopt : std::optional(text);
      } catch (const Error& e) {
        throw e.in(where);
      }
    }
  }
  return bytes;
}

}  // namespace patchbench::git
