#include "git/series.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <regex>
#include <set>

#include "core/digest.h"
#include "core/edit_make.h"
#include "core/edit_over.h"
#include "core/error.h"
#include "git/objects.h"
#include "git/source.h"

namespace patchbench::git {
namespace {

namespace fs = std::filesystem;

Edit load_pack_edit(const fs::path& path) {
  try {
    Edit edit = load_edit(path);
    const std::vector<std::string> missing = missing_fields(edit);
    if (missing.empty()) return edit;
    throw Error(ErrorCode::kUsage, edit.name + ":1: the header has no " + missing.front());
  } catch (const Error& e) {
    throw e.in(path.parent_path().string());
  }
}

/// The package's files of a pin after `before`, with their bytes read only where an edit made them.
Entries entries_after(const Pin& pin, Store& store, const std::vector<Edit>& before) {
  Entries entries = store.entries(pin);
  std::set<std::string> touched;
  for (const Edit& edit : before) {
    for (const FileEdit& file : edit.files) {
      touched.insert(file.path);
      if (!file.mode.empty()) entries[file.path].mode = file.mode;
    }
  }
  for (const std::string& path : touched) {
    const std::optional<std::string> bytes = read_after(store, pin, before, path);
    if (!bytes) {
      entries.erase(path);
      continue;
    }
    Entry& entry = entries[path];
    entry.id = git_blob_id(*bytes);
    if (entry.mode.empty()) entry.mode = "100644";
  }
  return entries;
}

bool is_file(const Entry& entry) { return entry.mode == "100644" || entry.mode == "100755"; }

std::string package_folder(const Pin& pin, const Store& store) {
  std::string folder = store.upstream_of(pin).package;
  std::replace(folder.begin(), folder.end(), '.', '/');
  return folder + "/";
}

/// The edit of one path between the pin's entry (may be null) and a file on disk (may be null).
std::optional<FileEdit> changed_file(const std::string& path, const Entry* entry,
                                     const DiskFile* disk, const Pin& pin, Store& store,
                                     const std::vector<Edit>& before) {
  if ((entry != nullptr && !is_file(*entry)) || (disk != nullptr && disk->mode == "120000"))
    return std::nullopt;
  const bool is_same_text =
      entry != nullptr && disk != nullptr && git_blob_id(disk->bytes) == entry->id;
  if (is_same_text && entry->mode == disk->mode) return std::nullopt;
  const std::optional<std::string> base =
      entry == nullptr ? std::nullopt : read_after(store, pin, before, path);
  FileEdit file = disk == nullptr ? make_file_edit(path, base, std::nullopt)
                                  : make_file_edit(path, base, disk->bytes);
  if (disk != nullptr && disk->mode != (entry == nullptr ? "100644" : entry->mode))
    file.mode = disk->mode;
  return file;
}

}  // namespace

Series load_series(const fs::path& folder, const std::string& upstream) {
  Series series;
  if (!fs::exists(folder)) return series;
  static const std::regex kEdit("[0-9]{4}-[a-z0-9][a-z0-9._-]*\\.edit"),
      kMutant("mutant-[a-z0-9][a-z0-9_-]*\\.edit"), kClaimed("claimed-[a-z0-9][a-z0-9_-]*\\.edit");
  std::vector<fs::path> paths;
  for (const auto& item : fs::directory_iterator(folder)) {
    if (item.path().extension() == ".edit") paths.push_back(item.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    const std::string name = path.filename().string();
    if (is_candidate(name)) continue;
    std::vector<Edit>* const kind = std::regex_match(name, kEdit)      ? &series.edits
                                    : std::regex_match(name, kMutant)  ? &series.mutants
                                    : std::regex_match(name, kClaimed) ? &series.claimed
                                                                       : nullptr;
    if (kind == nullptr)
      throw Error(ErrorCode::kUsage, path.string() +
                                         ": an edit is named NNNN-subject.edit, mutant-name.edit, "
                                         "claimed-name.edit, wrong-name.edit or right-name.edit, "
                                         "in lower case");
    Edit edit = load_pack_edit(path);
    if (!upstream.empty() && edit.field("Upstream") != upstream) continue;
    kind->push_back(std::move(edit));
  }
  return series;
}

BasedSeries series_for(const Series& all, const std::string& version, const std::string& red_pin) {
  const auto with_base = [](const std::vector<Edit>& edits, const std::string& base) {
    std::vector<Edit> chosen;
    std::copy_if(edits.begin(), edits.end(), std::back_inserter(chosen),
                 [&](const Edit& edit) { return edit.field("Base") == base; });
    return chosen;
  };
  const std::string base = with_base(all.edits, version).empty() ? red_pin : version;
  return {{with_base(all.edits, base), with_base(all.mutants, base), with_base(all.claimed, base)},
          base};
}

Edit edit_from_folder(const fs::path& changed_package, const Pin& pin, Store& store,
                      const std::string& name, const std::vector<Edit>& before) {
  const std::string package = package_folder(pin, store);
  const Entries entries = entries_after(pin, store, before);
  const std::vector<std::string> listed = files_of_folder(changed_package);
  std::set<std::string> paths(listed.begin(), listed.end());
  for (const auto& [path, entry] : entries) paths.insert(path);
  Edit edit{name,
            {{"Subject", "changes of a folder"}, {"Upstream", pin.upstream}, {"Base", pin.version}},
            {}};
  for (const std::string& path : paths) {
    if (!path.starts_with(package)) continue;
    const auto entry = entries.find(path);
    std::optional<DiskFile> disk;
    if (std::binary_search(listed.begin(), listed.end(), path))
      disk = read_disk_file(changed_package / path);
    std::optional<FileEdit> file =
        changed_file(path, entry == entries.end() ? nullptr : &entry->second,
                     disk ? &*disk : nullptr, pin, store, before);
    if (file) edit.files.push_back(std::move(*file));
  }
  if (edit.files.empty()) {
    throw Error(ErrorCode::kUsage, changed_package.string() + ": nothing under " + package +
                                       " differs from " + pin.upstream + " " + pin.version +
                                       (before.empty() ? "" : " with the series"));
  }
  return edit;
}

}  // namespace patchbench::git
