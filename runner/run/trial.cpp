#include "run/trial.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <set>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "exec/image.h"
#include "exec/probe.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "exec/runc.h"
#include "ledger/ledger.h"
#include "run/mitigation_program.h"
#include "run/names.h"
#include "run/programs.h"
#include "run/subject_spec.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

constexpr int kRecordsFd = 3;

/// The interpreter of sandboxes that use the host's /usr, and its wheel tag.
std::pair<std::string, std::string> host_python() {
  const std::string python = "/usr/bin/python3";
  const exec::Exit asked =
      exec::run({.argv = {python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"}});
  if (!asked.ok()) {
    throw Error(ErrorCode::kNotRunnable,
                python + ": not there or broken; install python3 (env/bootstrap.sh does)");
  }
  return {python, asked.out.substr(0, asked.out.find('\n'))};
}

Json cases_document(const Setup& setup, const RunOptions& options, const Subject& subject) {
  const std::vector<std::string>& chosen = options.cases;
  const std::string kind = setup.device.substr(0, setup.device.find(':'));
  Json cases = Json::array();
  for (const Case& c : setup.manifest.cases) {
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), c.name) == chosen.end())
      continue;
    if (!c.is_for(subject)) continue;
    // What is seen there is part of no answer about a mutant or a mitigation; a refactor's mutant
    // is caught by what it computes.
    const bool is_idle = c.role == CaseRole::kSurvey ||
                         (c.role == CaseRole::kCode && setup.manifest.kind == "refactor");
    const bool is_edit_mutant = subject.is_lone_edit();
    const bool is_tried = is_edit_mutant || options.subject == SubjectKind::kMitigated;
    if (chosen.empty() && is_idle && is_tried) continue;
    // These look at a region of the inputs; an edit that is wrong on its own is red without them.
    const bool is_of_regions = c.axes.contains("scaled_from") || c.axes.contains("backwards") ||
                               c.axes.contains("grad_layout");
    if (chosen.empty() && is_of_regions && is_edit_mutant) continue;
    if (!subject.is_in_process() && !c.runs_on(setup.upstream)) continue;
    // A case that only a GPU can judge is too large for the interpreter; it runs there when asked
    // for by name.
    if (chosen.empty() && !c.counts_on(kind)) continue;
    cases.push_back({{"name", c.name},
                     {"role", role_name(c.role)},
                     {"axes", c.axes},
                     {"judged_on", c.judged_on}});
    if (c.is_isolated) cases.back()["isolated"] = true;
  }
  if (options.is_only_drawn || !options.given.empty()) cases.clear();
  Json waived = Json::array(), spaces = Json::array();
  if (options.num_drawn > 0) {
    for (const SpaceRow* row : setup.manifest.explore.of(subject, setup.upstream, kind)) {
      spaces.push_back(row->body);
      spaces.back()["count"] = row->count;
    }
  }
  for (const RegionWaiver& waiver : setup.manifest.waived_regions) {
    if (waiver.is_for(subject, kind)) waived.push_back(waiver.region);
  }
  return {{"slug", setup.manifest.slug.str()},
          {"classes", setup.manifest.classes_order},
          {"cases", cases},
          {"spaces", spaces},
          {"given", options.given},
          {"conditions", options.conditions},
          {"waived_regions", waived}};
}

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

/// The pack's upstreams that are not under test: at the versions named, else at their red pins or,
/// where the environment has one or either stands alone, not at all.
std::vector<Pin> pins_beside(const Context& context, const Setup& setup,
                             const std::vector<std::string>& named) {
  std::map<std::string, std::string> versions;
  std::vector<std::string> names;
  for (const UpstreamUse& use : setup.manifest.upstreams) {
    if (use.name == setup.upstream.name) continue;
    names.push_back(use.name);
    if (!use.from_environment && !use.stands_alone && !setup.upstream.stands_alone)
      versions[use.name] = use.red_pin;
  }
  for (const std::string& word : named) {
    const std::string name = word.substr(0, word.find('='));
    if (std::find(names.begin(), names.end(), name) == names.end() || name == word) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: a companion is another upstream of the pack than the one under "
                              "test{}",
                              name, did_you_mean(name, names)));
    }
    versions[name] = word.substr(name.size() + 1);
  }
  std::vector<Pin> pins;
  for (const auto& [name, version] : versions)
    pins.push_back(context.pins().resolve(name, version));
  return pins;
}

