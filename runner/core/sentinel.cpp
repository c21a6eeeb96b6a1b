#include "core/sentinel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/sentinel_rules.h"

namespace patchbench {
namespace {

constexpr std::array kSentinelNames = {"BUG_REPRODUCED",
                                       "BUG_ABSENT",
                                       "FIX_VALIDATED",
                                       "FIX_REJECTED",
                                       "OP_VALIDATED",
                                       "MITIGATION_VERIFIED",
                                       "MEMORY_SAVE_VERIFIED",
                                       "EQUIVALENCE_SHOWN",
                                       "EQUIVALENCE_PROVED",
                                       "CLAIM_CONFIRMED",
                                       "CLAIM_REFUTED",
                                       "NO_REGRESSION",
                                       "NOT_RUN"};
constexpr std::array kVerdictNames = {"reproduced", "validated",   "unexpectedly_absent",
                                      "not_fixed",  "present",     "absent",
                                      "unjudged",   "unsupported", "unresolved"};
constexpr std::array kExpectationNames = {"present", "absent", "nothing"};

/// Repeats of one subject × case × seed, folded into one: equal ones become one, mixed ones
/// unresolved.
std::vector<Observation> fold_repeats(const std::vector<Observation>& observations,
                                      Question question) {
  std::map<std::tuple<Subject, std::string, uint64_t>, std::vector<const Observation*>> groups;
  for (const Observation& o : observations) {
    const bool is_asked = o.role == CaseRole::kDrawn    ? false
                          : o.role == CaseRole::kSurvey ? question == Question::kClaim
                          : o.role == CaseRole::kCode   ? question == Question::kEquivalence ||
                                                            question == Question::kValidate
                                                      : true;
    if (o.counts && is_asked) groups[{o.subject, o.case_name, o.seed}].push_back(&o);
  }
  std::vector<Observation> folded;
  for (const auto& [key, group] : groups) {
    Observation one = *group.front();
    const auto same = [&](const Observation* o) {
      return o->status == one.status && o->failure_class == one.failure_class;
    };
    const auto same_inputs = [&](const Observation* o) {
      return o->inputs_sha256 == one.inputs_sha256;
    };
    const auto same_outputs = [&](const Observation* o) {
      return o->outputs_sha256 == one.outputs_sha256;
    };
    const auto unresolve = [&](Unresolved why, std::string reason) {
      one.status = CaseStatus::kUnresolved;
      one.failure_class.clear();
      one.unresolved = why;
      one.reason = std::move(reason);
    };
    if (question == Question::kEquivalence &&
        !std::all_of(group.begin(), group.end(), same_outputs)) {
      unresolve(Unresolved::kFlaky, "flaky: its repeats had different outputs");
    } else if (!std::all_of(group.begin(), group.end(), same_inputs)) {
      unresolve(Unresolved::kOther, "its repeats had different inputs");
    } else if (!std::all_of(group.begin(), group.end(), same)) {
      const auto present = std::count_if(group.begin(), group.end(), [](const Observation* o) {
        return o->status == CaseStatus::kPresent;
      });
      unresolve(Unresolved::kFlaky,
                fmt::format("flaky: present in {}/{} repeats", present, group.size()));
    }
    folded.push_back(std::move(one));
  }
  return folded;
}

}  // namespace

std::string expectation_name(Expectation e) {
  return kExpectationNames.at(static_cast<std::size_t>(e));
}
std::string verdict_name(Verdict v) { return kVerdictNames.at(static_cast<std::size_t>(v)); }
std::string sentinel_name(Sentinel s) { return kSentinelNames.at(static_cast<std::size_t>(s)); }

Verdict verdict_of(CaseStatus status, Expectation expectation) {
  switch (status) {
    case CaseStatus::kUnjudged:
      return Verdict::kUnjudged;
    case CaseStatus::kUnsupported:
      return Verdict::kUnsupported;
    case CaseStatus::kUnresolved:
      return Verdict::kUnresolved;
    case CaseStatus::kPresent:
      return expectation == Expectation::kPresent  ? Verdict::kReproduced
             : expectation == Expectation::kAbsent ? Verdict::kNotFixed
                                                   : Verdict::kObservedPresent;
    case CaseStatus::kAbsent:
      return expectation == Expectation::kPresent  ? Verdict::kUnexpectedlyAbsent
             : expectation == Expectation::kAbsent ? Verdict::kValidated
                                                   : Verdict::kObservedAbsent;
  }
  throw Error(ErrorCode::kInternal, "an observation outside its enum");
}

Expectation expectation_of(const Observation& o, const QuestionContext& context) {
  const bool is_trigger = o.role == CaseRole::kTrigger;
  const bool is_release = o.subject == SubjectKind::kUpstream || o.subject == SubjectKind::kFixed;
  if (o.role == CaseRole::kSurvey || o.role == CaseRole::kCode) return Expectation::kNothing;
  if (o.role == CaseRole::kDrawn) return is_release ? Expectation::kNothing : Expectation::kAbsent;
  if (o.role == CaseRole::kControl) return Expectation::kAbsent;
  if (o.subject == SubjectKind::kModel)
    return is_trigger ? Expectation::kPresent : Expectation::kAbsent;
  if (o.subject == SubjectKind::kUpstream) {
    if (!context.is_red_pin) return Expectation::kNothing;
    return is_trigger ? Expectation::kPresent : Expectation::kAbsent;
  }
  if (o.subject.is_mutant()) return Expectation::kNothing;
  return Expectation::kAbsent;
}

std::string Outcome::text() const {
  if (!sentinel) return "NONE";
  if (*sentinel == Sentinel::kNotRun) return "NOT_RUN:" + argument;
  return sentinel_name(*sentinel) + (argument.empty() ? "" : "(" + argument + ")");
}

Outcome Outcome::from_text(const std::string& text) {
  const std::size_t open = text.find_first_of("(:");
  Outcome outcome;
  for (std::size_t i = 0; i < kSentinelNames.size(); ++i) {
    if (text.substr(0, open) == kSentinelNames.at(i)) outcome.sentinel = static_cast<Sentinel>(i);
  }
  if (open != std::string::npos) {
    outcome.argument = text.substr(open + 1);
    if (outcome.argument.ends_with(')')) outcome.argument.pop_back();
  }
  return outcome.text() == text ? outcome : Outcome{};
}

namespace {

Outcome outcome_of_all(const std::vector<Observation>& observations,
                       const QuestionContext& context) {
  switch (context.question) {
    case Question::kReproduce:
      return rules::reproduced(rules::of_subject(observations, context.subject), context);
    case Question::kValidate:
      return rules::validated(observations, context);
    case Question::kOp:
      return rules::op_right(observations, context);
    case Question::kMitigation:
      return rules::mitigated(observations, context);
    case Question::kMemory:
      return rules::memory_saved(observations, context);
    case Question::kClaim:
      return rules::claimed(observations, context);
    case Question::kEquivalence:
      return rules::equivalent(observations, context);
    case Question::kRegression:
      return rules::not_regressed(observations, context);
    case Question::kDrawn:
      throw Error(ErrorCode::kInternal, "drawn cases are not folded");
  }
  throw Error(ErrorCode::kInternal, "a question outside its enum");
}

}  // namespace

bool is_of_bug(const Outcome& outcome) {
  return outcome.sentinel == Sentinel::kBugReproduced || outcome.sentinel == Sentinel::kBugAbsent;
}

bool is_of_all_cases(Sentinel sentinel) {
  return sentinel == Sentinel::kFixValidated || sentinel == Sentinel::kOpValidated ||
         sentinel == Sentinel::kMitigationVerified || sentinel == Sentinel::kEquivalenceShown ||
         sentinel == Sentinel::kEquivalenceProved;
}

std::vector<std::string> unseen_changes(const std::vector<Observation>& observations,
                                        const QuestionContext& context) {
  std::map<std::string, std::string> unseen = context.altered;
  for (const Observation& o : observations) {
    // A change that ends the process is seen, too.
    const bool is_seen = o.is_wrong() || o.status == CaseStatus::kUnresolved;
    if (o.subject == SubjectKind::kAltered && is_seen) unseen.erase(o.subject.mutant_name());
  }
  std::vector<std::string> lines;
  for (const auto& [number, line] : unseen) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

Outcome sentinel_of(const std::vector<Observation>& observations, const QuestionContext& context) {
  if (context.question == Question::kDrawn) return rules::drawn(observations, context);
  Outcome outcome = outcome_of_all(fold_repeats(observations, context.question), context);
  const auto is_earned = [&] { return outcome.sentinel && is_of_all_cases(*outcome.sentinel); };
  const auto add = [&](const char* word) {
    outcome.argument += (outcome.argument.empty() ? "" : ", ") + std::string(word);
  };
  if (is_earned()) outcome = rules::explored(observations, context, std::move(outcome));
  if (is_earned())
    if (const std::string why = rules::lines_hold(observations, context); !why.empty())
      outcome = rules::none(why);
  if (is_earned() && !context.altered.empty()) {
    const std::size_t num = context.altered.size();
    outcome.why += fmt::format("; {} of {} small changes of the fix seen",
                               num - unseen_changes(observations, context).size(), num);
  }
  if (is_earned() && context.is_partial) add("named_cases");
  if (is_earned() && context.is_few) add("few_drawn");
  return outcome;
}

}  // namespace patchbench
