#include "core/sentinel_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace patchbench::rules {

Edited edited(const Observations& observations, const QuestionContext& context) {
  Edited run = {of_subject(observations, SubjectKind::kUpstream),
                of_subject(observations, SubjectKind::kPatched), 0, std::nullopt};
  const Outcome red = reproduced(run.upstream, context);
  if (red.sentinel != Sentinel::kBugReproduced) {
    run.failed = none("unpatched upstream is not red here, so a green patch shows nothing (" +
                      red.why + ")");
    return run;
  }
  Keys must;
  for (const Observation& o : run.upstream) {
    const bool is_passed = o.status == CaseStatus::kAbsent && o.role != CaseRole::kTrigger;
    if (o.status == CaseStatus::kPresent || is_passed) must.insert({o.case_name, o.seed});
  }
  run.num_green = must.size();
  const GreenCheck green = green_on(run.patched, must);
  if (const std::string why = inputs_differ(run.upstream, observations); !why.empty())
    run.failed = none(why);
  else if (!green.red.empty())
    run.failed = Outcome{Sentinel::kFixRejected, "", green.red, ""};
  else if (!green.unanswered.empty())
    run.failed = none(green.unanswered);
  return run;
}

Outcome validated(const Observations& observations, const QuestionContext& context) {
  const Edited run = edited(observations, context);
  if (run.failed) return *run.failed;
  const Compared code = compared(run.upstream, run.patched, {CaseRole::kCode});
  if (!code.differs.empty() || !code.missing.empty()) {
    return none((code.differs.empty() ? code.missing : code.differs) +
                ": nothing shows that its code is upstream's");
  }
  const MutantCheck mutants = mutants_hold(observations, SubjectKind::kMutant, run.upstream,
                                           {CaseRole::kCode}, context.is_partial);
  if (!mutants.failed.empty()) return none(mutants.failed);
  if (const std::string why = regions_hold(observations, context); !why.empty()) return none(why);
  const std::string red = mutants.num_red == mutants.num
                              ? "every mutant red"
                              : fmt::format("{} of {} mutants red", mutants.num_red, mutants.num);
  return {Sentinel::kFixValidated, "", fmt::format("{} cases green, {}", run.num_green, red), ""};
}

}  // namespace patchbench::rules