Json pin_json(const Setup& setup) {
  if (setup.pin) {
    Json pin = setup.pin->to_json();
    if (!setup.beside.empty()) pin["beside"] = setup.beside_json();
    return pin;
  }
  return {{"upstream", setup.upstream.name}, {"version", "host"}, {"kind", "host"}};
}

RunContext make_run_context(const Setup& setup, const Subject& subject,
                            const std::vector<Edit>& edits) {
  RunContext run;
  run.run_id = setup.run_id;
  run.started = setup.started;
  run.tool = std::string("patchbench ") + PATCHBENCH_VERSION;
  run.slug = setup.manifest.slug.str();
  run.manifest_sha256 = setup.manifest.sha256;
  run.pin = subject.is_in_process() ? Json::object() : pin_json(setup);
  for (const Edit& edit : edits) run.edits.push_back(sha256_hex(format_edit(edit)));
  run.files = Json::object();
  run.environment = setup.environment.address;
  const bool isolated = setup.sandbox != exec::SandboxKind::kProcess;
  run.sandbox = subject.is_in_process()
                    ? Json{{"kind", "in_process"}, {"isolated", true}}
                    : Json{{"kind", exec::sandbox_name(setup.sandbox)}, {"isolated", isolated}};
  if (!setup.image.empty() && !subject.is_in_process()) run.sandbox["image"] = setup.image;
  run.machine = setup.machine;
  return run;
}

/// Whether the judge makes region mutants of this subject's outputs. A subject that is wrong on
/// purpose has none; a release is asked by itself where it is one with the fix. The self-test of a
/// pack without an op asks the plain computation.
bool can_have_regions(const RunOptions& options, const Subject& subject,
                      const std::string& corrupt) {
  return subject == SubjectKind::kPatched || subject == SubjectKind::kMitigated ||
         (subject == SubjectKind::kUpstream && options.is_only_drawn) ||
         ((subject == SubjectKind::kOp || subject == SubjectKind::kPlain) && corrupt.empty());
}

/// The last non-empty line of a text, for one-line messages.
std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of(" \n\t");
  if (end == std::string::npos) return "no message";
  const auto start = text.find_last_of('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1,
                     end - (start == std::string::npos ? 0 : start + 1) + 1);
}

/// The strongest sandbox; bubblewrap with the same interpreter where that would first build its
/// image.
exec::SandboxKind ready_sandbox(const Context& context) {
  using exec::SandboxKind;
  const SandboxKind kind = exec::choose_sandbox(std::nullopt, context.cache, context.root);
  const bool has_image = kind == SandboxKind::kPodman || kind == SandboxKind::kDocker;
  if (!has_image || exec::find_base_image(kind, "bookworm", context.cache, context.root) ||
      host_python().second != exec::kImageTag ||
      !exec::probe_sandbox(SandboxKind::kBubblewrap, context.cache, context.root).usable)
    return kind;
  exec::progress(
      fmt::format("runs in bubblewrap: {} has no base image here yet, which "
                  "`patchbench env images --ensure` builds",
                  exec::sandbox_name(kind)));
  return SandboxKind::kBubblewrap;
}

