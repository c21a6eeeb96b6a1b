#include <fmt/format.h>
#include <fmt/ostream.h>

#include <fstream>
#include <iostream>
#include <memory>

#include "cli/context.h"
#include "cli/verdicts.h"
#include "cli/window_run.h"
#include "core/error.h"
#include "git/series.h"
#include "report/junit.h"
#include "report/markdown.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// The options of all commands that run a subject.
struct Words {
  RunOptions run;
  std::string sandbox;
  std::vector<std::string> edits;
  std::string against, junit, markdown;
  bool all = false, plan = false, use_exit_code = false, commits = false, resume = false;
};

void add_shared(CLI::App& command, Words& words) {
  command.add_option("--of", words.run.upstream_name,
                     "which upstream, where the pack names several");
  command.add_option("--case", words.run.cases, "only this case (repeatable)");
  command.add_option("--device", words.run.device,
                     "cpu or cuda:N (default: a GPU if there is one)");
  command.add_option("--sandbox", words.sandbox,
                     "podman, docker, bwrap or process (default: the strongest usable)");
  command.add_option(
      "--python", words.run.python,
      "use the stack installed for this interpreter or venv; alone: judge its release");
  command.add_option("--seed", words.run.seed, "seed of the inputs")->capture_default_str();
  command.add_option("--repeat", words.run.repeats, "run N times; mixed results are unresolved")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

RunOptions options_of(const Words& words) {
  RunOptions options = words.run;
  if (!words.sandbox.empty()) options.sandbox = exec::sandbox_from(words.sandbox);
  return options;
}

/// The git-bisect status of an outcome.
int bisect_status(const Outcome& outcome) {
  if (outcome.sentinel == Sentinel::kBugReproduced) return 1;
  if (outcome.sentinel == Sentinel::kBugAbsent) return 0;
  return 125;
}

void write_reports(const Words& words, const Setup& setup, const Answer& answer) {
  std::vector<Observation> all;
  for (const Trial& trial : answer.trials)
    all.insert(all.end(), trial.observations.begin(), trial.observations.end());
  const auto write = [](const std::string& path, const std::string& text) {
    if (path.empty()) return;
    std::ofstream out(path);
    if (!(out << text).flush()) throw Error(ErrorCode::kUsage, path + ": cannot be written");
  };
  if (!words.junit.empty())
    write(words.junit, report::junit_of_run(setup.manifest.slug.str(), all, answer.question,
                                            answer.outcome, answer.digest));
  if (!words.markdown.empty()) {
    write(words.markdown, report::markdown_of_run(answer.trials.front().context, all,
                                                  answer.question, answer.outcome, answer.digest));
  }
}

void show_answer(Context& context, const Words& words, const Setup& setup, const Answer& answer) {
  if (context.json) {
    std::cout
        << trials_json(setup, answer.trials, answer.question, answer.outcome, answer.digest).dump(2)
        << "\n";
  } else {
    std::cout << render_trials(setup, answer.trials, answer.question, answer.outcome);
  }
  write_reports(words, setup, answer);
}

/// Prints what a run would fetch, take and need; starts nothing.
void show_plan(const Context& context, const RunOptions& options) {
  const Manifest manifest = context.manifest(options.slug);
  const UpstreamUse& use = manifest.upstreams.at(0);
  const Pin pin =
      context.pins().resolve(use.name, options.version.empty() ? use.red_pin : options.version);
  const fs::path file = context.cache / "files" / pin.sha256 / pin.filename;
  const bool has_file = pin.kind != PinKind::kFile || fs::exists(file);
  bool has_env = false;
  if (fs::exists(context.cache / "env")) {
    for (const auto& entry : fs::directory_iterator(context.cache / "env")) {
      has_env |= entry.is_directory() &&
                 entry.path().filename().string().starts_with(pin.environment + "-cp");
    }
  }
  const Json plan = {
      {"slug", options.slug},
      {"upstream", pin.to_json()},
      {"upstream_file", has_file ? "cached" : "to fetch (under 1 MiB)"},
      {"environment",
       pin.environment + (has_env ? ": cached" : ": to fetch (2.3 GiB; 4.5 GiB unpacked)")},
      {"gpu_memory", manifest.bounds.value("gpu_memory", "not needed")},
      {"time", manifest.bounds.value("time", "under a minute on 2 cores")}};
  if (context.json) {
    std::cout << plan.dump(2) << "\n";
    return;
  }
  for (const auto& [key, value] : plan.items()) {
    fmt::print(std::cout, "{:14} {}\n", key,
               value.is_string() ? value.get<std::string>() : value.value("version", ""));
  }
}

int reproduce_one(Context& context, const Words& words, const RunOptions& options) {
  try {
    const Setup setup = prepare(context, options);
    const Answer answer = reproduce(context, setup, options);
    show_answer(context, words, setup, answer);
    if (const auto memory = memory_answer(context, setup, answer); memory && !context.json) {
      std::cout << memory->outcome.text() << ": " << memory->outcome.why << "\n";
    }
    if (words.use_exit_code) return bisect_status(answer.outcome);
    return answer.outcome.sentinel ? 0 : 3;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kNotRunnable || words.use_exit_code) throw;
    const std::string what = e.what();
    const Outcome not_run{Sentinel::kNotRun,
                          what.find("upstream_unreachable") != std::string::npos
                              ? "upstream_unreachable"
                              : "not_runnable_here",
                          what, ""};
    if (context.json) {
      std::cout << Json{{"slug", options.slug}, {"sentinel", not_run.text()}, {"why", what}}.dump(2)
                << "\n";
    } else {
      std::cout << options.slug << ": " << not_run.text() << "\n";
    }
    std::cerr << "patchbench: " << what << "\n";
    return 4;
  }
}

