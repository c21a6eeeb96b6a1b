#include "git/rebase.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/edit_make.h"
#include "core/error.h"
#include "git/objects.h"

namespace patchbench::git {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<Conflict> located(const std::string& path, const Merged& merged) {
  std::vector<Conflict> conflicts;
  for (const MergeConflict& region : merged.conflicts) {
    const auto count = static_cast<int>(region.theirs.size());
    const int first = std::max(region.theirs_first - (count > 0 ? 0 : 1), 1);
    conflicts.push_back(
        {path, first, first + std::max(count, 1) - 1, joined(region.ours), joined(region.theirs)});
  }
  return conflicts;
}

/// A conflict of two whole files.
Conflict whole(const std::string& path, const std::optional<std::string>& ours,
               const std::optional<std::string>& theirs) {
  const auto count = static_cast<int>(split_lines(theirs.value_or("")).size());
  return {path, 1, std::max(count, 1), ours.value_or(""), theirs.value_or("")};
}

/// Versions of one file: nullopt where it is absent.
struct Sides {
  std::optional<std::string> base, ours, theirs;
};

struct FileMerge {
  Rebase::State state = Rebase::State::kClean;
  std::optional<std::string> text;  ///< kClean
  std::vector<Conflict> conflicts;
};

FileMerge merge_sides(const std::string& path, const Sides& sides) {
  if (sides.ours == sides.theirs) return {Rebase::State::kLanded, std::nullopt, {}};
  if (sides.base == sides.theirs) return {Rebase::State::kClean, sides.ours, {}};
  if (!sides.theirs) return {Rebase::State::kMissingFile, std::nullopt, {{path, 0, 0, "", ""}}};
  if (!sides.base || !sides.ours) {
    return {Rebase::State::kConflict, std::nullopt, {whole(path, sides.ours, sides.theirs)}};
  }
  const Merged merged = merge_file(*sides.base, *sides.ours, *sides.theirs);
  if (!merged.is_clean) return {Rebase::State::kConflict, std::nullopt, located(path, merged)};
  if (merged.text == *sides.theirs) return {Rebase::State::kLanded, std::nullopt, {}};
  return {Rebase::State::kClean, merged.text, {}};
}

std::optional<std::string_view> view(const std::optional<std::string>& text) {
  return text ? std::optional<std::string_view>(*text) : std::nullopt;
}

}  // namespace

std::string rebase_state_name(Rebase::State state) {
  switch (state) {
    case Rebase::State::kClean:
      return "clean";
    case Rebase::State::kLanded:
      return "landed";
    case Rebase::State::kConflict:
      return "conflict";
    case Rebase::State::kMissingFile:
      return "missing_file";
  }
  throw Error(ErrorCode::kInternal, "unknown state of a rebase");
}

Rebase rebase_edit(const Edit& edit, const Pin& from, const Pin& to, Store& store,
                   const std::vector<Edit>& before_from, const std::vector<Edit>& before_to) {
  std::vector<Edit> with_edit = before_from;
  with_edit.push_back(edit);
  Edit carried = edit;
  carried.files.clear();
  Rebase rebase;
  bool is_missing = false;
  for (const FileEdit& file : edit.files) {
    const Sides sides{read_after(store, from, before_from, file.path),
                      read_after(store, from, with_edit, file.path),
                      read_after(store, to, before_to, file.path)};
    const FileMerge merge = merge_sides(file.path, sides);
    rebase.conflicts.insert(rebase.conflicts.end(), merge.conflicts.begin(), merge.conflicts.end());
    is_missing = is_missing || merge.state == Rebase::State::kMissingFile;
    if (merge.state != Rebase::State::kClean) continue;
    FileEdit moved = sides.base == sides.theirs
                         ? file
                         : make_file_edit(file.path, view(sides.theirs), view(merge.text));
    moved.mode = file.mode;
    carried.files.push_back(std::move(moved));
  }
  if (!rebase.conflicts.empty()) {
    rebase.state = is_missing ? Rebase::State::kMissingFile : Rebase::State::kConflict;
  } else if (carried.files.empty()) {
    rebase.state = Rebase::State::kLanded;
  } else {
    carried.set_field("Base", to.version);
    rebase.edit = std::move(carried);
  }
  return rebase;
}

std::vector<Rebase> rebase_series(const std::vector<Edit>& edits, const Pin& from, const Pin& to,
                                  Store& store) {
  std::vector<Rebase> rebases;
  std::vector<Edit> before_from, before_to;
  for (const Edit& edit : edits) {
    rebases.push_back(rebase_edit(edit, from, to, store, before_from, before_to));
    const Rebase& last = rebases.back();
    if (last.state != Rebase::State::kClean && last.state != Rebase::State::kLanded) break;
    before_from.push_back(edit);
    if (last.edit) before_to.push_back(*last.edit);
  }
  return rebases;
}

std::vector<Clash> clashes_of(const std::map<std::string, std::vector<Edit>>& series,
                              const Pin& pin, Store& store) {
  const auto paths_of = [](const std::vector<Edit>& edits) {
    std::set<std::string> paths;
    for (const Edit& edit : edits) {
      for (const FileEdit& file : edit.files) paths.insert(file.path);
    }
    return paths;
  };
  std::vector<Clash> clashes;
  for (auto one = series.begin(); one != series.end(); ++one) {
    const std::set<std::string> mine = paths_of(one->second);
    for (auto other = std::next(one); other != series.end(); ++other) {
      Clash clash{one->first, other->first, {}};
      for (const std::string& path : paths_of(other->second)) {
        if (!mine.contains(path)) continue;
        const FileMerge merge =
            merge_sides(path, {store.read(pin, path), read_after(store, pin, one->second, path),
                               read_after(store, pin, other->second, path)});
        clash.conflicts.insert(clash.conflicts.end(), merge.conflicts.begin(),
                               merge.conflicts.end());
      }
      if (!clash.conflicts.empty()) clashes.push_back(std::move(clash));
    }
  }
  return clashes;
}

}  // namespace patchbench::git