/// Sandbox and locked wheels.
void prepare_locked(const Context& context, const RunOptions& options, Setup& setup) {
  setup.sandbox = options.sandbox
                      ? exec::choose_sandbox(options.sandbox, context.cache, context.root)
                      : ready_sandbox(context);
  std::string tag;
  if (setup.sandbox == exec::SandboxKind::kPodman || setup.sandbox == exec::SandboxKind::kDocker) {
    const exec::BaseImage image =
        exec::ensure_base_image(setup.sandbox, "bookworm", context.cache, context.root);
    setup.image = image.id;
    setup.python = image.python;
    tag = image.tag;
  } else if (setup.sandbox == exec::SandboxKind::kRunc) {
    const exec::Bundle bundle = exec::find_bundle(context.cache).value();
    setup.image = bundle.tree_digest;
    setup.python = bundle.python;
    tag = bundle.tag;
  } else {
    std::tie(setup.python, tag) = host_python();
  }
  std::vector<std::string> locks = {setup.pin->environment};
  for (const Pin& pin : setup.beside) {
    if (std::find(locks.begin(), locks.end(), pin.environment) == locks.end())
      locks.push_back(pin.environment);
  }
  setup.environment = exec::locked_environment(locks, tag, context.cache, context.root);
}

/// Chooses the bundle of a staged folder for an installed stack, if it is there or asked for and
/// the interpreter runs in it.
bool use_bundle(const Context& context, const RunOptions& options, Setup& setup) {
  const bool is_asked = options.sandbox == exec::SandboxKind::kRunc;
  const std::optional<exec::Bundle> bundle = exec::find_bundle(context.cache);
  if (!is_asked && (options.sandbox || !bundle)) return false;
  const exec::SandboxProbe probe =
      bundle ? exec::probe_bundle(setup.python, context.cache)
             : exec::probe_sandbox(exec::SandboxKind::kRunc, context.cache, context.root);
  if (!probe.usable && is_asked)
    throw Error(ErrorCode::kNotRunnable, "--sandbox runc: " + probe.detail);
  if (!probe.usable) {
    exec::progress("runc cannot be used here (" + probe.detail + "); falling back to bwrap");
    return false;
  }
  setup.sandbox = exec::SandboxKind::kRunc;
  setup.image = bundle->tree_digest;
  return true;
}

/// The upstream's files as the installed stack would import them. Throws Error(kNotRunnable) where
/// it has none of them.
Json files_of_stack(const Setup& setup) {
  const Json files = exec::host_file_digests(setup.environment, setup.upstream.files);
  if (!files.empty() && std::all_of(files.begin(), files.end(),
                                    [](const Json& digest) { return digest == "absent"; }))
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("--python {}: {} is not installed there (no {}); install it, or name a "
                            "release after the pack",
                            setup.python, setup.upstream.name, setup.upstream.files.front()));
  return files;
}

/// Sandbox and an installed stack (--python).
void prepare_host(const Context& context, const RunOptions& options, Setup& setup) {
  setup.environment = exec::host_environment(options.python);
  setup.python = setup.environment.python;
  if (!setup.pin && !options.subject.is_in_process()) setup.files = files_of_stack(setup);
  const auto kind = options.sandbox.value_or(exec::SandboxKind::kBubblewrap);
  if (use_bundle(context, options, setup)) return;
  if (kind == exec::SandboxKind::kPodman || kind == exec::SandboxKind::kDocker) {
    throw Error(
        ErrorCode::kUsage,
        "--python needs --sandbox bwrap or process: an image has no part of the host's stack");
  }
  const exec::SandboxProbe probe = exec::probe_sandbox(kind, context.cache, context.root);
  if (!probe.usable && options.sandbox)
    throw Error(ErrorCode::kNotRunnable, "--sandbox: " + probe.detail);
  if (!probe.usable)
    exec::progress("bwrap cannot be used here (" + probe.detail +
                   "); falling back to a plain process, unisolated");
  setup.sandbox = probe.usable ? kind : exec::SandboxKind::kProcess;
}

}  // namespace

