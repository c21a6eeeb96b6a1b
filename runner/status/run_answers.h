#pragma once
#include <string>
#include <vector>

#include "core/scan_report.h"
#include "report/table.h"
#include "status/past_runs.h"
#include "status/verdict_table.h"

namespace patchbench {

/// One failure class that a run may have met.
struct RunClass {
  std::size_t answer = 0;  ///< of the report
  ScanClass shown;
  ConditionState condition = ConditionState::kOpen;
};

/// One run, with what the packs say of its packages.
struct RunAnswer {
  std::string name, tracker, day;
  std::size_t first = 0, last = 0;  ///< its answers in the report, `last` behind them
  std::size_t num_unread = 0;       ///< its lines of the report's `unread`
  std::vector<RunClass> classes;    ///< of its hits
};

/// The answers for many runs. A run is not hit by a release if its settings rule out the condition
/// of every class.
struct RunsReport {
  ScanReport report;
  std::vector<RunAnswer> runs;
};
RunsReport runs_report(const std::vector<Manifest>& packs, const VerdictTable& table,
                       PastRuns found);

/// What is said of one run: "hit" where the condition of a class was met or is open, else
/// "unknown", "not_hit" or "not_listed" (no package of a pack).
std::string run_state(const RunsReport& runs, const RunAnswer& run);

std::string runs_text(const RunsReport& runs, int exit_code, const report::Style& style);
Json runs_json(const RunsReport& runs, int exit_code);

}  // namespace patchbench
