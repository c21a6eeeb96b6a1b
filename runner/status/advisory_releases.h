#pragma once
#include <vector>

#include "core/manifest.h"
#include "core/pin.h"
#include "ledger/record_set.h"
#include "report/advisory.h"

namespace patchbench {

/// Every locked release of an upstream of a pack, oldest first, as the verdicts of `record_set`
/// have it: the release itself (no edits), with the pack's other upstreams at their red pins.
std::vector<report::AdvisoryRelease> advisory_releases(const ledger::RecordSet& record_set,
                                                       const Manifest& manifest,
                                                       const Upstream& upstream);

}  // namespace patchbench
