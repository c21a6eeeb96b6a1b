#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/file_text.h"
#include "exec/environment.h"
#include "exec/process.h"
#include "job/policy.h"
#include "job/policy_print.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

/// The words of `job env check`.
struct CheckOptions {
  int pid = 0;
  std::string python;
};

struct PrintOptions {
  std::string format = "sh", folder;
};

std::map<std::string, std::string> split_environment(const std::string& block, char end) {
  std::map<std::string, std::string> out;
  for (std::size_t at = 0; at < block.size();) {
    const std::size_t stop = std::min(block.find(end, at), block.size());
    const std::string entry = block.substr(at, stop - at);
    const std::size_t sign = entry.find('=');
    if (sign != std::string::npos) out[entry.substr(0, sign)] = entry.substr(sign + 1);
    at = stop + 1;
  }
  return out;
}

/// What a process was started with: what it changed since in its own memory is not to be seen.
std::optional<std::map<std::string, std::string>> environment_of(int pid) {
  const fs::path folder = fmt::format("/proc/{}", pid);
  if (!fs::exists(folder))
    throw Error(ErrorCode::kUsage, fmt::format("--pid {}: no such process here", pid));
  const std::optional<std::string> block = file_text(folder / "environ");
  if (!block) return std::nullopt;
  return split_environment(*block, '\0');
}

/// The config lines and packages of an interpreter, in the caller's own environment.
void ask_python(const Context& context, const job::Policy& policy, const std::string& python,
                job::Facts& facts) {
  const exec::Environment stack = exec::host_environment(python);
  facts.packages.emplace();
  for (const auto& [name, version] : stack.packages.items())
    (*facts.packages)[name] = version.get<std::string>();
  if (!facts.packages->contains("torch"))
    throw Error(ErrorCode::kUsage, python + ": has no torch; name the one your job runs on");
  std::vector<std::string> argv = {stack.python, "-I",
                                   (context.root / "env/torch_facts.py").string()};
  for (const job::Rule& rule : policy.rules) {
    if (rule.kind == job::RuleKind::kTorchConfig) argv.push_back(rule.target);
  }
  const exec::Exit exit = exec::run({.argv = argv, .timeout = std::chrono::minutes(5)});
  const Json said = Json::parse(exit.out, nullptr, false);
  if (exit.ok() && said.is_object()) {
    facts.config = said;
    return;
  }
  const std::size_t end = exit.err.find_last_not_of('\n');
  const std::size_t begin = exit.err.rfind('\n', end) + 1;
  throw Error(
      ErrorCode::kUnresolved,
      stack.python + ": its torch cannot be asked: " +
          shown(end == std::string::npos ? exit.error : exit.err.substr(begin, end - begin + 1)));
}

job::Policy read_policy(const Context& context) {
  return job::Policy::parse(read_file(context.root / "env/policy.json"), "env/policy.json",
                            read_file(context.root / "env/policy.schema.json"));
}

