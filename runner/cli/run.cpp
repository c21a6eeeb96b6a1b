#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/pack_arguments.h"
#include "core/edit_over.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "core/finding.h"
#include "exec/progress.h"
#include "git/diff_reader.h"
#include "git/series.h"
#include "report/junit.h"
#include "report/markdown.h"
#include "run/explanation.h"
#include "run/names.h"
#include "run/next_step.h"
#include "run/not_run.h"
#include "run/preview.h"
#include "run/questions.h"
#include "run/trial_render.h"
#include "run/window_run.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// The options of all commands that run a subject.
struct RunVerbOptions {
  RunRequest run;
  std::shared_ptr<PackArguments> pack;
  std::string sandbox, seeds, axes, junit, markdown;
  std::vector<std::string> edits;
  bool all = false, plan = false, is_bisect = false, commits = false, resume = false,
       explain = false;
};

void add_shared(CLI::App& command, RunVerbOptions& options) {
  command.add_option("--case", options.run.choice.cases, "only this case (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--device", options.run.device,
                     "cpu or cuda:N (default: a GPU if there is one)");
  command.add_option("--sandbox", options.sandbox,
                     "podman, docker, bwrap or process (default: the strongest usable)");
  command.add_option(
      "--python", options.run.python,
      "use the stack installed for this interpreter or venv; alone: judge its release");
  command
      .add_option("--compile-cache", options.run.compile_cache,
                  "a ~/.tilelang: each subject starts with a copy of it and compiles the rest")
      ->check(CLI::ExistingDirectory);
  command.add_option("--seed", options.seeds,
                     "seed of the inputs, or FIRST-LAST of drawn cases (default: 1)");
  command
      .add_option("--repeat", options.run.choice.repeats,
                  "run N times; mixed results are unresolved")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

/// How many cases are drawn, where that can be said.
void add_draw(CLI::App& command, RunVerbOptions& options) {
  command
      .add_option("--draw", options.run.choice.num_drawn,
                  "cases to draw from the pack's spaces (default: the manifest's counts; 0: none)")
      ->check(CLI::Range(0, 100000));
}

void take_pins(const NamedPins& pins, RunRequest& request) {
  if (!pins.upstream.empty()) request.upstream = pins.upstream;
  if (!pins.versions.empty()) request.version = pins.version();
  for (const PinWord& one : pins.companions) request.companions[one.upstream] = one.which;
}

RunRequest request_of(const Context& context, const RunVerbOptions& options) {
  RunRequest request = options.run;
  if (options.pack) request.slug = options.pack->slug;
  if (options.pack && !request.slug.empty()) take_pins(options.pack->pins(context), request);
  if (!options.sandbox.empty()) request.sandbox = exec::sandbox_from(options.sandbox);
  if (!options.seeds.empty()) request.choice.seeds = seeds_of(options.seeds);
  if (!options.axes.empty()) {
    request.choice.given = {parse_json(
        options.axes.starts_with('{') ? options.axes : read_file(options.axes), "--axes")};
    if (!request.choice.given.front().is_object())
      throw Error(ErrorCode::kUsage, "--axes: want a JSON object of axes, or a file with one");
  }
  return request;
}

/// Of drawn cases alone: whether one was red; nullopt where one has no answer.
std::optional<bool> is_red_where_drawn(const Answer& answer) {
  bool is_red = false;
  for (const Observation& o : observations_of(answer.trials)) {
    if (o.status != CaseStatus::kPresent && o.status != CaseStatus::kAbsent) return std::nullopt;
    is_red |= o.status == CaseStatus::kPresent;
  }
  return is_red;
}

/// The git-bisect status of an answer.
int bisect_status(const Answer& answer) {
  if (answer.question.question == Question::kDrawn) {
    const auto is_red = is_red_where_drawn(answer);
    return !is_red ? kBisectCannotJudge : *is_red ? kBisectPresent : kBisectAbsent;
  }
  if (answer.outcome.sentinel == Sentinel::kBugReproduced) return kBisectPresent;
  if (answer.outcome.sentinel == Sentinel::kBugAbsent) return kBisectAbsent;
  return kBisectCannotJudge;
}

/// Whether the question has an answer.
int status_of(const Answer& answer) {
  const bool is_answered = answer.question.question == Question::kDrawn
                               ? is_red_where_drawn(answer).has_value()
                               : answer.outcome.sentinel.has_value();
  return is_answered ? kExitYes : kExitNoAnswer;
}

void write_reports(const RunVerbOptions& options, const Setup& setup, const Answer& answer) {
  const std::vector<Observation> all = observations_of(answer.trials);
  std::vector<report::SubjectRun> runs;
  for (const Trial& trial : answer.trials) {
    if (!trial.observations.empty())
      runs.push_back({trial.observations.front().subject.text(), trial.context});
  }
  const auto write = [](const std::string& path, const std::string& text) {
    if (path.empty()) return;
    std::ofstream out(path);
    if (!(out << text).flush()) throw Error(ErrorCode::kUsage, path + ": cannot be written");
  };
  if (!options.junit.empty())
    write(options.junit, report::junit_of_run(setup.target.manifest.slug.str(), all,
                                              answer.question, answer.outcome, answer.digest));
  if (!options.markdown.empty() && !runs.empty()) {
    write(options.markdown,
          report::markdown_of_run(runs, all, answer.question, answer.outcome, answer.digest));
  }
}

Json answer_json(const Setup& setup, const Answer& answer) {
  return trials_json(setup, answer.trials, answer.question, answer.outcome, answer.digest);
}

Json further_json(const Answer& answer) {
  return {{"sentinel", answer.outcome.text()}, {"why", answer.outcome.why}};
}

std::string further_text(const Answer& answer) {
  const std::string name = question_name(answer.question.question);
  return (answer.outcome.sentinel ? "" : name + ": ") + described(answer.outcome, answer.question) +
         ": " + answer.outcome.why + "\n";
}

/// What a run of one pack came to: its JSON document (with --json) and the exit code.
struct Reported {
  Json document;
  int status = 0;
  std::optional<NotRun> not_run;
};

Reported reproduce_one(const Context& context, const RunVerbOptions& options,
                       const RunRequest& request) {
  try {
    const Setup setup = prepare(context, request);
    const Answer answer = reproduce(context, setup, request);
    const auto memory = further_answer(
        context, answer,
        memory_question(setup.target.manifest, answer.question, observations_of(answer.trials)));
    Reported reported{{}, status_of(answer)};
    if (options.is_bisect) reported.status = bisect_status(answer);
    const Json explained =
        options.explain ? explanations(setup, request.subject, answer.trials) : Json();
    if (options.explain && answer.question.num_drawn > 0)
      record_explained(context, answer, explained);
    if (context.json) {
      reported.document = answer_json(setup, answer);
      if (memory) reported.document["memory"] = further_json(*memory);
      if (options.explain) reported.document["explained"] = explained;
    } else {
      context.out() << render_trials(setup, answer.trials, answer.question, answer.outcome,
                                     table_style(context));
      if (memory) context.out() << further_text(*memory);
      if (options.explain) context.out() << explanation_text(explained);
      context.out() << next_step(setup, answer.question, answer.outcome);
    }
    return reported;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kNotRunnable || (options.is_bisect && !options.all)) throw;
    const std::string name = request.slug + (request.upstream ? " on " + *request.upstream : "");
    const NotRun part = not_run(name, e);
    const std::string sentinel = "NOT_RUN:" + reason_name(part.reason);
    if (!context.json)
      context.out() << name << ": " << sentinel << "\n"
                    << report::closing("This run gave no verdict.", "patchbench env doctor");
    context.err() << "patchbench: " << e.what() << "\n";
    return {{{"slug", request.slug},
             {"upstream", request.upstream.value_or("")},
             {"sentinel", sentinel},
             {"why", part.why}},
            options.is_bisect ? +kBisectCannotJudge : +kExitNotHere,
            part};
  }
}

