#include "core/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "core/changed_lines.h"
#include "core/digest.h"
#include "core/error.h"

namespace patchbench {
namespace {

/// All cases of a subject together; lowering one TileLang kernel takes minutes on two cores.
constexpr double kSubjectTimeoutS = 1800;

bool is_named(const CaseChoice& choice) { return !choice.cases.empty() || !choice.given.empty(); }

/// Whether a case that nobody named is part of an answer about the subject.
bool is_asked(const RunTarget& target, Question question, const Subject& subject, const Case& c) {
  // What is seen there is part of no answer about a mutant or a mitigation; a refactor's mutant
  // is caught by what it computes.
  const bool is_idle = c.role == CaseRole::kSurvey ||
                       (c.role == CaseRole::kCode && target.manifest.kind == "refactor");
  if (is_idle && (subject.is_lone_edit() || question == Question::kMitigation)) return false;
  // These look at a region of the inputs; an edit that is wrong on its own is red without them.
  const bool is_of_regions = c.axes.contains("scaled_from") || c.axes.contains("backwards") ||
                             c.axes.contains("grad_layout");
  if (is_of_regions && subject.is_lone_edit()) return false;
  // A case that only a GPU can judge is too large for the interpreter; it runs there when asked
  // for by name.
  return c.counts_on(target.device.kind_name());
}

/// A step without drawn cases.
PlanStep step_of(const RunTarget& target, Question question, const Subject& subject,
                 std::vector<Edit> edits, const CaseChoice& choice) {
  PlanStep step{.subject = subject,
                .edits = std::move(edits),
                .given = choice.given,
                .seeds = choice.seeds,
                .repeats = choice.repeats,
                .conditions = choice.conditions};
  if (choice.given.empty()) step.cases = cases_for(target, question, subject, choice.cases);
  return step;
}

/// Draws cases in a step: as many as were asked for, or as the manifest says; none where cases or
/// axes are named. What is asked goes into `question`.
void add_draws(const RunTarget& target, const CaseChoice& choice, PlanStep& step,
               QuestionContext& question) {
  const int by_default = target.num_drawn(step.subject);
  int count = choice.num_drawn.value_or(is_named(choice) && !choice.explores ? 0 : by_default);
  if (by_default == 0) count = 0;
  step.draws = draws_of(target, step.subject, count, choice.seeds);
  question.num_drawn = count * choice.seeds.count();
  question.is_few = question.num_drawn < by_default && !is_named(choice);
}

/// The changed lines that need not run, of files that are the very ones that the waivers name.
std::set<std::string> waived_lines(const Manifest& manifest, const std::vector<Edit>& edits) {
  std::map<std::string, std::string> results;  // by path, the last edit's
  for (const Edit& edit : edits)
    for (const FileEdit& file : edit.files) results[file.path] = file.result;
  std::set<std::string> lines;
  for (const LineWaiver& waiver : manifest.waived_lines) {
    const std::string path = waiver.line.substr(0, waiver.line.find(':'));
    if (const auto at = results.find(path); at != results.end() && at->second == waiver.blob)
      lines.insert(waiver.line);
  }
  return lines;
}

/// The cases that were named are for the subject, or it is said for whom they are.
void need_cases_for(const Manifest& manifest, const Subject& subject,
                    const std::vector<std::string>& cases) {
  for (const std::string& name : cases) {
    const Case& item = *manifest.find_case(name);
    if (item.is_for(subject)) continue;
    const std::string why = subject == SubjectKind::kMitigated && !item.left.empty()
                                ? item.left
                                : fmt::format("it is for {}", fmt::join(item.subjects, " and "));
    throw Error(ErrorCode::kUsage, fmt::format("{}: case '{}' is not for '{}': {}",
                                               manifest.slug.str(), name, subject, why));
  }
}

/// Whether right outputs of a subject may be spoiled in a region. A subject that is wrong on
/// purpose has none.
bool can_have_regions(const Subject& subject) {
  return subject == SubjectKind::kUpstream || subject == SubjectKind::kPatched ||
         subject == SubjectKind::kMitigated || subject == SubjectKind::kOp ||
         subject == SubjectKind::kPlain;
}

Question question_of(const Subject& subject, const CaseChoice& choice) {
  if (!choice.given.empty()) return Question::kDrawn;
  if (subject == SubjectKind::kOp) return Question::kOp;
  if (subject == SubjectKind::kMitigated) return Question::kMitigation;
  return Question::kReproduce;
}

}  // namespace

Json RunTarget::companions_json() const {
  Json versions;
  for (const Pin& other : companions) versions[other.upstream] = other.version;
  return versions;
}

bool RunTarget::is_red_pin() const {
  const auto is_red = [&](const Pin& of) {
    return std::any_of(manifest.upstreams.begin(), manifest.upstreams.end(),
                       [&](const UpstreamUse& use) {
                         return use.name == of.upstream && use.red_pin == of.version;
                       });
  };
  return pin && pin->version == upstream.red_pin &&
         std::all_of(companions.begin(), companions.end(), is_red);
}

int RunTarget::num_drawn(const Subject& subject) const {
  int num = 0;
  for (const SpaceRow* row : manifest.explore.of(subject, upstream, device.kind_name()))
    num += row->count;
  return num;
}

Draws draws_of(const RunTarget& target, const Subject& subject, int count, const SeedRange& seeds) {
  constexpr double kPatience = 10;
  if (count == 0) return {};
  const double share = static_cast<double>(count) * static_cast<double>(seeds.count()) /
                       std::max(target.num_drawn(subject), 1);
  const double seconds = kPatience * target.manifest.explore.seconds * std::max(share, 1.0);
  return {count, static_cast<int>(std::ceil(seconds))};
}

Json PlanStep::to_json() const {
  Json digests = Json::array();
  for (const Edit& edit : edits) digests.push_back(sha256_hex(format_edit(edit)));
  Json json = {{"subject", subject.text()},
               {"release", pin == PinRole::kTested ? "tested" : "fixed"},
               {"edits", digests},
               {"cases", cases},
               {"seeds", {seeds.first, seeds.last}},
               {"repeats", repeats}};
  if (!given.empty()) json["given"] = given;
  if (draws.count > 0) json["draws"] = {{"count", draws.count}, {"seconds", draws.seconds}};
  if (has_regions) json["has_regions"] = true;
  if (!conditions.empty()) json["conditions"] = conditions;
  if (!changed.is_null()) json["changed"] = changed;
  if (stops_at_red) json["stops_at_red"] = true;
  if (is_spoiled) json["is_spoiled"] = true;
  return json;
}

StepLimits limits_on(const Device& device) {
  // A CUDA process starts hundreds of threads, and where a limit counts per user, runs next to this
  // one count too.
  if (device.is_gpu()) return {kSubjectTimeoutS, int64_t{64} << 30, 4096};
  return {kSubjectTimeoutS, int64_t{8} << 30, 256};
}

Json RunPlan::to_json() const {
  Json rows = Json::array();
  for (const PlanStep& step : steps) rows.push_back(step.to_json());
  return {{"question", question.to_json()}, {"steps", rows}, {"runs_program", runs_program}};
}

bool has_edits(const Subject& subject) {
  return subject == SubjectKind::kPatched || subject.is_lone_edit();
}

Subject subject_of(const Edit& lone) {
  std::string word = std::filesystem::path(lone.name).stem().string();
  return word.replace(word.find('-'), 1, ":");
}

std::vector<Edit> edits_of(const Series& series, const Subject& subject, const std::string& slug) {
  if (subject == SubjectKind::kPatched) return series.edits;
  if (!subject.is_lone_edit()) return {};
  std::vector<std::string> names;
  for (const Edit& edit : subject == SubjectKind::kMutant ? series.mutants : series.claimed) {
    names.push_back(subject_of(edit).text());
    if (names.back() == subject.text()) return {edit};
  }
  throw Error(ErrorCode::kUsage, fmt::format("{}: no subject '{}'{}", slug, subject,
                                             did_you_mean(subject.text(), names)));
}

std::vector<std::string> cases_for(const RunTarget& target, Question question,
                                   const Subject& subject, const std::vector<std::string>& named) {
  std::vector<std::string> names;
  for (const Case& c : target.manifest.cases) {
    const bool can_run =
        c.is_for(subject) && (subject.is_in_process() || c.runs_on(target.upstream));
    const bool is_chosen = named.empty()
                               ? is_asked(target, question, subject, c)
                               : std::find(named.begin(), named.end(), c.name) != named.end();
    if (can_run && is_chosen) names.push_back(c.name);
  }
  return names;
}

std::vector<std::string> few_cases_for(const RunTarget& target, const Subject& subject) {
  std::vector<std::string> names;
  for (const CaseRole role : {CaseRole::kTrigger, CaseRole::kControl}) {
    for (const Case& c : target.manifest.cases) {
      const bool is_of_it =
          subject.is_in_process() ? c.counts_on("cpu") : c.runs_on(target.upstream);
      if (c.role == role && c.is_for(subject) && is_of_it &&
          c.counts_on(target.device.kind_name())) {
        names.push_back(c.name);
        break;
      }
    }
  }
  return names;
}

QuestionContext question_for(const RunTarget& target, Question question, const Subject& subject) {
  QuestionContext context;
  context.question = question;
  context.subject = subject;
  context.is_red_pin = target.is_red_pin();
  context.classes = target.manifest.classes_order;
  return context;
}

RunPlan plan_reproduction(const RunTarget& target, const Subject& subject, const Series& series,
                          const CaseChoice& choice) {
  need_cases_for(target.manifest, subject, choice.cases);
  const Question question = question_of(subject, choice);
  RunPlan plan{.question = question_for(target, question, subject)};
  PlanStep step = step_of(target, question, subject,
                          edits_of(series, subject, target.manifest.slug.str()), choice);
  const bool is_earned = question == Question::kOp || question == Question::kMitigation;
  // An upstream is explored where that is asked for.
  if (is_earned || choice.explores || choice.num_drawn)
    add_draws(target, choice, step, plan.question);
  if (is_earned) plan.question.has_regions = step.has_regions = true;
  if (is_earned || question == Question::kReproduce)
    plan.question.is_partial = !choice.cases.empty();
  if (question == Question::kMitigation) {
    plan.steps.push_back(step_of(target, question, SubjectKind::kUpstream, {}, choice));
    plan.runs_program = subject.mode().empty() && choice.cases.empty();
  }
  plan.steps.push_back(std::move(step));
  if (question == Question::kOp) {
    // Mutants of the outputs are judged on small cases: what they show does not depend on the
    // shape, what they cost does.
    plan.steps.push_back({.subject = SubjectKind::kOp,
                          .cases = few_cases_for(target, SubjectKind::kOp),
                          .seeds = choice.seeds,
                          .is_spoiled = true});
  }
  return plan;
}

Question validation_of(const Manifest& manifest) {
  return manifest.kind == "refactor" ? Question::kEquivalence : Question::kValidate;
}

RunPlan plan_validation(const RunTarget& target, const Series& series, const CaseChoice& choice) {
  const std::string slug = target.manifest.slug.str();
  if (series.edits.empty())
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: no edit of the pack changes {}; take the upstream "
                            "that patchbench patch show {} names, or give --edit",
                            slug, target.upstream.name, slug));
  const Question question = validation_of(target.manifest);
  RunPlan plan{.question = question_for(target, question, SubjectKind::kPatched)};
  plan.question.has_regions = true;
  plan.question.is_partial = !choice.cases.empty();
  plan.steps.push_back(step_of(target, question, SubjectKind::kUpstream, {}, choice));
  plan.steps.push_back(step_of(target, question, SubjectKind::kPatched, series.edits, choice));
  add_draws(target, choice, plan.steps.back(), plan.question);
  plan.steps.back().has_regions = true;
  if (Json changed = changed_lines(series.edits); !changed.empty()) {
    plan.steps.back().changed = std::move(changed);
    plan.question.has_lines = true;
    plan.question.waived_lines = waived_lines(target.manifest, series.edits);
  }
  for (const Edit& mutant : series.mutants) {
    plan.steps.push_back(step_of(target, question, subject_of(mutant), {mutant}, choice));
    plan.steps.back().stops_at_red = question == Question::kValidate;
  }
  return plan;
}

