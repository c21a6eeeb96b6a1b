#pragma once
#include <string>
#include <vector>

#include "core/board.h"
#include "ledger/archive.h"
#include "workbench/context.h"

namespace patchbench {

/// Whose records are looked at.
struct VerdictFilter {
  std::string slug;         ///< "" for every pack
  std::string before;       ///< only what was made before this time; "" for all
  bool with_ledger = true;  ///< false: the committed evidence alone
};

/// What is known of the packs, from the ledger and the committed evidence.
struct VerdictIndex {
  std::vector<Manifest> packs;  ///< by number
  Pins pins;
  ledger::Archive archive;
  JudgedDigests judged;
  Board board;
};
/// Throws Error(kUsage) with did-you-mean for an unknown slug.
VerdictIndex index_verdicts(const Context& context, const VerdictFilter& options);
/// Another board of the same records.
Board board_of(const VerdictIndex& verdicts, const VerdictFilter& options);

/// A release's companions, red pins left out: "" without an unusual one.
std::string unusual(const std::string& beside, const Manifest& pack);

/// The observations that a verdict rests on, as far as they are there.
std::vector<Observation> cited_observations(const ledger::Archive& archive,
                                            const std::string& verdict);

/// "0.8.0", "2.3.2.post1 with triton 3.5.1": a place's version and its unusual companions.
std::string version_text(const Place& place);
/// What a finding says (`described`, with every failure class that was seen), and its marks:
/// "BUG_ABSENT (unisolated)".
std::string marked(const VerdictIndex& verdicts, const Finding& finding);

}  // namespace patchbench