/// The git-bisect status of many runs: hit, then unknown, then not hit.
int merged_bisect_status(int one, int other) {
  return one == kBisectPresent || other == kBisectPresent ? +kBisectPresent : std::max(one, other);
}

/// One run for each pack and upstream that is asked for; packs that have no such subject go to
/// `without`.
std::vector<RunRequest> runs_of(const Context& context, const RunVerbOptions& options,
                                const RunRequest& request, std::vector<std::string>& without) {
  std::vector<std::string> slugs =
      options.all ? context.slugs() : std::vector<std::string>{request.slug};
  std::vector<RunRequest> runs;
  for (const std::string& slug : slugs) {
    if (options.all && !has_subject(context.manifest(slug), request.subject)) {
      without.push_back(slug);
      continue;
    }
    runs.push_back(request);
    runs.back().slug = slug;
    // One pack: its first upstream, or the one named. All: every upstream of each; a mitigation
    // acts on one.
    for (const UpstreamUse& use : context.manifest(slug).upstreams) {
      if (!options.all || request.upstream || request.subject == SubjectKind::kMitigated) break;
      if (use.from_environment) continue;
      if (runs.back().upstream) runs.push_back(runs.back());
      runs.back().upstream = use.name;
    }
  }
  return runs;
}

void run_reproduce(Context& context, const RunVerbOptions& options) {
  if (options.all == !options.pack->slug.empty())
    throw Error(ErrorCode::kUsage, "reproduce: name one pack, or --all");
  const RunRequest request = request_of(context, options);
  std::vector<std::string> without;
  const std::vector<RunRequest> runs = runs_of(context, options, request, without);
  if (runs.empty())
    throw Error(ErrorCode::kUsage, fmt::format("no pack has a subject '{}'", request.subject));
  if (!without.empty())
    exec::progress(fmt::format("no subject '{}': {}", request.subject, fmt::join(without, ", ")));
  Json documents = Json::array();
  std::vector<NotRun> missing;
  for (const RunRequest& one : runs) {
    if (options.plan) {
      documents.push_back(preview_of(context, one));
      if (!context.json) context.out() << preview_text(documents.back());
      continue;
    }
    const Reported reported = reproduce_one(context, options, one);
    documents.push_back(reported.document);
    if (reported.not_run) missing.push_back(*reported.not_run);
    // With --all a pack that cannot run here is an answer in the list, not the end of it.
    if (options.is_bisect)
      context.exit_code = merged_bisect_status(context.exit_code, reported.status);
    else if (!options.all || reported.status == kExitNoAnswer)
      context.exit_code = std::max(context.exit_code, reported.status);
  }
  if (context.json) print_json(context, options.all ? documents : documents.at(0));
  if (!context.json && options.all) context.out() << not_run_text(missing);
}