RunPlan plan_claim(const RunTarget& target, const ClaimTest& test, const Series& series,
                   const CaseChoice& choice) {
  RunPlan plan{.question = question_for(target, Question::kClaim, test.subject)};
  plan.question.claim = test.name;
  plan.question.contrast = test.contrast;
  plan.question.expects = case_status_from(test.expects);
  plan.question.failure_class = test.failure_class;
  for (const Subject& subject : {test.subject, test.contrast})
    plan.steps.push_back(step_of(target, Question::kClaim, subject,
                                 edits_of(series, subject, target.manifest.slug.str()), choice));
  return plan;
}

RunPlan plan_drawn(const RunTarget& target, const Subject& subject, const Series& series,
                   const CaseChoice& choice) {
  RunPlan plan{.question = question_for(target, Question::kDrawn, subject)};
  plan.question.seeds = {choice.seeds.first, choice.seeds.last};
  PlanStep step{.subject = subject,
                .edits = edits_of(series, subject, target.manifest.slug.str()),
                .seeds = choice.seeds,
                .repeats = choice.repeats,
                .has_regions = can_have_regions(subject),
                .conditions = choice.conditions};
  add_draws(target, choice, step, plan.question);
  plan.steps.push_back(std::move(step));
  return plan;
}

RunTarget target_in_process(const RunTarget& target) {
  RunTarget own = target;
  if (!target.has_ops) {
    own.device = {};
    own.has_ops = true;
  }
  return own;
}

