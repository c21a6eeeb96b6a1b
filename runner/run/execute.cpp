#include "run/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iterator>
#include <set>
#include <thread>

#include "core/digest.h"
#include "core/error.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "ledger/ledger.h"
#include "run/altered.h"
#include "run/mitigation_program.h"
#include "run/programs.h"
#include "run/self_test.h"
#include "run/subject_spec.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr int kRecordsFd = 3;

/// Copies kernels compiled before to where a subject's TileLang looks for them; returns the digest
/// of their names, which TileLang makes of their sources.
std::string give_compiled(const fs::path& cache, const fs::path& to) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(cache))
    names.insert(fs::relative(entry.path(), cache).generic_string());
  Sha256 hash;
  for (const std::string& name : names) hash.update(name + "\n");
  fs::create_directories(to.parent_path());
  fs::copy(cache, to, fs::copy_options::recursive);
  return hash.hex();
}

RunPin pin_of(const RunTarget& target) {
  return target.pin ? RunPin(*target.pin, target.companions_json())
                    : RunPin::installed(target.upstream.name);
}

RunContext make_run_context(const Setup& setup, const PlanStep& step) {
  const Subject& subject = step.subject;
  RunContext run;
  run.run_id = setup.run_id;
  run.started = setup.started;
  run.tool = std::string("patchbench ") + PATCHBENCH_VERSION;
  run.slug = setup.target.manifest.slug.str();
  run.manifest_sha256 = setup.target.manifest.sha256;
  if (!subject.is_in_process()) run.pin = pin_of(setup.target);
  for (const Edit& edit : step.edits) run.edits.push_back(sha256_hex(format_edit(edit)));
  run.files = Json::object();
  run.environment = setup.environment.address;
  const bool is_isolated = setup.sandbox != exec::SandboxKind::kProcess;
  run.sandbox = subject.is_in_process()
                    ? RunSandbox::in_process()
                    : RunSandbox(exec::sandbox_name(setup.sandbox), is_isolated, setup.image);
  run.machine = setup.machine;
  return run;
}

/// The last non-empty line of a text, for one-line messages.
std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of(" \n\t");
  if (end == std::string::npos) return "no message";
  const auto start = text.find_last_of('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1,
                     end - (start == std::string::npos ? 0 : start + 1) + 1);
}

/// What the reproducer is told, but for how its subject is started.
std::vector<std::string> options_of(const Context& context, const Setup& setup,
                                    const PlanStep& step, const fs::path& folder) {
  std::vector<std::string> argv = judge_program(context, setup.target.manifest.slug.str()).argv;
  argv.insert(
      argv.end(),
      {"--cases", (folder / "cases.json").string(), "--subject", step.subject.text(), "--device",
       setup.target.device.text(), "--judge-device", setup.judge.text(), "--seed",
       std::to_string(step.seeds.first), "--work", (folder / "work").string(), "--repeat",
       std::to_string(step.repeats), "--records-fd", std::to_string(kRecordsFd)});
  if (step.is_spoiled) argv.insert(argv.end(), {"--corrupt", "all"});
  if (step.has_regions) argv.emplace_back("--regions");
  if (step.stops_at_red) argv.emplace_back("--stop-at-red");
  if (step.draws.count > 0)
    argv.insert(argv.end(), {"--draw", std::to_string(step.draws.count), "--seeds",
                             fmt::format("{}-{}", step.seeds.first, step.seeds.last),
                             "--draw-seconds", std::to_string(step.draws.seconds)});
  return argv;
}

/// A drawn case is shown and explained; those that tell of a failure are recorded, too.
void keep(Observation o, Trial& trial) {
  constexpr std::size_t kEvery = 20;
  if (o.role == CaseRole::kDrawn && !o.is_summary()) {
    trial.drawn.push_back(o);
    if (trial.drawn.size() % kEvery == 0)
      exec::progress(fmt::format("{}: {} drawn cases judged", o.subject, trial.drawn.size()));
    if (o.is_passing()) return;
    o.drawn.erase("properties");
  }
  trial.observations.push_back(std::move(o));
  const Observation& kept = trial.observations.back();
  if (kept.role != CaseRole::kDrawn)
    exec::progress_on_terminal(fmt::format("{}: {} judged, {} {}", kept.subject,
                                           trial.observations.size(), kept.case_name,
                                           case_status_name(kept.status)));
}

/// The runs of this machine.
class LocalRunner : public SubjectRunner {
 public:
  Setup prepare(const Context& context, const RunRequest& request) override {
    return prepare_here(context, request);
  }
  Trial run(const Context& context, const Setup& setup, const PlanStep& step) override;
  Json run_program(const Context& context, const Setup& setup) override {
    return run_mitigation_program(context, setup);
  }
};