void add_reproduce(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunVerbOptions>();
  CLI::App* command =
      app.add_subcommand("reproduce", "run the reproducer on a real release: is it hit?");
  options->pack = add_pack_arguments(
      *command, context, {.instead = "one release alone; patchbench window runs all"},
      "[UPSTREAM@]WHICH (default: the tested release), companions after it");
  command
      ->add_option("--subject", options->run.subject,
                   "upstream | patched | mitigated[:<mode>] | op | model | mutant:<name> | "
                   "claimed:<name>")
      ->capture_default_str();
  command->add_flag("--all", options->all, "every pack");
  command->add_flag("--plan", options->plan, "say what would be fetched and used, and stop");
  command->add_flag("--explore", options->run.choice.explores,
                    "draw cases beyond the declared ones, and make the red ones small");
  add_draw(*command, *options);
  command->add_option("--axes", options->axes,
                      "judge one case with these axes, JSON or a file: what --explore printed");
  command->add_flag("--explain", options->explain,
                    "which condition on axes and inputs separates the red cases from the green "
                    "ones; with --explore it is recorded");
  command->add_flag("--bisect", options->is_bisect,
                    "exit as git bisect run wants it: 0 absent, 1 present, 125 cannot be judged, "
                    "200 our failure");
  add_shared(*command, *options);
  command->footer(
      "--all goes on past what cannot be run here, a git pin out of reach for one, and names it "
      "at\n"
      "the end: NOT_RUN:upstream_unreachable, which is no failure.\n"
      "A mode of a mitigation (PATCHBENCH_MITIGATE=SLUG:MODE) has verdicts of its own, such as\n"
      "MITIGATION_VERIFIED(dequantize), which say nothing of the mode that it takes by itself.\n"
      "Examples:\n  patchbench reproduce liger_flce_none_bwd\n"
      "  patchbench reproduce liger_flce_none_bwd 0.8.5\n"
      "  patchbench reproduce fp8_storage_dispatch --subject mitigated:dequantize\n"
      "  git bisect run /abs/patchbench reproduce liger_flce_none_bwd path:. --bisect");
  command->callback([options, &context] { run_reproduce(context, *options); });
}