SelfTestSteps plan_self_test(const RunTarget& target) {
  constexpr int kDrawn = 20;
  // The plain computation is right by definition; an op proves itself along the way.
  const auto& subjects = target.manifest.subjects;
  const bool has_op = std::find(subjects.begin(), subjects.end(), "op") != subjects.end();
  const Subject right = has_op ? SubjectKind::kOp : SubjectKind::kPlain;
  const RunTarget own = target_in_process(target);
  const std::vector<std::string> few = few_cases_for(own, right);
  SelfTestSteps steps{.right = {.subject = right, .cases = few},
                      .spoiled = {.subject = right, .cases = few, .is_spoiled = true}};
  if (const int count = std::min(kDrawn, own.num_drawn(right)); count > 0) {
    steps.drawn = PlanStep{.subject = right, .has_regions = true};
    steps.drawn->draws = draws_of(own, right, count, steps.drawn->seeds);
  }
  if (const auto cases = few_cases_for(target, SubjectKind::kLiar); !cases.empty())
    steps.liar = PlanStep{.subject = SubjectKind::kLiar, .cases = cases};
  return steps;
}

std::vector<PlanStep> further_steps(const RunTarget& target, const RunPlan& plan,
                                    const std::vector<Observation>& observations) {
  const Question question = plan.question.question;
  const Subject& subject = plan.question.subject;
  const bool is_asked = question == Question::kMitigation || question == Question::kValidate ||
                        question == Question::kEquivalence;
  if (!is_asked || subject.is_in_process() || !target.pin) return {};
  const bool has_fixed = target.manifest.explore.fixed.contains(target.upstream.name);
  // What raises may raise on the release under test for a reason that the fixed one has not.
  std::map<std::pair<PinRole, uint64_t>, std::vector<Json>> given;
  for (const Observation& o : observations) {
    const bool is_drawn = o.role == CaseRole::kDrawn && !o.is_summary() && o.subject == subject;
    if (!is_drawn || !o.is_wrong()) continue;
    for (const PinRole pin : {PinRole::kFixed, PinRole::kTested}) {
      if (pin == PinRole::kFixed ? !has_fixed : has_fixed && !o.has_raised()) continue;
      std::vector<Json>& axes = given[{pin, o.seed}];
      if (std::find(axes.begin(), axes.end(), o.drawn.at("axes")) == axes.end())
        axes.push_back(o.drawn.at("axes"));
    }
  }
  std::vector<PlanStep> steps;
  for (const auto& [at, axes] : given)
    steps.push_back(
        {.subject = at.first == PinRole::kFixed ? SubjectKind::kFixed : SubjectKind::kUpstream,
         .pin = at.first,
         .given = axes,
         .seeds = {at.second, at.second},
         .repeats = plan.steps.front().repeats});
  return steps;
}

