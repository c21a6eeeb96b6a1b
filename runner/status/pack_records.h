#pragma once
#include <string>
#include <vector>

#include "core/verdict_index.h"
#include "ledger/record_index.h"
#include "workbench/context.h"

namespace patchbench {

/// Whose records are looked at.
struct VerdictFilter {
  std::string slug;         ///< "" for every pack
  std::string before;       ///< only what was made before this time; "" for all
  bool with_ledger = true;  ///< false: the committed evidence alone
};

/// What is known of the packs, from the ledger and the committed evidence.
struct PackRecords {
  std::vector<Manifest> packs;  ///< by number
  Pins pins;
  ledger::RecordIndex records;
  JudgedDigests judged;
  VerdictIndex verdict_index;
};
/// Throws Error(kUsage) with did-you-mean for an unknown slug.
PackRecords read_pack_records(const Context& context, const VerdictFilter& options);
/// Another index of the same records.
VerdictIndex verdict_index_of(const PackRecords& verdicts, const VerdictFilter& options);

/// A release's companions, red pins left out: "" without an unusual one.
std::string unusual(const std::string& companions, const Manifest& pack);

/// The observations that a verdict rests on, as far as they are there.
std::vector<Observation> cited_observations(const ledger::RecordIndex& archive,
                                            const std::string& verdict);

/// "0.8.0", "2.3.2.post1 with triton 3.5.1": a key's version and its unusual companions.
std::string version_text(const VerdictKey& key);
/// Whether what a verdict of all cases earned was earned by other cases, limits or subjects than
/// the manifest has now, or before the judge asked for the regions of the inputs.
bool is_older_run(const PackRecords& verdicts, const Finding& finding,
                  const QuestionContext& question);
/// What a finding says (`described`, with every failure class that was seen), and its marks:
/// "BUG_ABSENT (unisolated)".
std::string marked(const PackRecords& verdicts, const Finding& finding);

}  // namespace patchbench
