#pragma once
#include <vector>

#include "core/json.h"
#include "report/page.h"

namespace patchbench::report {

/// The bars of one bench file of the evidence: time and, where it was measured, peak memory, a
/// figure for each shape and variant. Two forms are read: {"runs": [{"shape", "device", "rows":
/// [{"name", "median_ms", "low_ms", "high_ms", "peak_bytes", …}]}]}, and {"device", "rows":
/// [{"shape", "<name>": [median, least, greatest] or {"ms": [...]}}]} with an optional "floor" of
/// one shape. What has neither form gives no bars.
std::vector<PagePack::Bars> bars_of(const Json& bench);

}  // namespace patchbench::report
