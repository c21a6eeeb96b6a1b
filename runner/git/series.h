#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/checkout.h"

namespace patchbench::git {

/// The `NNNN-*.edit` of a pack's patches folder in order; each alone on the pin, its
/// `mutant-*.edit`, wrong on purpose, and its `claimed-*.edit`, which do what a proposal says.
struct Series {
  std::vector<Edit> edits, mutants, claimed;
};
/// An absent folder is an empty series. Throws Error(kUsage) for a malformed edit, one without all
/// the fields that a pack's edit needs, and an `.edit` of another name.
/// `upstream`: only the edits whose header names that upstream; "" takes all.
Series load_series(const std::filesystem::path& folder, const std::string& upstream = "");

/// The part of a pack's edits that serves `version`: those written for it (header Base), where
/// there are any, else those for `red_pin`, to be carried by three-way merge. `base` says which it
/// is.
struct BasedSeries {
  Series series;
  std::string base;
};
BasedSeries series_for(const Series& all, const std::string& version, const std::string& red_pin);

// In what follows `before` are the edits of the same series that come first: an edit's base is the
// pin after them.

/// Unified diff of one edit against its base (libgit2; three lines of context). Never to be
/// committed: holds upstream context.
std::string unified_diff(const Edit& edit, const Pin& pin, Store& store,
                         const std::vector<Edit>& before = {});

/// A `git am`-able mail for one edit at the pin, in the git layout (`git_prefix` + path).
/// Byte-stable. Lines that end in CR need `git am --keep-cr`; the mail says so below its `---`.
std::string format_mail(const Edit& edit, const Pin& pin, Store& store,
                        const std::string& git_prefix, int number, int total,
                        const std::vector<Edit>& before = {});

/// Edits from other forms: a unified diff (git's or plain; mails too), or a changed copy of the
/// pin's package root. Only files of the upstream's package count in a folder. Throws Error(kUsage)
/// if the diff does not apply exactly (no fuzz, no offset), holds renames or binaries, or if
/// nothing differs.
Edit edit_from_diff(std::string_view diff, const Pin& pin, Store& store, const std::string& name,
                    const std::vector<Edit>& before = {});
Edit edit_from_folder(const std::filesystem::path& changed_package, const Pin& pin, Store& store,
                      const std::string& name, const std::vector<Edit>& before = {});

/// One conflict of a rebase.
struct Conflict {
  std::string path;
  int first_line = 0,
      last_line = 0;  ///< of the new upstream's file; the line before where it has no line there
  std::string ours, theirs;  ///< both sides' lines (shown, never stored)
};

/// What a three-way merge (base blob, edited blob, new blob) gave.
struct Rebase {
  enum class State { kClean, kLanded, kConflict, kMissingFile } state = State::kClean;
  std::optional<Edit> edit;         ///< kClean: the edit against the new pin, landed files left out
  std::vector<Conflict> conflicts;  ///< kConflict; for kMissingFile the path alone
};
/// `before_from` and `before_to`: what the edit rests on at either pin.
Rebase rebase_edit(const Edit& edit, const Pin& from, const Pin& to, Store& store,
                   const std::vector<Edit>& before_from = {},
                   const std::vector<Edit>& before_to = {});
std::string rebase_state_name(
    Rebase::State state);  ///< "clean", "landed", "conflict", "missing_file"

/// Each edit of a series on top of the rebased ones before it. Stops after the first that is
/// neither clean nor landed, so the result may be shorter than the series.
std::vector<Rebase> rebase_series(const std::vector<Edit>& edits, const Pin& from, const Pin& to,
                                  Store& store);

/// Two series that cannot both be applied to a pin.
struct Clash {
  std::string one, other;  ///< names of the series
  std::vector<Conflict>
      conflicts;  ///< ours: `one`, theirs: `other`; lines of the file after `other`
};
/// Every pair of series (by name, each against the pin) whose three-way merge conflicts.
std::vector<Clash> clashes_of(const std::map<std::string, std::vector<Edit>>& series,
                              const Pin& pin, Store& store);

}  // namespace patchbench::git
