#include "core/sentinel_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace patchbench::rules {

Outcome not_regressed(const Observations& observations, const QuestionContext& context) {
  const Observations upstream = of_subject(observations, SubjectKind::kUpstream);
  const Observations patched = of_subject(observations, SubjectKind::kPatched);
  if (const std::string why = inputs_differ(upstream, observations); !why.empty()) return none(why);
  Keys must;
  for (const Observation& o : upstream) {
    if (o.role != CaseRole::kTrigger && o.status == CaseStatus::kAbsent)
      must.insert({o.case_name, o.seed});
  }
  const GreenCheck green = green_on(patched, must);
  std::string figures, caught;
  for (const Observation& before : upstream) {
    const auto bounds = context.ratios_max.find(before.case_name);
    if (bounds == context.ratios_max.end()) continue;
    for (const auto& [name, ratio_max] : bounds->second) {
      const std::optional<double> base = before.number(name);
      const std::string what = before.case_name + " " + name;
      if (!base) return none(what + ": upstream reports no such number");
      std::optional<double> edited;
      for (const Observation& o : observations) {
        if (o.case_name != before.case_name || o.seed != before.seed) continue;
        if (o.subject == SubjectKind::kPatched) edited = o.number(name);
        if (o.subject == SubjectKind::kMutant && o.number(name) > ratio_max * *base)
          caught = o.subject.text();
      }
      if (!edited) return none(what + ": patched reports no such number");
      const std::string figure = fmt::format("{} {:g}, upstream {:g}", what, *edited, *base);
      if (*edited > ratio_max * *base)
        return none(fmt::format("{}: over {:g} times", figure, ratio_max));
      figures += "; " + figure;
    }
  }
  if (!green.red.empty()) return none(green.red);
  if (!green.unanswered.empty()) return none(green.unanswered);
  if (must.empty() || figures.empty()) return none("no case that upstream does right has a bound");
  if (caught.empty())
    return none("no mutant went over a bound: a check that cannot fail shows nothing");
  return {Sentinel::kNoRegression, "",
          fmt::format("{} cases right{}; {} is over a bound", must.size(), figures, caught), ""};
}

}  // namespace patchbench::rules
