#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/checkout.h"

namespace patchbench::git {

/// The `NNNN-*.edit` of a pack's patches folder in order, and its `mutant-*.edit`.
struct Series {
  std::vector<Edit> edits;
  std::vector<Edit> mutants;
};
Series load_series(const std::filesystem::path& folder);

/// Unified diff of one edit against its base (libgit2; three lines of context). Never to be committed: holds upstream context.
std::string unified_diff(const Edit& edit, const Pin& pin, Store& store);

/// A `git am`-able mail for one edit at the pin, in the git layout (`git_prefix` + path). Byte-stable.
std::string format_mail(const Edit& edit, const Pin& pin, Store& store, const std::string& git_prefix, int number,
                        int total);

/// Edits from other forms: a unified diff, or a changed copy of the pin's tree. Throws Error(kUsage) if the diff does not apply
/// exactly (no fuzz).
Edit edit_from_diff(std::string_view diff, const Pin& pin, Store& store, const std::string& name);
Edit edit_from_folder(const std::filesystem::path& changed_package, const Pin& pin, Store& store,
                      const std::string& name);

/// One conflict of a rebase.
struct Conflict {
  std::string path;
  int first_line = 0, last_line = 0;  ///< of the new upstream's file
  std::string ours, theirs;           ///< both sides' lines (shown, never stored)
};

/// What a three-way merge (base blob, edited blob, new blob) gave.
struct Rebase {
  enum class State { kClean, kLanded, kConflict, kMissingFile } state = State::kClean;
  std::optional<Edit> edit;         ///< kClean: the edit against the new pin
  std::vector<Conflict> conflicts;  ///< kConflict; for kMissingFile the path alone
};
Rebase rebase_edit(const Edit& edit, const Pin& from, const Pin& to, Store& store);
std::string rebase_state_name(Rebase::State state);

}  // namespace patchbench::git
