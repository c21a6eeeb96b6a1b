#include "core/sentinel_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace patchbench::rules {
namespace {

/// kOp and kMitigation: the subject green on every case it was given that is judged here, mutants
/// red (op only).
Outcome subject_green(const Observations& observations, const QuestionContext& context,
                      Sentinel sentinel) {
  Keys must, lacking;
  const Observations subject = of_subject(observations, context.subject);
  // What the release has not cannot be mitigated.
  for (const Observation& o : of_subject(observations, SubjectKind::kUpstream))
    if (o.status == CaseStatus::kUnsupported) lacking.insert({o.case_name, o.seed});
  bool has_trigger = false;
  for (const Observation& o : subject) {
    const bool is_trigger = o.role == CaseRole::kTrigger;
    if (lacking.contains({o.case_name, o.seed})) continue;
    if (o.status != CaseStatus::kUnsupported || is_trigger) must.insert({o.case_name, o.seed});
    has_trigger |= is_trigger;
  }
  if (!has_trigger) return none("no trigger case was run");
  const GreenCheck green = green_on(subject, must);
  if (!green.red.empty()) return none(green.red);
  if (!green.unanswered.empty()) return none(green.unanswered);
  std::set<std::string> mended, left;
  if (sentinel == Sentinel::kOpValidated) {
    if (const std::string why = mutants_hold(observations, SubjectKind::kOpMutant).failed;
        !why.empty())
      return none(why);
  } else {
    const Observations upstream = of_subject(observations, SubjectKind::kUpstream);
    const Outcome red = reproduced(upstream, context);
    if (red.sentinel != Sentinel::kBugReproduced)
      return none("unmitigated upstream is not red here (" + red.why + ")");
    if (const std::string why = inputs_differ(upstream, observations); !why.empty())
      return none(why);
    for (const Observation& o : upstream) {
      if (o.role == CaseRole::kTrigger && o.status == CaseStatus::kPresent)
        (must.contains({o.case_name, o.seed}) ? mended : left).insert(o.case_name);
    }
    if (mended.empty()) return none("no trigger that is red on upstream was run");
  }
  if (const std::string why = regions_hold(observations, context); !why.empty()) return none(why);
  const std::string rest =
      fmt::format("{}{}", left.empty() ? "" : "; left: ", fmt::join(left, ", "));
  return {sentinel, "", fmt::format("{} cases green{}", must.size(), rest), ""};
}

/// "error 0.25 of at most 1e-05", or why there is none.
std::string told(const Json& start) {
  if (start.contains("failed")) return "no number: " + start["failed"].get<std::string>();
  return fmt::format("error {:.3g} of at most {:.3g}", start["error"].get<double>(),
                     start["bound"].get<double>());
}

/// What is earned if the program is wrong without the mitigation, and right under `auto` and with
/// it by name.
Outcome programmed(const Json& program, Outcome earned) {
  if (program.contains("missing"))
    return none("program missing: " + program["missing"].get<std::string>());
  for (const char* name : {"off", "auto", "named"}) {
    const Json& start = program.at(name);
    const bool is_wrong = !start.contains("failed") && start["error"] > start["bound"];
    if (start.contains("failed") || is_wrong != (std::string(name) == "off"))
      return none(fmt::format("program, {}: {}", name, told(start)));
  }
  earned.why += fmt::format("; program {:.12}: {} without it", program["sha256"].get<std::string>(),
                            told(program["off"]));
  return earned;
}

}  // namespace

Outcome op_right(const Observations& observations, const QuestionContext& context) {
  return subject_green(observations, context, Sentinel::kOpValidated);
}

Outcome mitigated(const Observations& observations, const QuestionContext& context) {
  Outcome outcome = subject_green(observations, context, Sentinel::kMitigationVerified);
  if (outcome.sentinel && !context.program.is_null())
    outcome = programmed(context.program, std::move(outcome));
  if (outcome.sentinel) outcome.argument = context.subject.mode();
  return outcome;
}

}  // namespace patchbench::rules
