#include "core/sentinel_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace patchbench::rules {

Outcome equivalent(const Observations& observations, const QuestionContext& context) {
  const std::set<CaseRole> values = {CaseRole::kSilent, CaseRole::kControl};
  const Edited run = edited(observations, context);
  if (run.failed) return *run.failed;
  const Compared outputs = compared(run.upstream, run.patched, values);
  if (!outputs.differs.empty()) {
    return {Sentinel::kFixRejected, "",
            outputs.differs + ": its outputs differ from upstream's bit for bit", ""};
  }
  if (!outputs.missing.empty()) return none(outputs.missing + ": not compared");
  if (const std::string why =
          mutants_hold(observations, SubjectKind::kMutant, run.upstream, values).failed;
      !why.empty())
    return none(why);
  if (const std::string why = regions_hold(observations, context, run.upstream, values);
      !why.empty())
    return none(why);
  const std::string shown =
      fmt::format("{} cases green, outputs of {} equal bit for bit, every mutant caught",
                  run.num_green, outputs.equal);
  const Compared code = compared(run.upstream, run.patched, {CaseRole::kCode});
  if (code.equal > 0 && code.differs.empty() && code.missing.empty()) {
    return {Sentinel::kEquivalenceProved, "",
            fmt::format("{}; the code of {} equal too", shown, code.equal), ""};
  }
  const std::string other = code.differs.empty() ? code.missing : code.differs;
  return {Sentinel::kEquivalenceShown, "",
          shown + (other.empty() ? "" : "; the code of " + other + " is not equal"), ""};
}

}  // namespace patchbench::rules
