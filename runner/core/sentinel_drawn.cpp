#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/sentinel_rules.h"

namespace patchbench::rules {
namespace {

/// Whether a release that is not under test is wrong on the same inputs in a way that is not the
/// pack's.
bool is_other_defect(const Observations& observations, const Observation& red) {
  return std::any_of(observations.begin(), observations.end(), [&](const Observation& o) {
    if (o.case_name != red.case_name || o.seed != red.seed) return false;
    if (o.inputs_sha256 != red.inputs_sha256) return false;
    if (o.subject == SubjectKind::kFixed) return o.is_wrong();
    return o.subject == SubjectKind::kUpstream && o.is_wrong() &&
           (o.failure_class.empty() || o.failure_class == "undeclared");
  });
}

}  // namespace

Outcome explored(const Observations& observations, const QuestionContext& context, Outcome earned) {
  if (context.num_drawn == 0) return earned;
  int num_drawn = 0, num_red = 0, num_other = 0;
  const Observation* red = nullptr;
  for (const Observation& o : observations) {
    if (o.role != CaseRole::kDrawn || o.subject != context.subject) continue;
    if (o.is_summary()) {
      if (o.status == CaseStatus::kUnresolved)
        return none(fmt::format("{}: {}", o.case_name, o.reason));
      num_drawn += o.drawn.value("asked", 0);
      num_red += o.drawn.value("red", 0);
    } else if (o.is_wrong()) {
      const bool is_other = is_other_defect(observations, o);
      if (is_other) num_other += !o.drawn.contains("shrunk");
      // The smallest says most.
      if (!is_other && (red == nullptr || o.drawn.contains("shrunk"))) red = &o;
    }
  }
  if (red != nullptr) {
    const std::string why = fmt::format("{} of seed {}, {}: {}", red->case_name, red->seed,
                                        red->drawn.at("axes").dump(),
                                        red->has_raised() ? red->reason : green_on({*red}, {}).red);
    const bool is_rejected = context.subject == SubjectKind::kPatched && !red->has_raised();
    return is_rejected ? Outcome{Sentinel::kFixRejected, "", why, ""} : none(why);
  }
  if (num_red > num_other)
    return none(fmt::format("{} of {} red drawn cases were not compared with another release",
                            num_red - num_other, num_red));
  if (num_drawn < context.num_drawn)
    return none(fmt::format("explored {} of {} cases", num_drawn, context.num_drawn));
  earned.why += fmt::format("; {} drawn cases green", num_drawn - num_other);
  if (num_other > 0) earned.why += fmt::format(", {} wrong by another defect", num_other);
  return earned;
}

Outcome drawn(const Observations& observations, const QuestionContext& context) {
  int num = 0, red = 0;
  for (const Observation& o : of_subject(observations, context.subject)) {
    if (o.role != CaseRole::kDrawn || o.drawn.contains("shrunk")) continue;
    if (o.is_summary()) {
      if (o.status == CaseStatus::kUnresolved)
        return none(fmt::format("{}: {}", o.case_name, o.reason));
      num += o.drawn.value("asked", 0);
      red += o.drawn.value("red", 0);
    } else if (context.num_drawn == 0) {
      ++num;
      red += o.status == CaseStatus::kPresent;
    }
  }
  return none(fmt::format("{} drawn cases, {} red", num, red));
}

}  // namespace patchbench::rules