void add_reproduce(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
  CLI::App* command =
      app.add_subcommand("reproduce", "run the reproducer on a real release: is it hit?");
  command->add_option("slug", words->run.slug, "the pack (patchbench list)");
  command->add_option("--upstream", words->run.version,
                      "0.8.5 | git:<commit> | path:DIR (default: the pack's red pin)");
  command
      ->add_option("--subject", words->run.subject,
                   "upstream | patched | mitigated | op | model | mutant:<name>")
      ->capture_default_str();
  command->add_flag("--all", words->all, "every pack");
  command->add_flag("--plan", words->plan, "say what would be fetched and used, and stop");
  command->add_flag("--exit-code", words->use_exit_code,
                    "git-bisect codes: 0 absent, 1 present, 125 cannot be judged, 200 our failure");
  add_shared(*command, *words);
  command->footer(
      "Examples:\n  patchbench reproduce liger_flce_none_bwd\n"
      "  patchbench reproduce liger_flce_none_bwd --upstream 0.8.5\n"
      "  git bisect run /abs/patchbench reproduce liger_flce_none_bwd --upstream path:. "
      "--exit-code");
  command->callback([words, &context] {
    const RunOptions options = options_of(*words);
    if (words->all == !options.slug.empty())
      throw Error(ErrorCode::kUsage, "reproduce: name one pack, or --all");
    std::vector<std::string> slugs =
        words->all ? context.slugs() : std::vector<std::string>{options.slug};
    for (const std::string& slug : slugs) {
      RunOptions one = options;
      one.slug = slug;
      if (words->plan) {
        show_plan(context, one);
        continue;
      }
      const int status = reproduce_one(context, *words, one);
      // With --all a pack that cannot run here is an answer in the list, not the end of it.
      if (!words->all || status == 3) context.exit_code = std::max(context.exit_code, status);
    }
  });
}

/// The edits a user names: .edit files or folders of them, unified diffs, git:<commit>, path:DIR.
std::vector<Edit> user_edits(const Context& context, const Setup& setup,
                             const std::vector<std::string>& names) {
  git::Store store(context.cache, context.root);
  std::vector<Edit> edits;
  for (const std::string& name : names) {
    if (name.starts_with("path:")) {
      const Pin changed = context.pins().resolve(setup.upstream.name, name);
      const git::Checkout tree = store.materialize(changed, {});
      edits.push_back(git::edit_from_folder(tree.package, *setup.pin, store, "candidate.edit"));
    } else if (name.starts_with("git:")) {
      const Pin changed = context.pins().resolve(setup.upstream.name, name);
      edits.push_back(git::edit_from_folder(store.materialize(changed, {}).package, *setup.pin,
                                            store, "candidate.edit"));
    } else if (fs::is_directory(name)) {
      for (Edit& edit : git::load_series(name).edits) edits.push_back(std::move(edit));
    } else if (name.ends_with(".edit")) {
      edits.push_back(parse_edit(context.read_file(name), fs::path(name).filename().string()));
    } else {
      edits.push_back(git::edit_from_diff(context.read_file(name), *setup.pin, store,
                                          fs::path(name).filename().string()));
    }
  }
  return edits;
}

