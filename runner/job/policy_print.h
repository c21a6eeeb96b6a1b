#pragma once
#include <set>
#include <string>

#include "job/policy.h"

namespace patchbench::job {

enum class Format { kSh, kDocker, kSlurm, kJson, kPython };
/// The environment as lines for a shell, a `docker run --env-file`, a Slurm TaskProlog or Python's
/// first lines, or as one JSON object. `folder` is where the caches go.
std::string print(const Policy& policy, Format format, const std::set<std::string>& choices,
                  const std::string& folder);

}  // namespace patchbench::job