/// The edits a user names: .edit files or folders of them, unified diffs, git:<commit>, path:DIR.
std::vector<Edit> user_edits(const Context& context, const Setup& setup,
                             const std::vector<std::string>& names) {
  git::Store store(context.cache, context.root);
  std::vector<Edit> edits;
  for (const std::string& name : names) {
    if (name.starts_with("path:")) {
      const Pin changed = context.pins().resolve(setup.target.upstream.name, name);
      const git::Checkout tree = store.materialize(changed, {});
      edits.push_back(
          git::edit_from_folder(tree.package, *setup.target.pin, store, "candidate.edit"));
    } else if (name.starts_with("git:")) {
      const Pin changed = context.pins().resolve(setup.target.upstream.name, name);
      edits.push_back(git::edit_from_folder(store.materialize(changed, {}).package,
                                            *setup.target.pin, store, "candidate.edit"));
    } else if (fs::is_directory(name)) {
      for (Edit& edit : git::load_series(name).edits) edits.push_back(std::move(edit));
    } else if (name.ends_with(".edit")) {
      edits.push_back(load_edit(name));
    } else {
      edits.push_back(git::edit_from_diff(read_file(name), *setup.target.pin, store,
                                          fs::path(name).filename().string()));
    }
  }
  return edits;
}

void run_validate(Context& context, const RunVerbOptions& options) {
  RunRequest request = request_of(context, options);
  request.needs_pin = true;
  std::vector<std::optional<std::string>> versions = {request.version};
  for (const std::string& version : options.pack->pins(context).versions) {
    if (version != request.version) versions.emplace_back(version);
  }
  Json documents = Json::array();
  for (const auto& version : versions) {
    request.version = version;
    const Setup setup = prepare(context, request);
    Series series = edits_at(context, setup.target);
    if (!options.edits.empty()) series.edits = user_edits(context, setup, options.edits);
    const Answer answer = validate(context, setup, series, request.choice);
    const auto regression =
        further_answer(context, answer,
                       regression_question(setup.target.manifest, answer.question,
                                           observations_of(answer.trials)));
    documents.push_back(context.json ? answer_json(setup, answer) : Json());
    if (context.json && regression) documents.back()["regression"] = further_json(*regression);
    if (!context.json) {
      context.out() << render_trials(setup, answer.trials, answer.question, answer.outcome,
                                     table_style(context));
      if (regression) context.out() << further_text(*regression);
      context.out() << next_step(setup, answer.question, answer.outcome);
    }
    write_reports(options, setup, answer);
    const bool is_shown = answer.outcome.sentinel && (!regression || regression->outcome.sentinel);
    const int status = answer.outcome.sentinel == Sentinel::kFixRejected ? kExitNo
                       : is_shown                                        ? kExitYes
                                                                         : kExitNoAnswer;
    context.exit_code = merged_status(context.exit_code, status);
  }
  if (context.json) print_json(context, documents.size() > 1 ? documents : documents.at(0));
}