Json Setup::beside_json() const {
  Json versions;
  for (const Pin& other : beside) versions[other.upstream] = other.version;
  return versions;
}

namespace {

/// The runs of this machine.
class LocalRunner : public SubjectRunner {
 public:
  Setup prepare(const Context& context, const RunOptions& options) override;
  Trial run(const Context& context, const Setup& setup, const RunOptions& options,
            const Subject& subject, const std::vector<Edit>& edits,
            const std::string& corrupt) override;
  Json run_program(const Context& context, const Setup& setup) override {
    return run_mitigation_program(context, setup);
  }
};

Setup LocalRunner::prepare(const Context& context, const RunOptions& options) {
  Setup setup;
  setup.manifest = context.manifest(options.slug);
  const std::string slug = setup.manifest.slug.str();
  if (const auto waived = setup.manifest.waived(Column::kRepro)) {
    throw Error(ErrorCode::kNotRunnable, fmt::format("{}: no reproducer yet ({})", slug, *waived));
  }
  const Program judge = judge_program(context, slug);
  if (judge.file.empty()) {
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("the judge of {} is not there; in a clone run ./patchbench (preset "
                            "host has no torch), else install the wheel patchbench-judge",
                            slug));
  }
  check_subject(setup.manifest, options.subject);
  check_cases(setup.manifest, options.cases);
  setup.upstream = upstream_use(setup.manifest, options.upstream_name, options.subject);
  setup.device = chosen_device(options.device);
  setup.machine = exec::describe_machine(setup.device);
  setup.started = context.now();
  if (options.python.empty() || options.needs_pin || !options.version.empty()) {
    setup.pin = context.pins().resolve(
        setup.upstream.name, options.version.empty() ? setup.upstream.red_pin : options.version);
  }
  if (setup.pin) setup.beside = pins_beside(context, setup, options.beside);
  if (options.python.empty()) {
    prepare_locked(context, options, setup);
  } else {
    prepare_host(context, options, setup);
  }
  if (judge.is_of_wheel) setup.libtorch = libtorch_for(context, setup.environment);
  setup.judge = judge_device(judge, setup.libtorch, setup.device);
  if (setup.judge.device != setup.device) setup.machine["oracle"] = setup.judge.device;
  setup.run_id = sha256_hex(fmt::format("{} {} {} {}", slug, setup.started, ::getpid(),
                                        std::random_device{}()))
                     .substr(0, 16);
  setup.folder = context.cache / "runs" / setup.run_id;
  return setup;
}

/// The words for what is drawn. Ten times what the manifest says that its counts take is the most,
/// for fewer cases, too: what is red is then made as small as it goes.
void add_drawing(const Setup& setup, const RunOptions& options, const Subject& subject,
                 std::vector<std::string>& argv) {
  constexpr double kPatience = 10;
  const uint64_t last = std::max(options.last_seed, options.seed);
  const int by_default = num_drawn_of(setup, subject);
  const double share = static_cast<double>(options.num_drawn) *
                       static_cast<double>(last - options.seed + 1) / std::max(by_default, 1);
  const double seconds = kPatience * setup.manifest.explore.seconds * std::max(share, 1.0);
  argv.insert(argv.end(), {"--draw", std::to_string(options.num_drawn), "--seeds",
                           fmt::format("{}-{}", options.seed, last), "--draw-seconds",
                           std::to_string(static_cast<int>(std::ceil(seconds)))});
}

/// What the reproducer is told, but for how its subject is started.
std::vector<std::string> words_of(const Context& context, const Setup& setup,
                                  const RunOptions& options, const Subject& subject,
                                  const std::string& corrupt, const fs::path& folder) {
  std::vector<std::string> argv = judge_program(context, setup.manifest.slug.str()).argv;
  argv.insert(argv.end(),
              {"--cases", (folder / "cases.json").string(), "--subject", subject.text(), "--device",
               setup.device, "--judge-device", setup.judge.device, "--seed",
               std::to_string(options.seed), "--work", (folder / "work").string(), "--repeat",
               std::to_string(options.repeats), "--records-fd", std::to_string(kRecordsFd)});
  if (!corrupt.empty()) argv.insert(argv.end(), {"--corrupt", corrupt});
  if (options.wants_regions && can_have_regions(options, subject, corrupt))
    argv.emplace_back("--regions");
  if (options.num_drawn > 0) add_drawing(setup, options, subject, argv);
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
                                           seen_name(kept.seen)));
}