std::set<std::string> as_set(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

Json finding_json(const job::Finding& finding) {
  return {{"rule", finding.rule->name},
          {"target", finding.rule->target},
          {"state", job::state_name(finding.state)},
          {"wanted", finding.rule->wanted()},
          {"has", finding.has}};
}

void show_findings(Context& context, const std::vector<job::Finding>& found) {
  int bad = 0, unknown = 0;
  Json list = Json::array();
  report::Table table({"rule", "state", "wanted", "has"});
  for (const job::Finding& finding : found) {
    const bool is_bad =
        finding.state == job::State::kMissing || finding.state == job::State::kDiffers;
    bad += is_bad ? 1 : 0;
    unknown += finding.state == job::State::kUnknown ? 1 : 0;
    list.push_back(finding_json(finding));
    table.add({finding.rule->name, job::state_name(finding.state), finding.rule->wanted(),
               shown(finding.has)});
    table.color(1, is_bad                                  ? report::Color::kRed
                   : finding.state == job::State::kUnknown ? report::Color::kYellow
                                                           : report::Color::kGreen);
  }
  context.exit_code = bad == 0 ? kExitYes : kExitNo;
  if (context.json) {
    print_json(context, {{"findings", list}, {"not_ok", bad}, {"unknown", unknown}});
    return;
  }
  context.out() << table.render(table_style(context));
  context.out() << fmt::format("\n{} rules, {} missing or different, {} unknown here{}\n",
                               found.size(), bad, unknown,
                               bad == 0 ? "" : "; see patchbench job env explain RULE");
}

using Choices = std::set<std::string>;

void check(Context& context, const CheckOptions& options, const Choices& choices) {
  const job::Policy policy = read_policy(context);
  policy.check_choices(choices);
  job::Facts facts;
  facts.environment = environment_of(options.pid == 0 ? static_cast<int>(::getpid()) : options.pid);
  if (!options.python.empty()) ask_python(context, policy, options.python, facts);
  const std::vector<exec::Gpu> gpus = exec::find_gpus();
  if (!gpus.empty() && !gpus.front().driver.empty()) facts.driver = gpus.front().driver;
  show_findings(context, job::check(policy, facts, choices));
}

void print(const Context& context, const PrintOptions& options, const Choices& choices) {
  static const std::map<std::string, job::Format> formats = {{"sh", job::Format::kSh},
                                                             {"docker", job::Format::kDocker},
                                                             {"slurm", job::Format::kSlurm},
                                                             {"json", job::Format::kJson},
                                                             {"python", job::Format::kPython}};
  const std::string format = context.json ? "json" : options.format;
  const std::string folder = options.folder.empty()
                                 ? (context.cache.parent_path() / "torch-compile").string()
                                 : options.folder;
  context.out() << job::print(read_policy(context), formats.at(format), choices, folder);
}

void explain(const Context& context, const std::string& name) {
  const job::Policy policy = read_policy(context);
  const job::Rule& rule = policy.rule(name);
  std::vector<std::pair<std::string, std::string>> rows = {{"target", rule.target},
                                                           {"wanted", rule.wanted()}};
  const auto add = [&rows](const std::string& title, const std::string& text) {
    if (!text.empty()) rows.emplace_back(title, text);
  };
  add("was", rule.was);
  add("variable", rule.variable.empty() ? "" : rule.variable + "=" + rule.variable_value);
  add("when", rule.when_variable.empty() ? "" : rule.when_variable + " is set");
  add("when", rule.when_choice.empty() ? "" : "--with " + rule.when_choice);
  add("why", rule.why);
  add("cost", rule.cost);
  add("dropped", rule.dropped);
  add("since", "torch " + rule.since);
  add("source", rule.source);
  if (context.json) {
    Json out = {{"name", rule.name}};
    for (const auto& [title, text] : rows) out[title] = text;
    print_json(context, out);
    return;
  }
  report::Table table({"rule", rule.name});
  for (const auto& [title, text] : rows) table.add({title, text});
  context.out() << table.render(table_style(context));
}

[[noreturn]] void lint(const Context& context, const std::vector<std::string>& paths) {
  std::vector<std::string> argv = {"python3", (context.root / "env/lint.py").string()};
  if (context.json) argv.push_back("--json");
  argv.push_back("--");
  argv.insert(argv.end(), paths.begin(), paths.end());
  std::vector<char*> raw;
  for (std::string& word : argv) raw.push_back(word.data());
  raw.push_back(nullptr);
  ::execvp(raw[0], raw.data());
  throw Error(ErrorCode::kNotRunnable, std::string("python3: ") + std::strerror(errno));
}

}  // namespace

void add_job_env_command(CLI::App& job, Context& context) {
  CLI::App* env = job.add_subcommand("env", "settings that a training job should have");
  env->require_subcommand(1);
  auto choices = std::make_shared<std::vector<std::string>>();
  env->add_option("--with", *choices,
                  "of print and check: rules that wait for a choice, with commas: "
                  "no_autotune_memory")
      ->delimiter(',')
      ->allow_extra_args(false);
  CLI::App* show = env->add_subcommand("print", "the policy as lines for a job's environment");
  auto print_options = std::make_shared<PrintOptions>();
  show->add_option("--format", print_options->format, "sh, docker, slurm, json or python")
      ->check(CLI::IsMember({"sh", "docker", "slurm", "json", "python"}))
      ->capture_default_str();
  show->add_option("--cache", print_options->folder,
                   "where the compile caches go (default: $XDG_CACHE_HOME/torch-compile)");
  show->footer(
      "  eval \"$(patchbench job env print)\"                        # a shell\n"
      "  patchbench job env print --format docker > job.env         # docker run --env-file "
      "job.env\n"
      "  patchbench job env print --format slurm > task_prolog.sh   # TaskProlog=, or srun "
      "--task-prolog\n"
      "  patchbench job env print --format python                   # the first lines of a script");
  show->callback(
      [&context, print_options, choices] { print(context, *print_options, as_set(*choices)); });

  CLI::App* look =
      env->add_subcommand("check", "the policy, next to what a process or an environment has");
  auto options = std::make_shared<CheckOptions>();
  look->add_option("--pid", options->pid, "a running process (default: this environment)")
      ->check(CLI::PositiveNumber);
  look->add_option("--python", options->python, "ask the torch of this environment too");
  look->footer(
      "A process is known by the environment it was started with; what its code sets later is\n"
      "unknown here. Exit: 0 nothing is missing or different, 1 something is.");
  look->callback([&context, options, choices] { check(context, *options, as_set(*choices)); });

  CLI::App* why = env->add_subcommand("explain", "one rule: what, why, since when, read where");
  auto name = std::make_shared<std::string>();
  why->add_option("rule", *name, "a name that job env check shows")->required();
  why->callback([&context, name] { explain(context, *name); });

  CLI::App* code = env->add_subcommand("lint", "the policy's code rules on your own Python");
  auto paths = std::make_shared<std::vector<std::string>>();
  code->add_option("path", *paths, "files or folders")->required();
  code->footer(
      "A line that ends in `# patchbench: allow RULE` is left alone.\n"
      "Exit: 0 nothing found, 1 findings.");
  code->callback([&context, paths] { lint(context, *paths); });
}

}  // namespace patchbench::cli
