#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/edit.h"
#include "core/pin.h"
#include "git/checkout.h"

namespace patchbench::git {

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
