#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "core/changed_lines.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/replay.h"
#include "exec/progress.h"
#include "ledger/evidence.h"
#include "ledger/record_set.h"
#include "report/table.h"
#include "run/questions.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

/// The recorded observations of one subject and the context they were made in.
struct Part {
  RunContext context;
  std::vector<Observation> observations;
};

/// The run that an observation was made in: its subject, and whether the outputs were spoiled.
using RunOf = std::pair<Subject, bool>;

RunOf run_of(const Subject& subject) {
  if (subject.is_region_mutant()) return {subject.unspoiled(), false};
  if (subject == SubjectKind::kOpMutant) return {SubjectKind::kOp, true};
  return {subject, false};
}

/// A recorded run: one observation, or all that a verdict cites.
struct Recorded {
  std::string digest, slug;
  std::optional<Record> verdict;
  std::map<RunOf, Part> parts;
};

[[noreturn]] void not_here(const std::string& reason) {
  throw Error(ErrorCode::kNotRunnable, "replay: " + reason);
}

void add_part(Recorded& recorded, const Record& observation) {
  Observation o = observation_of(observation);
  if (o.subject == SubjectKind::kAltered) return;  // validate makes these again
  Part& part = recorded.parts[run_of(o.subject)];
  part.context = RunContext::from_json(observation.predicate().at("context"));
  part.observations.push_back(std::move(o));
}

Recorded recorded_at(const Context& context, const std::string& prefix) {
  const ledger::RecordSet record_set(ledger::known(context.ledger, context.root, context.slugs()));
  const ledger::Entry* entry = record_set.find(prefix);
  if (entry == nullptr)
    throw Error(ErrorCode::kUsage, "replay: no record '" + shown(prefix) +
                                       "' in the ledger or the committed evidence; give 4 or more "
                                       "digits of a digest (patchbench ledger list)");
  Recorded recorded{entry->digest, entry->record.predicate().at("context").at("slug"), {}, {}};
  const std::string type = entry->record.type();
  if (type == "observation") {
    add_part(recorded, entry->record);
    return recorded;
  }
  if (type != "verdict")
    throw Error(ErrorCode::kUsage,
                "replay: a " + type + " record is no run; give a verdict or an observation");
  recorded.verdict = entry->record;
  for (const std::string& digest : cited_by(entry->record)) {
    const ledger::Entry* cited = record_set.find(digest);
    if (cited == nullptr)
      throw Error(ErrorCode::kUsage, "replay: observation " + digest.substr(0, 16) +
                                         ", which the verdict cites, is not here; import it");
    add_part(recorded, cited->record);
  }
  if (recorded.parts.empty()) not_here("the verdict rests on no observation");
  return recorded;
}

/// The request whose setup makes a part again.
RunRequest request_of(const Recorded& recorded, const Subject& subject, const Part& part,
                      const std::string& sandbox) {
  RunRequest request{.slug = recorded.slug, .subject = subject, .needs_pin = true};
  const RunPin& pin = part.context.pin;
  const auto named = [](const std::string& text) {
    return text.empty() ? std::nullopt : std::optional(text);
  };
  request.upstream = named(pin.upstream());
  request.version = named(pin.version());
  if (pin.is_installed())
    not_here("it judged an installed stack (--python), which no record can rebuild");
  const Json companions = pin.companions();
  for (const auto& [name, version] : companions.items())
    request.companions[name] = version.get<std::string>();
  const RunSandbox& recorded_sandbox = part.context.sandbox;
  if (!sandbox.empty()) {
    request.sandbox = exec::sandbox_from(sandbox);
  } else if (!recorded_sandbox.is_in_process() && !recorded_sandbox.is_none()) {
    request.sandbox = exec::sandbox_from(recorded_sandbox.kind());
  }
  request.device = part.observations.back().device;
  return request;
}

/// What draws the cases of a summary again, or judges those that were given.
void draw_again(const Observation& o, const Part& part, PlanStep& step) {
  const bool is_drawn = std::any_of(part.observations.begin(), part.observations.end(),
                                    [](const Observation& one) { return one.is_summary(); });
  if (o.is_summary()) {
    const auto seeds = o.drawn.at("seeds").get<std::vector<uint64_t>>();
    step.seeds = {seeds.front(), seeds.back()};
    step.draws.count += o.drawn.at("asked").get<int>() / step.seeds.count();
  } else if (!is_drawn) {
    step.seeds = {o.seed, o.seed};
    step.given.push_back(o.drawn.at("axes"));
  }
}