Trial LocalRunner::run(const Context& context, const Setup& setup, const RunOptions& options,
                       const Subject& subject, const std::vector<Edit>& edits,
                       const std::string& corrupt) {
  const auto started = std::chrono::steady_clock::now();
  const std::string slug = setup.manifest.slug.str();
  Trial trial;
  trial.context = make_run_context(setup, subject, edits);
  std::string file_name = subject.text() + corrupt;
  std::replace(file_name.begin(), file_name.end(), ':', '-');
  const fs::path folder = setup.folder / file_name;
  fs::create_directories(folder / "work");

  exec::Command command;
  command.argv = words_of(context, setup, options, subject, corrupt, folder);
  write_file(folder / "cases.json", cases_document(setup, options, subject).dump());
  if (!subject.is_in_process()) {
    const std::vector<git::Checkout> checkouts =
        check_out(context, setup, subject, edits, trial.context);
    if (!options.compile_cache.empty())
      trial.context.sandbox["compile_cache"] =
          give_compiled(options.compile_cache, folder / "work/home/.tilelang");
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
  exec::progress_on_terminal(fmt::format("{}: runs on {}", subject, setup.device));
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

}  // namespace

int num_drawn_of(const Setup& setup, const Subject& subject) {
  const std::string kind = setup.device.substr(0, setup.device.find(':'));
  int num = 0;
  for (const SpaceRow* row : setup.manifest.explore.of(subject, setup.upstream, kind))
    num += row->count;
  return num;
}

Setup prepare(const Context& context, const RunOptions& options) {
  need_mode(context.manifest(options.slug), options.subject);
  return runner_of(context).prepare(context, options);
}

Trial run_trial(const Context& context, const Setup& setup, const RunOptions& options,
                const Subject& subject, const std::vector<Edit>& edits,
                const std::string& corrupt) {
  return runner_of(context).run(context, setup, options, subject, edits, corrupt);
}

Json run_program(const Context& context, const Setup& setup) {
  return runner_of(context).run_program(context, setup);
}

std::vector<Observation> observations_of(const std::vector<Trial>& trials) {
  std::vector<Observation> all;
  for (const Trial& trial : trials)
    all.insert(all.end(), trial.observations.begin(), trial.observations.end());
  return all;
}

std::string record_run(const Context& context, const std::vector<Trial>& trials,
                       const QuestionContext& question, const Outcome& outcome) {
  std::vector<Record> records;
  std::vector<std::string> digests;
  for (const Trial& trial : trials) {
    for (const Observation& observation : trial.observations) {
      records.push_back(make_observation_record(trial.context, observation));
      digests.push_back(records.back().digest());
    }
  }
  records.push_back(make_verdict_record(trials.front().context, question, outcome, digests));
  ledger::Ledger::open(context.ledger)->append(records);
  return records.back().digest();
}

QuestionContext question_for(const Setup& setup, Question question, const Subject& subject) {
  QuestionContext asked;
  asked.question = question;
  asked.subject = subject;
  asked.is_red_pin = setup.pin && setup.pin->version == setup.upstream.red_pin &&
                     std::all_of(setup.beside.begin(), setup.beside.end(), [&](const Pin& pin) {
                       return pin.version == upstream_use(setup.manifest, pin.upstream).red_pin;
                     });
  asked.classes = setup.manifest.classes_order;
  return asked;
}

}  // namespace patchbench