void add_validate(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
  CLI::App* command = app.add_subcommand(
      "validate", "unpatched red, patched green, every mutant red: does the fix hold?");
  command->add_option("slug", words->run.slug, "the pack")->required();
  command->add_option(
      "--edit", words->edits,
      "your candidate instead of ours: .edit, unified diff, DIR of .edit, git:<commit>, path:DIR");
  command->add_option("--upstream", words->run.version,
                      "the version to validate on (default: the pack's red pin)");
  command->add_option("--against", words->against, "a second version the fix must hold on as well");
  command->add_option("--junit", words->junit, "write JUnit XML here");
  command->add_option("--markdown", words->markdown, "write the evidence page here");
  add_shared(*command, *words);
  command->footer(
      "Exit: 0 only on FIX_VALIDATED, 1 on FIX_REJECTED, 3 where neither could be "
      "shown.\nExamples:\n"
      "  patchbench validate liger_flce_none_bwd\n"
      "  patchbench validate liger_flce_none_bwd --edit my.diff --markdown evidence.md");
  command->callback([words, &context] {
    RunOptions options = options_of(*words);
    options.needs_pin = true;
    std::vector<std::string> versions = {options.version};
    if (!words->against.empty()) versions.push_back(words->against);
    for (const std::string& version : versions) {
      options.version = version;
      const Setup setup = prepare(context, options);
      PackEdits edits = pack_edits_at(context, setup);
      if (!words->edits.empty()) edits.edits = user_edits(context, setup, words->edits);
      const Answer answer = validate(context, setup, options, edits.edits, edits.mutants);
      show_answer(context, *words, setup, answer);
      const int status = answer.outcome.sentinel == Sentinel::kFixValidated  ? 0
                         : answer.outcome.sentinel == Sentinel::kFixRejected ? 1
                                                                             : 3;
      context.exit_code = std::max(context.exit_code, status);
    }
  });
}

void add_window(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
  CLI::App* command = app.add_subcommand(
      "window", "measure every locked release; bisect commits inside measured edges");
  command->add_option("slug", words->run.slug, "the pack")->required();
  command->add_flag("--commits", words->commits,
                    "bisect the commits inside each measured edge (needs the git upstream)");
  command->add_flag(
      "--resume", words->resume,
      "take releases already judged with this manifest, seed and device from the ledger");
  add_shared(*command, *words);
  command->callback([words, &context] {
    words->run.needs_pin = true;
    context.exit_code = run_window(context, options_of(*words),
                                   {.bisect_commits = words->commits, .resume = words->resume});
  });
}

void add_selftest(CLI::App& app, Context& context) {
  auto words = std::make_shared<Words>();
  CLI::App* command = app.add_subcommand(
      "selftest", "try to fool the judge on this machine; sentinels need it green");
  command->add_option("slug", words->run.slug, "one pack (default: all that are built)");
  command->add_option("--device", words->run.device, "cpu or cuda:N");
  command->add_option("--sandbox", words->sandbox, "podman, docker, bwrap or process");
  command->callback([words, &context] {
    RunOptions options = options_of(*words);
    std::vector<std::string> slugs =
        options.slug.empty() ? context.slugs() : std::vector<std::string>{options.slug};
    int ran = 0;
    for (const std::string& slug : slugs) {
      options.slug = slug;
      if (words->run.slug.empty() && context.manifest(slug).waived(Column::kRepro)) continue;
      const Setup setup = prepare(context, options);
      fs::remove_all(context.cache / "selftest");
      ensure_selftest(context, setup);
      fmt::print(std::cout, "{}: self-test holds ({}, {})\n", slug, setup.device,
                 exec::sandbox_name(setup.sandbox));
      ++ran;
    }
    if (ran == 0) throw Error(ErrorCode::kNotRunnable, "selftest: no reproducer is built here");
  });
}

}  // namespace

void add_run_commands(CLI::App& app, Context& context) {
  add_reproduce(app, context);
  add_validate(app, context);
  add_window(app, context);
  add_selftest(app, context);
}

}  // namespace patchbench::cli
