#include "core/sentinel_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace patchbench::rules {
namespace {

/// Whether an observation is what the claim says, the opposite, or neither.
enum class Against { kAsClaimed, kOtherwise, kNoAnswer };
Against against(const Observation& o, const QuestionContext& context) {
  const bool is_present =
      o.status == CaseStatus::kPresent && o.failure_class == context.failure_class;
  if (!is_present && o.status != CaseStatus::kAbsent) return Against::kNoAnswer;
  return is_present == (context.expects == CaseStatus::kPresent) ? Against::kAsClaimed
                                                                 : Against::kOtherwise;
}

}  // namespace

Outcome claimed(const Observations& observations, const QuestionContext& context) {
  std::map<std::pair<std::string, uint64_t>, const Observation*> contrast;
  for (const Observation& o : observations) {
    if (o.subject == context.contrast) contrast[{o.case_name, o.seed}] = &o;
  }
  int as_claimed = 0, otherwise = 0;
  const Observation* decided = nullptr;  // a case on which both answered, and differently
  for (const Observation& o : observations) {
    if (o.subject != context.subject) continue;
    const Against what = against(o, context);
    if (what == Against::kNoAnswer)
      return none(
          fmt::format("{} is {} {}", named(o), case_status_name(o.status), o.failure_class));
    (what == Against::kAsClaimed ? as_claimed : otherwise) += 1;
    const auto opposite = contrast.find({o.case_name, o.seed});
    if (opposite == contrast.end() || opposite->second->inputs_sha256 != o.inputs_sha256)
      return none(
          fmt::format("{}: {} was not given the same inputs", o.case_name, context.contrast));
    const Against other = against(*opposite->second, context);
    const bool differs = other != Against::kNoAnswer && other != what;
    // What refutes outweighs what agrees: one case that is otherwise is enough.
    if (differs && (decided == nullptr || what == Against::kOtherwise)) decided = &o;
    if (what == Against::kOtherwise && !differs)
      return none(fmt::format("{} is not as claimed on {}, but neither is {}", context.subject,
                              o.case_name, context.contrast));
  }
  if (as_claimed + otherwise == 0) return none("no case of the claim was run");
  const std::string figures =
      fmt::format("as claimed on {} of {} cases", as_claimed, as_claimed + otherwise);
  if (otherwise > 0)
    return {Sentinel::kClaimRefuted,
            context.expects == CaseStatus::kAbsent ? context.failure_class : "",
            fmt::format("{}; {} is otherwise, {} is as claimed", figures, named(*decided),
                        context.contrast),
            ""};
  if (decided == nullptr)
    return none(
        fmt::format("{} comes out as {} does on every case", context.contrast, context.subject));
  return {Sentinel::kClaimConfirmed, "",
          fmt::format("{}; {} shows the opposite", figures, context.contrast), ""};
}

}  // namespace patchbench::rules
