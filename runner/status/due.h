#pragma once
#include <string>
#include <vector>

#include "status/pack_records.h"

namespace patchbench {

/// One bench file of a pack's evidence.
struct Bench {
  std::string path;
  Json document;
};
/// `reports/evidence/<slug>/bench*.json` in order. Throws Error(kUsage) `<path>:<line>: <reason>`.
std::vector<Bench> benches_of(const Context& context, const Slug& slug);

/// Something that a pack's lifecycle asks for now, or a note next to it.
struct Due {
  std::string what;  ///< "review", "admission", "deletion", "retirement", "demotion", "note"
  std::string why;   ///< one line with the figures
  std::vector<std::string> records;  ///< digests that it rests on
};
/// What is due on a day (YYYY-MM-DD):
/// review: review_on has passed · admission: the manifest still owes it · deletion: keep is drop ·
/// retirement: the newest locked release of the upstream that the mitigation acts on is green on
/// every trigger that was red at the red pin, on each kind of device that judged it · demotion:
/// over the last two runs of the op on a device its worst error grew by more than 5 % each time, or
/// neither was validated where an earlier one was; or a bench shows the plain computation faster
/// than the op beyond both spreads, at a peak of memory that is not larger or was not measured.
/// Last come the notes: another upstream is green, or the plain computation is faster and takes
/// more memory.
std::vector<Due> due_of(const Context& context, const PackRecords& verdicts, const Manifest& pack,
                        const std::string& today);
/// False for a note.
bool is_due(const Due& one);

}  // namespace patchbench