void add_validate(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunVerbOptions>();
  CLI::App* command = app.add_subcommand(
      "validate", "unpatched red, patched green, every mutant red: does the fix hold?");
  options->pack = add_pack_arguments(
      *command, context, {.max_versions = 2, .instead = "two versions at most"},
      "[UPSTREAM@]WHICH (default: the tested release), a second WHICH on which the fix must hold "
      "as well, companions");
  command
      ->add_option("--edit", options->edits,
                   "your candidate instead of ours: .edit, unified diff, DIR of .edit, "
                   "git:<commit>, path:DIR")
      ->allow_extra_args(false);
  add_draw(*command, *options);
  command->add_option("--junit", options->junit, "write JUnit XML here");
  command->add_option("--markdown", options->markdown, "write the evidence page here");
  command
      ->add_option("-j,--jobs", options->run.jobs,
                   "subjects at a time, 8 GiB each (64 on a GPU): what compiles long gains")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_shared(*command, *options);
  command->footer(
      "Exit: 0 only on FIX_VALIDATED (of a refactor EQUIVALENCE_SHOWN or _PROVED), 1 on "
      "FIX_REJECTED,\n3 where neither could be shown, or the edit costs more than the manifest's "
      "ratios allow.\nExamples:\n"
      "  patchbench validate liger_flce_none_bwd\n"
      "  patchbench validate liger_flce_none_bwd --edit my.diff --markdown evidence.md");
  command->callback([options, &context] { run_validate(context, *options); });
}

/// The claim that the words name, "" for all; the others are companions.
std::string claim_of(const Context& context, const std::vector<std::string>& arguments,
                     RunRequest& request) {
  std::string name;
  std::vector<std::string> upstreams;
  for (const UpstreamUse& use : context.manifest(request.slug).upstreams)
    upstreams.push_back(use.name);
  for (const std::string& word : arguments) {
    if (word.find('@') != std::string::npos) {
      const PinWord one = parse_pin_word(word, upstreams, request.slug);
      request.companions[one.upstream] = one.which;
    } else if (!std::exchange(name, word).empty()) {
      throw Error(ErrorCode::kUsage, "'" + shown(word) + "': one claim alone, or all");
    }
  }
  return name;
}

