#include "run/verdicts.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <thread>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "ledger/ledger.h"
#include "run/drawn.h"
#include "run/programs.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// What the self-test's answer depends on: the judge's binary, the sandbox program, the files next
/// to the subject.
std::string selftest_key(const Context& context, const Setup& setup) {
  Sha256 hash;
  for (const fs::path& file :
       {judge_program(context, setup.manifest.slug.str()).file, sandbox_program(context).file,
        context.root / "repro/harness/subject_runtime.py",
        context.root / "repro/harness/triton_interpreter.py"}) {
    hash.update(read_file(file));
  }
  hash.update(exec::sandbox_name(setup.sandbox) + setup.device + setup.judge.device +
              setup.manifest.sha256);
  return hash.hex().substr(0, 16);
}

/// One trigger and one control that are for `subject` and count on this device: enough to see
/// whether the judge can fail and can pass. Of an op those that count on a CPU too: they are small.
std::vector<std::string> selftest_cases(const Setup& setup, const Subject& subject) {
  const std::string kind = setup.device.substr(0, setup.device.find(':'));
  std::vector<std::string> names;
  for (const CaseRole role : {CaseRole::kTrigger, CaseRole::kControl}) {
    for (const Case& c : setup.manifest.cases) {
      const bool is_of_it =
          subject.is_in_process() ? c.counts_on("cpu") : c.runs_on(setup.upstream);
      if (c.role == role && c.is_for(subject) && is_of_it && c.counts_on(kind)) {
        names.push_back(c.name);
        break;
      }
    }
  }
  return names;
}

/// One subject of a run and what is changed in it.
struct Part {
  Subject subject;
  std::vector<Edit> edits;
  int num_drawn = 0;
};

