#pragma once
#include <string>

#include "run/trial.h"

namespace patchbench {

/// What a reproduction would fetch and take, found without starting or fetching anything:
/// {"slug", "upstream", "device", "upstream_file", "environment", "fetch_bytes", "disk_bytes",
/// "gpu_memory", "time"}. Sizes come from the index and the lock; memory and time from the newest
/// record of such a run (ledger, then committed evidence), or are said to be unmeasured.
Json plan_of(const Context& context, const RunOptions& options);
std::string render_plan(const Json& plan);

}  // namespace patchbench