void add_claim(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunVerbOptions>();
  auto given = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "claim", "test what a pack claims: CLAIM_CONFIRMED or CLAIM_REFUTED, with a contrast");
  command->add_option("slug", options->run.slug, "the pack (patchbench list)")->required();
  command->add_option("claim", *given,
                      "one claim (default: all that have a test), companions as UPSTREAM@WHICH");
  command->add_option("--device", options->run.device,
                      "cpu or cuda:N (default: a GPU if there is one)");
  command->add_option("--sandbox", options->sandbox, "podman, docker, bwrap or process");
  command->add_option("--python", options->run.python,
                      "use the stack installed for this interpreter or venv");
  command->add_option("--seed", options->seeds, "seed of the inputs (default: 1)");
  command->footer(
      "A test is a row of the manifest's scope: the subject that the claim speaks of, what it says "
      "is seen,\nand a contrast subject that shows that the check can come out both ways.\n"
      "Exit: 0 every claim was decided either way, 3 one was not.\n"
      "Examples:\n  patchbench claim liger_flce_none_bwd\n"
      "  patchbench claim mamba3_mimo_gqa_bwd groups_raise --sandbox bwrap");
  command->callback([options, given, &context] {
    RunRequest request = request_of(context, *options);
    const std::string name = claim_of(context, *given, request);
    request.needs_pin = true;
    const Manifest manifest = context.manifest(request.slug);
    std::vector<std::string> names;
    Json documents = Json::array();
    for (const ScopeRow& row : manifest.scope) {
      if (!row.test) continue;
      names.push_back(row.test->name);
      if (!name.empty() && name != row.test->name) continue;
      request.upstream = row.test->upstream;
      request.version = row.test->version;
      request.choice.cases = row.cases;
      const Setup setup = prepare(context, request);
      const Answer answer = test_claim(context, setup, *row.test, request.choice);
      documents.push_back(answer_json(setup, answer));
      documents.back()["claim"] = row.claim;
      if (!context.json)
        context.out() << row.test->name << ": " << row.claim << "\n"
                      << render_trials(setup, answer.trials, answer.question, answer.outcome,
                                       table_style(context))
                      << next_step(setup, answer.question, answer.outcome) << "\n";
      if (!answer.outcome.sentinel) context.exit_code = kExitNoAnswer;
    }
    if (documents.empty() && !name.empty())
      throw Error(ErrorCode::kUsage, fmt::format("{}: no claim '{}'{}", request.slug, name,
                                                 did_you_mean(name, names)));
    if (documents.empty())
      throw Error(ErrorCode::kUsage, request.slug + ": no row of its scope has a test");
    if (context.json) print_json(context, documents);
  });
}

void add_window(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunVerbOptions>();
  CLI::App* command = app.add_subcommand(
      "window", "measure every locked release; bisect commits inside measured edges");
  options->pack = add_pack_arguments(
      *command, context,
      {.max_versions = 0, .instead = "a window has every release; patchbench reproduce runs one"},
      "one of the pack's upstreams (default: the first), companions after it");
  command->add_flag(
      "--all", options->all,
      "every pack and upstream, resumed from the records: run it again after a break");
  command->add_flag("--plan", options->plan,
                    "how many releases the records know and which would be run; nothing is run");
  command->add_flag("--commits", options->commits,
                    "bisect the commits inside each measured edge (needs the git upstream)");
  command->add_flag(
      "--resume", options->resume,
      "take releases already judged on these cases and such a device from the records");
  add_shared(*command, *options);
  command->footer(
      "A git pin out of reach is named at the end, NOT_RUN:upstream_unreachable, and is no "
      "failure.\n"
      "Exit: 0 every release was judged, 3 one was not.\nExamples:\n"
      "  patchbench window liger_flce_none_bwd --resume\n"
      "  patchbench window --all --device cpu --plan\n  patchbench window --all --device cpu");
  command->callback([options, &context] {
    if (options->all == !options->pack->slug.empty())
      throw Error(ErrorCode::kUsage, "window: name one pack, or --all");
    options->run.needs_pin = true;
    const RunRequest request = request_of(context, *options);
    if (options->plan) {
      const Json plans = plan_windows(context, request);
      return context.json ? print_json(context, plans) : print_plans(context, plans);
    }
    WindowAnswer answer =
        options->all
            ? measure_all_windows(context, request)
            : measure_window(context, request,
                             {.bisect_commits = options->commits, .resume = options->resume});
    if (context.json) {
      print_json(context, answer.document);
    } else if (!options->all) {
      print_window(context, answer.document);
    }
    if (!context.json) {
      context.out() << not_run_text(answer.not_run)
                    << (options->all ? report::closing("The records have these windows.",
                                                       "patchbench status windows")
                                     : next_step_of_window(answer.document));
    }
    context.exit_code = answer.status;
  });
}

}  // namespace

void add_run_commands(CLI::App& app, Context& context) {
  add_reproduce(app, context);
  add_validate(app, context);
  add_window(app, context);
  add_claim(app, context);
}

}  // namespace patchbench::cli