namespace {

Json watched(const RunTarget& target, const PlanStep& step) {
  Json watched = Json::object();
  if (!step.changed.is_null()) watched["changed"] = step.changed;
  const bool is_asked_about = !step.subject.is_in_process() && !step.subject.is_mutant();
  if (is_asked_about && !target.upstream.functions.empty())
    watched["functions"] = target.upstream.functions;
  return watched;
}

}  // namespace

Json cases_document(const RunTarget& target, const PlanStep& step) {
  const std::string kind(target.device.kind_name());
  Json cases = Json::array(), spaces = Json::array(), waived = Json::array();
  for (const std::string& name : step.cases) {
    const Case& c = *target.manifest.find_case(name);
    cases.push_back({{"name", c.name},
                     {"role", role_name(c.role)},
                     {"axes", c.axes},
                     {"judged_on", c.judged_on}});
    if (c.is_isolated) cases.back()["isolated"] = true;
  }
  if (step.draws.count > 0) {
    for (const SpaceRow* row : target.manifest.explore.of(step.subject, target.upstream, kind)) {
      spaces.push_back(row->body);
      spaces.back()["count"] = row->count;
    }
  }
  for (const RegionWaiver& waiver : target.manifest.waived_regions) {
    if (waiver.is_for(step.subject, kind)) waived.push_back(waiver.region);
  }
  return {{"slug", target.manifest.slug.str()},
          {"classes", target.manifest.classes_order},
          {"cases", cases},
          {"spaces", spaces},
          {"given", step.given},
          {"scenarios", target.manifest.scenarios.drawn(kind)},
          {"overwritten", target.manifest.scenarios.overwritten},
          {"watched", watched(target, step)},
          {"conditions", step.conditions},
          {"waived_regions", waived}};
}

}  // namespace patchbench