/// The step that a part was made in, from its observations.
PlanStep step_of(const RunTarget& target, const RunOf& run, const Part& part) {
  PlanStep step{.subject = run.first, .is_spoiled = run.second};
  std::vector<std::string> names;
  for (const Observation& o : part.observations) {
    step.has_regions |= o.subject.is_region_mutant();
    if (o.role == CaseRole::kDrawn) {
      draw_again(o, part, step);
      continue;
    }
    names.push_back(o.case_name);
    step.seeds = {o.seed, o.seed};
    step.repeats = std::max(step.repeats, o.repeat + 1);
  }
  for (const std::string& name : names) {
    if (target.manifest.find_case(name) == nullptr)
      not_here("case " + name + " of the record is not in the manifest any more");
  }
  if (step.given.empty() && !names.empty())
    step.cases = cases_for(target, Question::kReproduce, step.subject, names);
  step.draws = draws_of(target, step.subject, step.draws.count, step.seeds);
  return step;
}

/// What must be here for the same run: cases, device, environment.
void check_setup(const Setup& setup, const Part& part) {
  const auto differ = [](const char* what, const std::string& then, const std::string& now) {
    if (then != now) not_here(fmt::format("{}: {} recorded, {} here", what, then, now));
  };
  differ("device", part.context.machine.value("device", "cpu"),
         setup.machine.value("device", "cpu"));
  if (!part.context.pin.is_none()) {
    differ("environment", part.context.environment, setup.environment.address);
    differ("release's file", part.context.pin.sha256(), setup.target.pin->sha256);
  }
}

/// The pack's edits of the recorded digests, in their order.
std::vector<Edit> edits_by_digest(const Context& context, const Setup& setup, const Part& part) {
  std::vector<Edit> edits;
  if (part.context.edits.empty()) return edits;
  Series all = edits_at(context, setup.target);
  for (const auto* lone : {&all.mutants, &all.claimed})
    all.edits.insert(all.edits.end(), lone->begin(), lone->end());
  for (const std::string& digest : part.context.edits) {
    const auto at = std::find_if(all.edits.begin(), all.edits.end(), [&](const Edit& edit) {
      return sha256_hex(format_edit(edit)) == digest;
    });
    if (at == all.edits.end())
      not_here("edit " + digest.substr(0, 16) + " of the record is not among the pack's any more");
    edits.push_back(*at);
  }
  return edits;
}

Trial run_again(const Context& context, const Recorded& recorded, const RunOf& run,
                const Part& part, const std::string& sandbox) {
  const auto& [subject, is_spoiled] = run;
  const Setup setup = prepare(context, request_of(recorded, subject, part, sandbox));
  PlanStep step = step_of(setup.target, run, part);
  check_setup(setup, part);
  step.edits = edits_by_digest(context, setup, part);
  const auto has_lines = [](const Observation& o) { return o.self_reported.contains("lines"); };
  if (std::any_of(part.observations.begin(), part.observations.end(), has_lines))
    step.changed = changed_lines(step.edits);
  if (!context.judged().is_same(setup.target.manifest.sha256, part.context.manifest_sha256))
    exec::progress(
        "the manifest was changed since; the digests of the inputs tell whether a case was");
  exec::progress("again: " + subject.text() + (is_spoiled ? ", mutants of its outputs" : ""));
  Trial trial = run_step(context, setup, step);
  if (trial.context.tree != part.context.tree)
    not_here(fmt::format("the tree is {}, recorded {}", trial.context.tree, part.context.tree));
  return trial;
}

/// One line of the answer.
struct Line {
  const Observation* recorded;
  Replayed replayed;
};

std::vector<Line> compared(const Part& part, const Trial& trial, Determinism kind) {
  std::vector<Line> lines;
  for (const Observation& o : part.observations) {
    const auto at = std::find_if(
        trial.observations.begin(), trial.observations.end(), [&](const Observation& now) {
          return now.subject == o.subject && now.case_name == o.case_name && now.seed == o.seed &&
                 now.repeat == o.repeat;
        });
    const bool is_there = at != trial.observations.end();
    lines.push_back({&o, is_there ? compare_replay(o, *at, kind)
                                  : Replayed{Replayed::How::kDiffers, "not observed now"}});
  }
  return lines;
}

/// "" where the verdict is the recorded one, or holds none.
std::string verdict_differs(const Recorded& recorded, const std::vector<Trial>& trials) {
  if (!recorded.verdict) return "";
  const Outcome then = outcome_of(*recorded.verdict);
  const Outcome now =
      sentinel_of(observations_of(trials),
                  QuestionContext::from_json(recorded.verdict->predicate().at("question")));
  if (then.text() == now.text()) return "";
  return fmt::format("{} recorded, {} now{}", then.text(), now.text(),
                     now.why.empty() ? "" : ": " + now.why);
}

