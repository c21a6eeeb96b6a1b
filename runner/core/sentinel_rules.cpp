#include "core/sentinel_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/looked_at.h"

namespace patchbench::rules {

Outcome none(std::string why) { return {std::nullopt, "", std::move(why), ""}; }

std::string named(const Observation& o) {
  return o.subject.text() + " " + o.case_name + (o.reason.empty() ? "" : ": " + o.reason);
}

Observations of_subject(const Observations& all, const Subject& subject) {
  Observations chosen;
  std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
               [&](const Observation& o) { return o.subject == subject; });
  return chosen;
}

namespace {

bool same_outputs(const Observation& one, const Observation& other) {
  return !one.outputs_sha256.empty() && one.outputs_sha256 == other.outputs_sha256;
}

}  // namespace

Compared compared(const Observations& upstream, const Observations& subject,
                  const std::set<CaseRole>& roles) {
  std::map<std::pair<std::string, uint64_t>, const Observation*> others;
  for (const Observation& o : subject) others[{o.case_name, o.seed}] = &o;
  Compared result;
  for (const Observation& o : upstream) {
    if (!roles.contains(o.role) || o.status == CaseStatus::kUnsupported) continue;
    const auto at = others.find({o.case_name, o.seed});
    if (at == others.end() || o.outputs_sha256.empty() || at->second->outputs_sha256.empty()) {
      result.missing = o.case_name;
    } else if (same_outputs(o, *at->second)) {
      ++result.equal;
    } else if (result.differs.empty()) {
      result.differs = o.case_name;
    }
  }
  return result;
}

MutantCheck mutants_hold(const Observations& observations, SubjectKind kind,
                         const Observations& upstream, const std::set<CaseRole>& roles,
                         bool is_partial) {
  MutantCheck check;
  std::map<Subject, bool> red;
  for (const Observation& o : observations) {
    if (o.subject.kind() != kind || o.subject.is_region_mutant()) continue;
    // A spoiling that changed nothing (a factor on values that are all 0) left the right answer: no
    // mutant on this case.
    if (o.unresolved == Unresolved::kNoEffect) continue;
    // A spoiled output that the judge turned away as no answer at all (a tensor missing, a wrong
    // shape) was caught too. Of an edit that is not known: it may have crashed for a reason of the
    // machine.
    const bool refused = kind == SubjectKind::kOpMutant && o.status == CaseStatus::kUnresolved &&
                         !o.outputs_sha256.empty();
    red[o.subject] |= o.role == CaseRole::kTrigger && (o.status == CaseStatus::kPresent || refused);
    if (o.unresolved == Unresolved::kFlaky) {
      check.failed = named(o);
      return check;
    }
  }
  check.num = red.size();
  std::string missed;
  for (const auto& [subject, is_red] : red) {
    const bool is_other =
        !compared(upstream, of_subject(observations, subject), roles).differs.empty();
    if (is_red || is_other)
      ++check.num_red;
    else if (missed.empty())
      missed = subject.text() + " was not caught";
  }
  if (red.empty()) check.failed = "no mutant was run: a check that cannot fail shows nothing";
  if (!is_partial || check.num_red == 0) check.failed += missed;
  return check;
}

std::string regions_hold(const Observations& observations, const QuestionContext& context,
                         const Observations& upstream, const std::set<CaseRole>& roles) {
  for (const Observation& o : observations) {
    if (!context.has_regions || !o.subject.is_region_mutant() || o.status == CaseStatus::kPresent)
      continue;
    const bool is_reached = o.status != CaseStatus::kUnsupported;
    if (is_reached && !compared(upstream, {o}, roles).differs.empty()) continue;
    if (is_reached || !context.is_partial)
      return fmt::format("{} was not caught: {}", o.subject,
                         is_reached ? "case " + o.case_name + " does not see it" : o.reason);
  }
  return "";
}

std::string lines_hold(const Observations& observations, const QuestionContext& context) {
  if (!context.has_lines || context.is_partial) return "";
  const std::optional<LinesRun> run =
      looked_at(of_subject(observations, SubjectKind::kPatched)).lines;
  if (!run) return "no subject tells which of the changed lines ran";
  std::vector<std::string> missed;
  for (const std::string& line : run->missed)
    if (!context.waived_lines.contains(line)) missed.push_back(line);
  return missed.empty() ? "" : fmt::format("lines not run: {}", fmt::join(missed, ", "));
}

GreenCheck green_on(const Observations& subject, const Keys& must) {
  Keys answered;
  GreenCheck check;
  for (const Observation& o : subject) {
    if (o.status == CaseStatus::kAbsent) answered.insert({o.case_name, o.seed});
    if (o.status == CaseStatus::kUnresolved && check.unanswered.empty())
      check.unanswered = named(o);
    if (o.status != CaseStatus::kPresent || !check.red.empty()) continue;
    check.red = fmt::format("{} is red ({})", named(o), o.failure_class);
    if (const Measure* worst = o.failing())
      check.red += fmt::format(", {} {} error {:.3g} > {:.3g}", worst->tensor, worst->layer,
                               worst->got, worst->limit);
  }
  for (const auto& key : must) {
    if (!answered.contains(key) && check.unanswered.empty())
      check.unanswered = key.first + " was not judged green";
  }
  return check;
}

std::string inputs_differ(const Observations& upstream, const Observations& observations) {
  std::map<std::pair<std::string, uint64_t>, std::string> given;
  for (const Observation& o : upstream) given[{o.case_name, o.seed}] = o.inputs_sha256;
  for (const Observation& o : observations) {
    const bool is_compared = o.subject == SubjectKind::kPatched ||
                             o.subject == SubjectKind::kMitigated || o.subject.is_lone_edit();
    const auto at = given.find({o.case_name, o.seed});
    if (!is_compared || at == given.end() || o.status == CaseStatus::kUnsupported) continue;
    if (o.inputs_sha256 != at->second)
      return o.subject.text() + " " + o.case_name + ": its inputs are not those of upstream";
  }
  return "";
}

}  // namespace patchbench::rules