/// The trials of `parts` in their order, options.jobs of them at a time; the first failure ends it.
std::vector<Trial> run_parts(const Context& context, const Setup& setup, const RunOptions& options,
                             const std::vector<Part>& parts) {
  std::vector<Trial> trials(parts.size());
  std::vector<std::exception_ptr> failures(parts.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t at = next++; at < parts.size(); at = next++) {
      try {
        exec::progress(parts[at].subject.text());
        RunOptions of_part = options;
        of_part.num_drawn = parts[at].num_drawn;
        trials[at] = run_trial(context, setup, of_part, parts[at].subject, parts[at].edits);
      } catch (...) {
        failures[at] = std::current_exception();
        next = parts.size();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < options.jobs; ++i) others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return trials;
}

void refuse(const std::string& what) {
  throw Error(ErrorCode::kIntegrity,
              "self-test: " + what + "; no sentinel is issued (patchbench env selftest shows all)");
}

/// A subject that computes nothing, says it did, and prints sentinels.
void check_liar(const Context& context, const Setup& setup, RunOptions options) {
  options.cases = selftest_cases(setup, SubjectKind::kLiar);
  // No case of a release counts on this device, so that none can be lied about either.
  if (options.cases.empty()) return;
  const Trial liar = run_trial(context, setup, options, SubjectKind::kLiar, {});
  for (const Observation& o : liar.observations) {
    if (o.seen == Seen::kAbsent) refuse("a lying subject passed case " + o.case_name);
    if (o.outputs_sha256.empty())
      refuse("the lying subject did not get to lie on case " + o.case_name + ": " + o.reason);
  }
  if (liar.observations.empty()) refuse("a lying subject left no observation");
}

/// Drawn cases of a right subject: none is red, and mutants of its outputs in the regions that they
/// reach are.
void check_drawn(const Context& context, const Setup& setup, RunOptions options,
                 const Subject& right) {
  constexpr int kCases = 20;
  options.num_drawn = std::min(kCases, num_drawn_of(setup, right));
  if (options.num_drawn == 0) return;
  options.is_only_drawn = options.wants_regions = true;
  std::size_t num_caught = 0;
  for (const Observation& o : run_trial(context, setup, options, right, {}).observations) {
    if (o.seen != Seen::kAbsent)
      refuse(fmt::format("the right {} is {} on {}: {}", right, seen_name(o.seen), o.case_name,
                         o.reason));
    num_caught += o.drawn.value("regions", Json::object()).size();
  }
  if (num_caught == 0) refuse("no mutant of a region was red on the drawn cases");
}

/// "mutant:half" of mutant-half.edit, "claimed:once" of claimed-once.edit.
Subject subject_of(const Edit& lone) {
  std::string word = fs::path(lone.name).stem().string();
  return word.replace(word.find('-'), 1, ":");
}

/// What is applied to the checkout that a subject runs on.
std::vector<Edit> edits_of(const Context& context, const Setup& setup, const Subject& subject) {
  if (subject == SubjectKind::kPatched) return pack_edits_at(context, setup).edits;
  if (!subject.is_lone_edit()) return {};
  const PackEdits pack = pack_edits_at(context, setup);
  std::vector<std::string> names;
  for (const Edit& edit : subject == SubjectKind::kMutant ? pack.mutants : pack.claimed) {
    names.push_back(subject_of(edit).text());
    if (names.back() == subject.text()) return {edit};
  }
  throw Error(ErrorCode::kUsage, fmt::format("{}: no subject '{}'{}", setup.manifest.slug.str(),
                                             subject, did_you_mean(subject.text(), names)));
}

/// The cases that were named are for the subject, or it is said for whom they are.
void need_cases_for(const Manifest& manifest, const RunOptions& options) {
  for (const std::string& name : options.cases) {
    const Case& item = *manifest.find_case(name);
    if (item.is_for(options.subject)) continue;
    const std::string why = options.subject == SubjectKind::kMitigated && !item.left.empty()
                                ? item.left
                                : fmt::format("it is for {}", fmt::join(item.subjects, " and "));
    throw Error(ErrorCode::kUsage, fmt::format("{}: case '{}' is not for '{}': {}",
                                               manifest.slug.str(), name, options.subject, why));
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

/// Where the judge proves itself on subjects of its own process: on the CPU where they cannot run
/// on the device of the run.
Setup setup_of_own_subjects(const Setup& setup) {
  Setup own = setup;
  if (!setup.judge.has_ops) {
    own.device = "cpu";
    own.judge = {};
  }
  return own;
}

/// The sentinel over all trials of an answer, and its record.
void conclude(const Context& context, Answer& answer) {
  check_together(answer.trials);
  answer.outcome = sentinel_of(observations_of(answer.trials), answer.question);
  answer.digest = record_run(context, answer.trials, answer.question, answer.outcome);
}

}  // namespace

Answer test_claim(const Context& context, const Setup& setup, const RunOptions& options,
                  const ClaimTest& test) {
  ensure_selftest(context, setup);
  Answer answer;
  answer.question = question_for(setup, Question::kClaim, test.subject);
  answer.question.claim = test.name;
  answer.question.contrast = test.contrast;
  answer.question.expects = seen_from(test.expects);
  answer.question.failure_class = test.failure_class;
  for (const Subject& subject : {test.subject, test.contrast})
    answer.trials.push_back(run_trial(context, setup, without_drawing(options), subject,
                                      edits_of(context, setup, subject)));
  conclude(context, answer);
  return answer;
}

void ensure_selftest(const Context& context, const Setup& setup) {
  const fs::path mark =
      context.cache / "selftest" / (setup.manifest.slug.str() + "-" + selftest_key(context, setup));
  if (fs::exists(mark)) return;
  exec::progress("self-test of the judge (once per build)");
  RunOptions options;
  options.slug = setup.manifest.slug.str();
  // The plain computation is right by definition; an op proves itself along the way.
  const auto& subjects = setup.manifest.subjects;
  const bool has_op = std::find(subjects.begin(), subjects.end(), "op") != subjects.end();
  const Subject right = has_op ? SubjectKind::kOp : SubjectKind::kPlain;
  const Setup own = setup_of_own_subjects(setup);
  options.cases = selftest_cases(own, right);
  options.num_drawn = 0;
  for (const Observation& o : run_trial(context, own, options, right, {}).observations) {
    if (o.seen != Seen::kAbsent)
      refuse(fmt::format("the right {} is {} on {}: {}", right, seen_name(o.seen), o.case_name,
                         o.reason));
  }
  check_drawn(context, own, options, right);
  int mutants = 0;
  for (const Observation& o : run_trial(context, own, options, right, {}, "all").observations) {
    if (o.seen == Seen::kAbsent) refuse(fmt::format("{} passed case {}", o.subject, o.case_name));
    mutants += o.seen == Seen::kPresent;
  }
  if (mutants < 15) refuse(fmt::format("only {} mutants of the outputs were red", mutants));
  check_liar(context, setup, options);
  fs::create_directories(mark.parent_path());
  std::ofstream(mark) << mutants << " mutants of the outputs red\n";
}

Answer draw_alone(const Context& context, const Setup& setup, const RunOptions& options,
                  const Subject& subject) {
  Answer answer;
  ensure_selftest(context, setup);
  answer.question = question_for(setup, Question::kDrawn, subject);
  answer.question.seeds = {options.seed, std::max(options.last_seed, options.seed)};
  RunOptions drawing = with_drawing(setup, options, subject, answer.question);
  drawing.is_only_drawn = drawing.wants_regions = true;
  answer.trials.push_back(
      run_trial(context, setup, drawing, subject, edits_of(context, setup, subject)));
  conclude(context, answer);
  return answer;
}

std::string record_explained(const Context& context, const Answer& answer, const Json& explained) {
  const std::vector<Record> records = {make_record(
      "measurement", answer.trials.front().context,
      {{"measured", "explained"}, {"explained", explained}, {"verdict", answer.digest}})};
  ledger::Ledger::open(context.ledger)->append(records);
  return records.front().digest();
}

Answer reproduce(const Context& context, const Setup& setup, const RunOptions& options) {
  need_cases_for(setup.manifest, options);
  ensure_selftest(context, setup);
  Answer answer;
  Question question = Question::kReproduce;
  if (options.subject == SubjectKind::kOp) question = Question::kOp;
  if (options.subject == SubjectKind::kMitigated) question = Question::kMitigation;
  if (!options.given.empty()) question = Question::kDrawn;
  const std::vector<Edit> edits = edits_of(context, setup, options.subject);
  answer.question = question_for(setup, question, options.subject);
  const bool is_earned = question == Question::kOp || question == Question::kMitigation;
  // An upstream is explored where that is asked for.
  RunOptions all = is_earned || options.explores || options.num_drawn != RunOptions::kAsManifest
                       ? with_drawing(setup, options, options.subject, answer.question)
                       : without_drawing(options);
  if (is_earned) {
    answer.question.is_partial = !options.cases.empty();
    answer.question.has_regions = all.wants_regions = true;
  }
  if (question == Question::kMitigation)
    answer.trials.push_back(
        run_trial(context, setup, without_drawing(options), SubjectKind::kUpstream, {}));
  answer.trials.push_back(run_trial(context, setup, all, options.subject, edits));
  if (question == Question::kMitigation) {
    for (Trial& trial : red_elsewhere(context, setup, options, answer.trials, options.subject))
      answer.trials.push_back(std::move(trial));
    // The judge comes first: a program says nothing about a mitigation that is red there.
    const bool is_whole = options.subject.mode().empty() && options.cases.empty();
    if (is_whole && sentinel_of(observations_of(answer.trials), answer.question).sentinel)
      answer.question.program = run_program(context, setup);
  }
  if (question == Question::kOp) {
    // Mutants of the outputs are judged on small cases: what they show does not depend on the
    // shape, what they cost does.
    RunOptions few = without_drawing(options);
    few.cases = selftest_cases(setup, SubjectKind::kOp);
    few.repeats = 1;
    answer.trials.push_back(run_trial(context, setup, few, SubjectKind::kOp, {}, "all"));
  }
  conclude(context, answer);
  return answer;
}

std::optional<QuestionContext> memory_question(const Manifest& manifest, const QuestionContext& op,
                                               const std::vector<Observation>& seen) {
  if (op.question != Question::kOp) return std::nullopt;
  const auto peak_of = [](const Observation& o) {
    const bool is_counted = o.counts && o.subject == SubjectKind::kOp && o.outside.is_object();
    return is_counted ? o.outside.value("peak_bytes", 0.0) : 0.0;
  };
  for (const Observation& o : seen) {
    const auto bound = manifest.bounds.find(o.case_name);
    const double peak = peak_of(o);
    if (peak <= 0 || bound == manifest.bounds.end() || !bound->contains("peak_bytes_max")) continue;
    QuestionContext asked = op;
    asked.question = Question::kMemory;
    asked.bound_bytes = bound->at("peak_bytes_max").get<double>();
    asked.measured_bytes = peak;
    const Json growth = bound->value("growth_max", Json());
    if (growth.is_null()) return asked;
    asked.bound_growth = growth["times"].get<double>();
    for (const Observation& half : seen) {
      if (half.case_name == growth["over"].get<std::string>() && peak_of(half) > 0)
        asked.measured_growth = peak / peak_of(half);
    }
    return asked;
  }
  return std::nullopt;
}

std::optional<QuestionContext> regression_question(const Manifest& manifest,
                                                   const QuestionContext& validation,
                                                   const std::vector<Observation>& seen) {
  if (validation.subject != SubjectKind::kPatched) return std::nullopt;
  QuestionContext asked = validation;
  asked.question = Question::kRegression;
  for (const Observation& o : seen) {
    const auto bound = manifest.bounds.find(o.case_name);
    if (bound != manifest.bounds.end() && bound->contains("ratios_max"))
      asked.ratios_max[o.case_name] = bound->at("ratios_max");
  }
  if (asked.ratios_max.empty()) return std::nullopt;
  return asked;
}

std::optional<Answer> further_answer(const Context& context, const Answer& answer,
                                     const std::optional<QuestionContext>& asked) {
  if (!asked) return std::nullopt;
  Answer further{answer.trials, *asked, {}, ""};
  conclude(context, further);
  return further;
}

PackEdits pack_edits_at(const Context& context, const Setup& setup) {
  if (!setup.pin)
    throw Error(ErrorCode::kUsage,
                "an installed stack (--python) is judged as it is: it takes no edits");
  return checkouts_of(context).edits_at(context, setup.manifest, setup.upstream, *setup.pin);
}

Question validation_of(const Manifest& manifest) {
  return manifest.kind == "refactor" ? Question::kEquivalence : Question::kValidate;
}

Answer validate(const Context& context, const Setup& setup, const RunOptions& options,
                const std::vector<Edit>& edits, const std::vector<Edit>& mutants) {
  ensure_selftest(context, setup);
  Answer answer;
  answer.question = question_for(setup, validation_of(setup.manifest), SubjectKind::kPatched);
  RunOptions all = with_drawing(setup, options, SubjectKind::kPatched, answer.question);
  std::vector<Part> parts = {{SubjectKind::kUpstream, {}},
                             {SubjectKind::kPatched, edits, all.num_drawn}};
  for (const Edit& mutant : mutants) parts.push_back({subject_of(mutant), {mutant}});
  all.wants_regions = answer.question.has_regions = true;
  answer.question.is_partial = !options.cases.empty();
  answer.trials = run_parts(context, setup, all, parts);
  for (Trial& trial : red_elsewhere(context, setup, options, answer.trials, SubjectKind::kPatched))
    answer.trials.push_back(std::move(trial));
  conclude(context, answer);
  return answer;
}

}  // namespace patchbench