void print(const Context& context, const Recorded& recorded, const std::vector<Line>& lines,
           const std::string& verdict) {
  std::map<Replayed::How, int> counts;
  Json rows = Json::array();
  report::Table table({"subject", "case", "seed", "replayed", "why"});
  for (const Line& line : lines) {
    const Observation& o = *line.recorded;
    const std::string how = replayed_name(line.replayed.how);
    ++counts[line.replayed.how];
    rows.push_back({{"subject", o.subject.text()},
                    {"case", o.case_name},
                    {"seed", o.seed},
                    {"repeat", o.repeat},
                    {"replayed", how},
                    {"why", line.replayed.why}});
    table.add({o.subject.text(), o.case_name, std::to_string(o.seed), how, line.replayed.why});
  }
  const bool is_same = counts[Replayed::How::kDiffers] == 0 && verdict.empty();
  if (context.json)
    return print_json(context, {{"record", recorded.digest},
                                {"slug", recorded.slug},
                                {"same", is_same},
                                {"observations", rows},
                                {"verdict", verdict.empty() ? "as recorded" : verdict}});
  context.out() << table.render(table_style(context));
  if (!verdict.empty()) context.out() << fmt::format("verdict: {}\n", verdict);
  context.out() << fmt::format("{}: {} bitwise, {} within tolerance, {} differ\n",
                               is_same ? "same" : "differs", counts[Replayed::How::kBitwise],
                               counts[Replayed::How::kWithinTolerance],
                               counts[Replayed::How::kDiffers])
                << report::closing(is_same ? "This machine gives the recorded numbers."
                                           : "This machine does not give the recorded numbers.",
                                   "patchbench ledger show " + recorded.digest.substr(0, 16));
}

void replay(Context& context, const std::string& digest, const std::string& sandbox) {
  const Recorded recorded = recorded_at(context, digest);
  const bool is_bitwise =
      recorded.verdict && recorded.verdict->predicate().at("question").at("question") ==
                              question_name(Question::kEquivalence);
  std::vector<Trial> trials;
  std::vector<Line> lines;
  for (const auto& [subject, part] : recorded.parts) {
    trials.push_back(run_again(context, recorded, subject, part, sandbox));
    for (Line& line : compared(part, trials.back(),
                               is_bitwise ? Determinism::kBitwise : Determinism::kWithinTolerance))
      lines.push_back(std::move(line));
  }
  const std::string verdict = verdict_differs(recorded, trials);
  const bool is_same =
      verdict.empty() && std::none_of(lines.begin(), lines.end(), [](const Line& l) {
        return l.replayed.how == Replayed::How::kDiffers;
      });
  context.exit_code = is_same ? kExitYes : kExitNo;
  print(context, recorded, lines, verdict);
}

}  // namespace

void add_ledger_replay(CLI::App& ledger, Context& context) {
  struct Options {
    std::string digest, sandbox;
    bool judges = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = ledger.add_subcommand(
      "replay", "make a recorded run again and compare its numbers with the record");
  command
      ->add_option("record", options->digest,
                   "digest of a verdict or an observation (or its start)")
      ->required();
  command->add_flag("--judge", options->judges,
                    "RECORD is a run id: compute its verdict again from its observations");
  command->add_option("--sandbox", options->sandbox,
                      "another sandbox than the recorded one: podman, docker, bwrap or process");
  command->footer(
      "From the record come the release by its digest, the edits by theirs, cases, seed, repeats,\n"
      "sandbox and kind of device. The inputs must have the recorded digests. Each answer must be\n"
      "the recorded one and each error within the case's limit of the recorded error; where the\n"
      "record compares outputs bit for bit (EQUIVALENCE_*) the outputs must have the same bits.\n"
      "Nothing is written to the ledger.\n"
      "With --judge nothing is run and the new verdict is written: for runs that were imported\n"
      "without one, or judged before a rule was corrected.\n"
      "Exit: 0 the same, 1 it differs, 4 not runnable here (no such device, release,\n"
      "edit, case or environment). patchbench ledger list shows the records.\n"
      "Examples:\n  patchbench ledger replay 3f9a0c\n  patchbench ledger replay 3f9a0c --sandbox "
      "bwrap");
  command->callback([options, &context] {
    if (options->judges) return judge_again(context, options->digest);
    replay(context, options->digest, options->sandbox);
  });
}

}  // namespace patchbench::cli
