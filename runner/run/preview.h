#pragma once
#include <string>

#include "run/setup.h"

namespace patchbench {

/// What a reproduction would run, fetch and take, found without starting or fetching anything:
/// {"slug", "upstream", "device", "plan" (RunPlan::to_json; edits as the pack has them),
/// "upstream_file", "environment", "fetch_bytes", "disk_bytes", "gpu_memory", "time"}. Sizes come
/// from the index and the lock; memory and time from the newest record of such a run (ledger, then
/// committed evidence), or are said to be unmeasured.
Json preview_of(const Context& context, const RunRequest& request);
std::string preview_text(const Json& preview);

}  // namespace patchbench
