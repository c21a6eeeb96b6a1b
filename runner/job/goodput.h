#pragma once
#include <string>
#include <string_view>

#include "core/json.h"

namespace patchbench::job {

/// A run report, checked. `digest`: of its RFC 8785 form.
struct RunReport {
  Json json;
  std::string digest;
  /// Throws Error(kUsage) with path and line on what schema or sums do not allow: steps that take
  /// longer than the run, parts longer than their step, fewer than 20 steps.
  static RunReport parse(std::string_view text, const std::string& path, std::string_view schema);
};

/// What the whole run gains: {"ratio", "interval" of 95 %, "keep", "before", "after", …}.
/// ratio = goodput after / goodput before, goodput = tokens that count / wall time of the run. The
/// interval is a bootstrap over blocks of consecutive steps (they are not independent), with a
/// fixed seed: the same reports give the same numbers. It holds the noise within two runs, not
/// that between runs. keep: "keep" above 1, "drop" below, "conditional" where it holds 1.
/// Throws Error(kUsage) on runs of another model, batch, hardware or backend family.
Json compare_runs(const RunReport& before, const RunReport& after);

}  // namespace patchbench::job
