#pragma once
#include <string>
#include <vector>

#include "core/manifest.h"
#include "core/pin.h"
#include "ledger/book.h"

namespace patchbench::cli {

/// What the newest verdict says of one release on one kind of device.
struct MeasuredState {
  std::string device, state;  ///< "absent", a failure class, or "unresolved"
  std::string started, digest;
};

/// One locked release and what was measured of it; nothing where nothing was.
struct MeasuredRelease {
  Pin pin;
  std::vector<MeasuredState> states;  ///< one a device, by its name
};

/// Every locked release of an upstream of a pack, oldest first, as the records of `book` have it:
/// the release itself (no edits), with the pack's other upstreams at their red pins.
std::vector<MeasuredRelease> measured_releases(const ledger::Book& book, const Manifest& manifest,
                                               const Upstream& upstream);

/// The red pin of an upstream that stands beside the one under test.
bool stands_at_red_pins(const Manifest& manifest, const RunContext& run);

}  // namespace patchbench::cli
