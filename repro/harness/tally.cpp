#include "harness/tally.h"

#include <fmt/format.h>

#include <cmath>

#include "core/digest.h"
#include "core/looked_at.h"

namespace patchbench::harness {
void Tally::count(const Observation& o) {
  ++reached_;
  inputs_ += o.inputs_sha256;
  merge_watched(watched_, o.self_reported);
  if (class_.empty()) class_ = o.failure_class;
  const bool is_judged = o.status == CaseStatus::kAbsent || o.is_wrong();
  judged_ += is_judged;
  red_ += o.is_wrong();
  unsupported_ += o.status == CaseStatus::kUnsupported;
  const std::string scenario = o.drawn.at("axes").value("scenario", "");
  if (is_judged && !scenario.empty()) ++in_scenario_[scenario];
  const bool has_no_answer =
      o.status == CaseStatus::kUnresolved || o.status == CaseStatus::kUnjudged;
  if (has_no_answer && !o.is_wrong()) unanswered_.emplace(o.case_name + ": " + o.reason);
}

void Tally::summarise(Observation& summary) const {
  summary.drawn["asked"] = asked;
  summary.drawn["judged"] = judged_;
  summary.drawn["same"] = same;
  summary.drawn["red"] = red_;
  summary.drawn["unsupported"] = unsupported_;
  summary.drawn["wall_s"] = std::round(10 * seconds) / 10;
  if (!watched_.empty()) summary.self_reported = watched_;
  if (!in_scenario_.empty()) summary.drawn["scenarios"] = in_scenario_;
  summary.inputs_sha256 = sha256_hex(inputs_);
  const int reached = reached_ + same;
  if (reached < asked || !unanswered_.empty()) {
    summary.status = CaseStatus::kUnresolved;
    summary.reason = reached < asked
                         ? fmt::format("explored {} of {} cases in the time it has", reached, asked)
                         : fmt::format("{} of {} drawn cases have no answer: {}",
                                       unanswered_.size(), asked, *unanswered_.begin());
    return;
  }
  summary.status = red_ > 0 ? CaseStatus::kPresent : CaseStatus::kAbsent;
  if (red_ > 0) summary.failure_class = class_.empty() ? "undeclared" : class_;
}

}  // namespace patchbench::harness