Trial LocalRunner::run(const Context& context, const Setup& setup, const PlanStep& step) {
  const auto started = std::chrono::steady_clock::now();
  const std::string slug = setup.target.manifest.slug.str();
  Trial trial;
  trial.context = make_run_context(setup, step);
  const Subject& subject = step.subject;
  std::string file_name = subject.text() + (step.is_spoiled ? "all" : "");
  std::replace(file_name.begin(), file_name.end(), ':', '-');
  const fs::path folder = setup.folder / file_name;
  fs::create_directories(folder / "work");

  exec::Command command;
  command.argv = options_of(context, setup, step, folder);
  write_file(folder / "cases.json", cases_document(setup.target, step).dump());
  if (!subject.is_in_process()) {
    const std::vector<git::Checkout> checkouts =
        check_out(context, setup, subject, step.edits, trial.context);
    if (setup.compile_cache)
      trial.context.sandbox.add_given(
          "compile_cache", give_compiled(*setup.compile_cache, folder / "work/home/.tilelang"));
    const exec::SandboxSpec spec = sandbox_spec(context, setup, subject, checkouts, folder);
    write_file(folder / "spec.json", spec.to_json().dump());
    std::vector<std::string> start_argv = sandbox_program(context).argv;
    start_argv.push_back((folder / "spec.json").string());
    const Json start = {
        {"argv", start_argv}, {"report", spec.report.string()}, {"timeout_s", spec.timeout_s + 60}};
    write_file(folder / "command.json", start.dump());
    command.argv.insert(command.argv.end(),
                        {"--subject-command", (folder / "command.json").string()});
  }
  if (!setup.libtorch.empty()) command.env["LD_LIBRARY_PATH"] = setup.libtorch.string();
  command.records_fd_in_child = kRecordsFd;
  command.on_record = [&](const std::string& line) {
    keep(Observation::from_json(parse_json(line, "repro_" + slug)), trial);
  };
  exec::progress_on_terminal(fmt::format("{}: runs on {}", subject, setup.target.device.text()));
  const exec::Exit exit = exec::run(command);
  if (!exit.ok()) {
    throw Error(exit.exit_code == 2   ? ErrorCode::kUsage
                : exit.exit_code == 4 ? ErrorCode::kNotRunnable
                                      : ErrorCode::kInternal,
                fmt::format("repro_{} ({}): {}", slug, subject,
                            last_line(exit.error.empty() ? exit.err : exit.error)));
  }
  trial.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return trial;
}

SubjectRunner& runner_of(const Context& context) {
  static LocalRunner local;
  return context.subjects != nullptr ? *context.subjects : local;
}

/// The trials of the steps in their order, setup.jobs of them at a time; the first failure ends it.
std::vector<Trial> run_steps(const Context& context, const Setup& setup,
                             const std::vector<PlanStep>& steps) {
  std::vector<Trial> trials(steps.size());
  std::vector<std::exception_ptr> failures(steps.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t at = next++; at < steps.size(); at = next++) {
      try {
        if (steps.size() > 1) exec::progress(steps[at].subject.text());
        trials[at] = run_step(context, setup, steps[at]);
      } catch (...) {
        failures[at] = std::current_exception();
        next = steps.size();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < setup.jobs; ++i) others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return trials;
}

/// The same run on the release that the pack calls fixed.
Setup setup_of_fixed(const Context& context, const Setup& setup) {
  const RunTarget& target = setup.target;
  RunRequest request{.slug = target.manifest.slug.str(),
                     .upstream = target.upstream.name,
                     .version = target.manifest.explore.fixed.at(target.upstream.name),
                     .device = target.device.text(),
                     .sandbox = setup.sandbox};
  for (const Pin& pin : target.companions) request.companions[pin.upstream] = pin.version;
  if (!setup.environment.python.empty()) request.python = setup.environment.python;
  Setup fixed = prepare(context, request);
  fixed.run_id = setup.run_id;
  fixed.started = setup.started;
  fixed.folder = setup.folder;
  fixed.compile_cache = setup.compile_cache;
  return fixed;
}

/// Runs what follows from what was observed.
void run_further(const Context& context, const Setup& setup, const RunPlan& plan,
                 std::vector<Trial>& trials) {
  std::optional<Setup> fixed;
  for (const PlanStep& step : further_steps(setup.target, plan, observations_of(trials))) {
    if (step.pin == PinRole::kFixed && !fixed) fixed = setup_of_fixed(context, setup);
    exec::progress(fmt::format("{} red drawn cases on {}", step.given.size(), step.subject));
    trials.push_back(run_step(context, step.pin == PinRole::kFixed ? *fixed : setup, step));
  }
}

/// Subjects are compared where they ran in one environment on one machine.
void check_together(const std::vector<Trial>& trials) {
  for (const Trial& trial : trials) {
    if (trial.observations.empty()) continue;
    const std::string subject = trial.observations.front().subject.text();
    // Another release may need another environment; it is asked about single cases.
    if (trial.observations.front().subject == SubjectKind::kFixed) continue;
    if (trial.context.environment != trials.front().context.environment)
      throw Error(ErrorCode::kIntegrity,
                  subject + " ran in another environment: " + trial.context.environment);
    if (trial.context.machine != trials.front().context.machine)
      throw Error(ErrorCode::kIntegrity, subject + " ran on another machine");
  }
}

/// Appends the plan of an answer, its observations and its verdict to the ledger; returns the
/// verdict's digest.
std::string record(const Context& context, const Answer& answer) {
  const RunContext& of_release = answer.trials.front().context;
  std::vector<Record> records = {make_record("plan", of_release, {{"plan", answer.plan}})};
  const std::string plan = records.front().digest();
  std::vector<std::string> digests;
  for (const Trial& trial : answer.trials) {
    for (const Observation& observation : trial.observations) {
      records.push_back(make_observation_record(trial.context, observation));
      digests.push_back(records.back().digest());
    }
  }
  records.push_back(
      make_verdict_record(of_release, answer.question, answer.outcome, digests, plan));
  ledger::Ledger::open(context.ledger)->append(records);
  return records.back().digest();
}

/// The sentinel over all trials of an answer, and its record.
void conclude(const Context& context, Answer& answer) {
  check_together(answer.trials);
  answer.outcome = sentinel_of(observations_of(answer.trials), answer.question);
  answer.digest = record(context, answer);
}

}  // namespace

