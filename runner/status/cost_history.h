#pragma once
#include <string>
#include <vector>

#include "report/table.h"
#include "status/pack_records.h"
#include "status/windows.h"

namespace patchbench {

/// What one release took, as it said of itself.
struct ReleaseCost {
  std::string version;
  BugState state = BugStatus::kNotMeasured;
  double seconds = 0;  ///< in the cases that all releases ran, one call each: compilation counts
  int64_t peak_bytes = 0;  ///< the greatest of these cases
};

/// Releases in a row in which a case's peak is about the same: within 1.5 times the first's.
struct CostRange {
  std::string first, last;
  int64_t peak_bytes = 0;  ///< of the first
};

/// The costs of a pack's releases on one GPU.
struct DeviceClassCosts {
  std::vector<ReleaseCost> releases;  ///< those that were judged, oldest first
  std::vector<std::string> cases;     ///< that all of these ran
  /// Of each case whose peak changed and reached 1 MiB, by name: its ranges, at least two.
  std::vector<std::pair<std::string, std::vector<CostRange>>> changes;
};
/// From the observations of the newest records. Empty on a CPU, whose peaks hold the interpreter.
DeviceClassCosts cost_history_of(const PackRecords& verdicts, const DeviceClassWindow& window);

Json cost_history_json(const DeviceClassCosts& cost_history);
/// A table by release and a line a change; "" without costs.
std::string render_cost_history(const DeviceClassCosts& cost_history, const std::string& device,
                                const report::Style& style);

}  // namespace patchbench
