#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "ledger/ledger.h"
#include "report/table.h"
#include "run/questions.h"

namespace patchbench::cli {
namespace {

/// The observations of one run, as the ledger holds them, and the context of the run's first
/// subject.
struct RecordedRun {
  std::vector<Observation> observations;
  std::vector<std::string> digests;
  std::optional<RunContext> context;
};

RecordedRun recorded_run(const std::vector<ledger::Entry>& entries, const std::string& run_id) {
  RecordedRun run;
  for (const ledger::Entry& entry : entries) {
    if (entry.record.type() != "observation") continue;
    const Json& p = entry.record.predicate();
    const RunContext context = RunContext::from_json(p.at("context"));
    if (!context.run_id.starts_with(run_id)) continue;
    if (run.context && run.context->run_id != context.run_id) {
      throw Error(ErrorCode::kUsage,
                  "judge: " + run_id + " names more than one run; give more digits");
    }
    if (!run.context) run.context = context;
    run.observations.push_back(Observation::from_json(p.at("observation")));
    run.digests.push_back(entry.digest);
  }
  if (!run.context)
    throw Error(ErrorCode::kUsage, "judge: the ledger holds no observation of run " + run_id);
  return run;
}

/// The question that a run's observations can answer: from which subjects it has.
QuestionContext question_of(const Manifest& manifest, const RecordedRun& run) {
  std::map<SubjectKind, Subject> subjects;  // of each kind the first
  for (const Observation& o : run.observations) subjects.emplace(o.subject.kind(), o.subject);
  QuestionContext context;
  for (const UpstreamUse& use : manifest.upstreams) {
    context.is_red_pin |=
        run.context->pin.upstream() == use.name && run.context->pin.version() == use.red_pin;
  }
  context.classes = manifest.classes_order;
  const auto only = [&](Question question, const Subject& subject) {
    context.question = question;
    context.subject = subject;
  };
  if (subjects.contains(SubjectKind::kPatched) && subjects.contains(SubjectKind::kUpstream)) {
    only(validation_of(manifest), SubjectKind::kPatched);
  } else if (subjects.contains(SubjectKind::kMitigated)) {
    only(Question::kMitigation, subjects.at(SubjectKind::kMitigated));
  } else if (subjects.contains(SubjectKind::kOp)) {
    only(Question::kOp, SubjectKind::kOp);
  } else {
    only(Question::kReproduce, run.observations.front().subject);
  }
  return context;
}

}  // namespace

void judge_again(const Context& context, const std::string& id) {
  const auto record_set = ledger::Ledger::open(context.ledger);
  const RecordedRun run = recorded_run(record_set->all(), id);
  const Manifest manifest = context.manifest(run.context->slug);
  std::vector<QuestionContext> questions = {question_of(manifest, run)};
  if (const auto memory = memory_question(manifest, questions.front(), run.observations))
    questions.push_back(*memory);
  if (const auto cost = regression_question(manifest, questions.front(), run.observations))
    questions.push_back(*cost);
  for (const QuestionContext& question : questions) {
    const Outcome outcome = sentinel_of(run.observations, question);
    const Record verdict = make_verdict_record(*run.context, question, outcome, run.digests);
    record_set->append({verdict});
    context.out() << fmt::format("{} {}: {}{}\n", run.context->run_id,
                                 verdict.digest().substr(0, 12), outcome.text(),
                                 outcome.why.empty() ? "" : ": " + outcome.why);
  }
  context.out() << report::closing("The ledger has the new verdict; the recorded one stays.",
                                   "patchbench status " + manifest.slug.str());
}

}  // namespace patchbench::cli