Setup prepare(const Context& context, const RunRequest& request) {
  return runner_of(context).prepare(context, request);
}

Trial run_step(const Context& context, const Setup& setup, const PlanStep& step) {
  return runner_of(context).run(context, setup, step);
}

Answer execute(const Context& context, const Setup& setup, const RunPlan& plan) {
  ensure_self_test(context, setup);
  const auto mutants = std::find_if(plan.steps.begin(), plan.steps.end(),
                                    [](const PlanStep& step) { return step.stops_at_red; });
  Answer answer{run_steps(context, setup, {plan.steps.begin(), mutants}),
                plan.question,
                {},
                "",
                plan.to_json()};
  run_further(context, setup, plan, answer.trials);
  const auto run_more = [&](const std::vector<PlanStep>& steps) {
    std::vector<Trial> trials = run_steps(context, setup, steps);
    std::move(trials.begin(), trials.end(), std::back_inserter(answer.trials));
  };
  // A fix that is red is rejected, whatever its mutants are.
  if (sentinel_of(observations_of(answer.trials), plan.question).sentinel != Sentinel::kFixRejected)
    run_more({mutants, plan.steps.end()});
  const bool is_of_fix = plan.question.has_lines && !plan.question.is_partial;
  const auto of_fix = sentinel_of(observations_of(answer.trials), plan.question).sentinel;
  if (is_of_fix && of_fix && is_of_all_cases(*of_fix)) {  // of a red fix they would say nothing
    AlteredSteps altered = altered_steps(context, setup, plan, answer.trials);
    run_more(altered.steps);
    answer.question.altered = std::move(altered.what);
  }
  // The judge comes first: a program says nothing about a mitigation that is red there.
  if (plan.runs_program && sentinel_of(observations_of(answer.trials), plan.question).sentinel)
    answer.question.program = runner_of(context).run_program(context, setup);
  conclude(context, answer);
  return answer;
}

std::optional<Answer> further_answer(const Context& context, const Answer& answer,
                                     const std::optional<QuestionContext>& question) {
  if (!question) return std::nullopt;
  Answer further{answer.trials, *question, {}, "", answer.plan};
  conclude(context, further);
  return further;
}

std::string record_explained(const Context& context, const Answer& answer, const Json& explained) {
  const std::vector<Record> records = {make_record(
      "measurement", answer.trials.front().context,
      {{"measured", "explained"}, {"explained", explained}, {"verdict", answer.digest}})};
  ledger::Ledger::open(context.ledger)->append(records);
  return records.front().digest();
}

std::vector<Observation> observations_of(const std::vector<Trial>& trials) {
  std::vector<Observation> all;
  for (const Trial& trial : trials)
    all.insert(all.end(), trial.observations.begin(), trial.observations.end());
  return all;
}

}  // namespace patchbench
