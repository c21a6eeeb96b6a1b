#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <set>

#include "cli/commands.h"
#include "core/error.h"
#include "core/file_text.h"
#include "core/scan_baseline.h"
#include "core/scan_conditions.h"
#include "core/scan_policy.h"
#include "exec/process.h"
#include "git/ignored_paths.h"
#include "report/sarif.h"
#include "report/scan_text.h"
#include "report/scan_vex.h"
#include "report/table.h"
#include "status/code_sites.h"
#include "status/model_families.h"
#include "status/project_folder.h"
#include "status/run_answers.h"
#include "status/scan.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIgnoreFile = ".patchbench.toml";
constexpr std::chrono::minutes kCodeLimit{10};

struct ScanOptions {
  std::vector<std::string> paths, roots, code, packs, vex, fail_on;
  std::string format = "table", config, db, as, runs, baseline, fail_on_condition = "open";
  bool allows_unknown = false, only_fixable = false, reads_ignored = false;
};

/// The packs that are asked: those that are named, else every one.
std::vector<Manifest> packs_of(const Context& context, const ScanOptions& options) {
  std::vector<Manifest> packs;
  for (const std::string& slug : options.packs.empty() ? context.slugs() : options.packs)
    packs.push_back(context.manifest(slug));
  return packs;
}

std::string environment_text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// What .gitignore leaves out below a folder; with --all nothing.
IsIgnored ignored_below(const std::string& path, const ScanOptions& options) {
  std::error_code none;
  if (options.reads_ignored || !fs::is_directory(path, none)) return {};
  return [ignored = git::IgnoredPaths(path)](const fs::path& one, bool is_folder) {
    return ignored.contains(one, is_folder);
  };
}

std::vector<Inventory> inventories(const ScanOptions& options) {
  std::vector<Inventory> all;
  for (const std::string& path : options.paths) {
    if (!options.as.empty()) {
      all.push_back(list_inventory(path, list_kind_named(options.as)));
      continue;
    }
    for (Inventory& one : inventories_of(path, ignored_below(path, options)))
      all.push_back(std::move(one));
  }
  for (const std::string& root : options.roots) {
    for (Inventory& one : inventories_below(root)) all.push_back(std::move(one));
  }
  const bool is_default = all.empty() && options.code.empty();
  if (is_default)
    all.push_back(inventory_of(running_environment(), environment_text("PYTHONPATH")));
  return all;
}

/// A file of its own that is removed at the end.
class ListFile {
 public:
  explicit ListFile(const std::vector<std::string>& lines) {
    std::string name = (fs::temp_directory_path() / "patchbench-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    if (fd < 0) throw Error(ErrorCode::kNotRunnable, name + ": cannot be made; set TMPDIR");
    ::close(fd);
    path_ = name;
    std::ofstream out(path_, std::ios::binary);
    for (const std::string& line : lines) out << line << '\0';
    if (!out.flush()) throw Error(ErrorCode::kNotRunnable, name + ": cannot be written");
  }
  ~ListFile() {
    std::error_code none;
    fs::remove(path_, none);
  }
  ListFile(const ListFile&) = delete;
  ListFile& operator=(const ListFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// What the reader of Python code finds below a folder, of `files` alone where it is not empty. It
/// is started apart from the user's environment, and parses alone.
void add_code(ScanReport& report, const Context& context, const std::string& folder,
              const std::vector<std::string>& files, const std::vector<Manifest>& packs) {
  const fs::path program = context.root / "runner/python/code_rules.py";
  const std::string what = files.empty() ? "--code " + folder : folder;
  std::vector<std::string> argv = {"python3",        "-I",   "-S",
                                   program.string(), folder, code_rules_json(packs).dump()};
  std::optional<ListFile> list;
  if (!files.empty()) argv.push_back(list.emplace(files).path());
  const exec::Exit done = exec::run({.argv = argv, .timeout = kCodeLimit});
  if (done.timed_out)
    throw Error(ErrorCode::kUnresolved,
                what + ": more than ten minutes; name a folder with less code");
  if (done.exit_code == 2)
    throw Error(ErrorCode::kUsage, "--code " + done.err.substr(0, done.err.find('\n')));
  if (!done.error.empty() && !files.empty()) {
    report.unread_code.push_back(folder + ": its code needs python3 on PATH");
    return;
  }
  if (!done.error.empty())
    throw Error(ErrorCode::kNotRunnable, "--code needs python3 on PATH: " + shown(done.error));
  if (!done.ok())
    throw Error(ErrorCode::kInternal, what + ": the reader of Python code: " + shown(done.err));
  try {
    add_code_sites(report, done.out, packs, !files.empty());
  } catch (const Error& error) {
    throw Error(ErrorCode::kInternal, error.what());
  }
}

void read_code(ScanReport& report, const Context& context, const ScanOptions& options,
               const std::vector<Manifest>& packs) {
  for (const std::string& folder : options.code) {
    std::error_code none;
    if (!fs::exists(folder, none))
      throw Error(ErrorCode::kUsage,
                  "--code " + folder + ": is not there; name a folder or a file");
    add_code(report, context, folder, {}, packs);
  }
}

/// The code of projects, for the packs that their packages leave in question.
void read_projects(ScanReport& report, const Context& context,
                   const std::vector<const Inventory*>& projects,
                   const std::vector<Manifest>& packs) {
  std::vector<Manifest> in_question;
  for (const Manifest& pack : packs)
    if (!report.is_right(pack.slug.str())) in_question.push_back(pack);
  for (const Inventory* one : projects) {
    if (one->code.empty()) continue;
    add_code(report, context, one->name, one->code, in_question);
    report.has_project_code = true;
  }
}

void apply_policies(ScanReport& report, const ScanOptions& options, const Context& context) {
  if (!options.baseline.empty())
    apply_baseline(report, read_plain_file(options.baseline, kMaxInputBytes), options.baseline);
  for (const std::string& file : options.vex)
    apply_vex(report, read_plain_file(file, kMaxInputBytes), file);
  std::error_code none;
  const std::string file = options.config.empty() ? kIgnoreFile : options.config;
  if (options.config.empty() && !fs::exists(file, none)) return;
  apply_ignored(report, ignored_packs(read_plain_file(file, kMaxInputBytes), file, context.slugs()),
                file, context.today());
}

/// Lists of one project say the same twice; the order stays.
void drop_repeated(std::vector<std::string>& lines) {
  std::set<std::string> told;
  std::erase_if(lines, [&](const std::string& line) { return !told.insert(line).second; });
}

/// An input in which nothing was read answers nothing.
void need_packages(const Inventory& inventory, const std::vector<ScanAnswer>& answers) {
  const bool is_any = !inventory.list.packages.empty() || !inventory.list.unread.empty() ||
                      std::any_of(answers.begin(), answers.end(), [](const ScanAnswer& one) {
                        return one.state != ScanState::kNotInstalled;
                      });
  if (!is_any)
    throw Error(ErrorCode::kUnresolved,
                inventory.name +
                    ": no package was read; name a venv, a lock, a requirements file, "
                    "an SBOM, or the root of an image with --root" +
                    (inventory.notes.empty() ? "" : " (" + inventory.notes.front() + ")"));
}

/// Adds the copies of packs' functions in code that no input has answered for.
void add_copies_in(const std::string& path, const std::vector<Manifest>& packs,
                   const VerdictTable& table, ScanReport& report) {
  Inventory code{.name = path};
  code.list.lists_all = false;
  std::error_code none;
  for (ScanAnswer& one : copies_in_code(packs, table, path, code)) {
    const bool is_told =
        std::any_of(report.answers.begin(), report.answers.end(), [&](const ScanAnswer& other) {
          return other.slug == one.slug && other.source == one.source &&
                 fs::equivalent(other.file, one.file, none);
        });
    if (!is_told) report.answers.push_back(std::move(one));
  }
  for (std::string& line : code.unread_code) report.unread_code.push_back(std::move(line));
}

ScanReport report_of(const Context& context, const ScanOptions& options) {
  const std::vector<Manifest> packs = packs_of(context, options);
  const std::vector<std::string> known = context.slugs();
  ScanReport report;
  std::vector<Inventory> inputs = inventories(options);
  const VerdictTable table = verdict_table(context, options.db);
  report.verdicts_of = table.date;
  for (const auto& [slug, pack] : table.packs) {
    if (std::find(known.begin(), known.end(), slug) == known.end())
      report.unread.push_back(
          fmt::format("pack {} of the verdict table, which this patchbench does "
                      "not have",
                      shown(slug)));
  }
  std::size_t num_unpinned = 0;
  std::vector<const Inventory*> projects;
  for (Inventory& inventory : inputs) {
    if (inventory.is_project) projects.push_back(&inventory);
    std::vector<ScanAnswer> answers = answers_of(packs, table, inventory);
    if (!inventory.may_be_empty) need_packages(inventory, answers);
    // Sources are an input where one is of a pack.
    const bool is_sources = inventory.may_be_empty && inventory.list.packages.empty();
    if (is_sources)
      std::erase_if(answers,
                    [](const ScanAnswer& one) { return one.state == ScanState::kNotInstalled; });
    if (!is_sources || !answers.empty()) report.inputs.push_back(inventory.name);
    for (ScanAnswer& one : answers) report.answers.push_back(std::move(one));
    for (std::string& line : inventory.list.unread) report.unread.push_back(std::move(line));
    for (std::string& line : inventory.unread_code) report.unread_code.push_back(std::move(line));
    for (std::string& line : inventory.notes) report.notes.push_back(std::move(line));
    num_unpinned += inventory.list.num_unpinned;
    report.has_mitigations |= inventory.list.packages.contains("patchbench-mitigations");
  }
  if (num_unpinned > 0) report.unread.push_back(unpinned_text(num_unpinned));
  drop_repeated(report.unread);
  report.has_code = !options.code.empty();
  read_code(report, context, options, packs);
  for (const std::string& path : options.code) add_copies_in(path, packs, table, report);
  read_projects(report, context, projects, packs);
  apply_comments(report, known);
  apply_model_families(report, context.root / "reports/evidence");
  apply_conditions(report);
  apply_policies(report, options, context);
  return report;
}

ScanLimits limits_of(const ScanOptions& options) {
  const std::vector<std::string>& names =
      options.fail_on.empty() ? failing_impacts() : options.fail_on;
  return {.fail_on = {names.begin(), names.end()},
          .allows_unknown = options.allows_unknown,
          .only_fixable = options.only_fixable,
          .needs_met = options.fail_on_condition == "met"};
}

void print(const Context& context, const ScanOptions& options, const ScanReport& report) {
  const std::string format = context.json ? "json" : options.format;
  if (format == "json") return print_json(context, scan_json(report, context.exit_code));
  if (format == "sarif")
    return print_json(context,
                      report::sarif_document(report, context.exit_code, PATCHBENCH_VERSION));
  if (format == "cyclonedx")
    return print_json(context, report::scan_cyclonedx(report, context.now(), PATCHBENCH_VERSION));
  if (format == "openvex") return print_json(context, report::scan_openvex(report, context.now()));
  if (format == "markdown") {
    context.out() << report::scan_markdown(report, context.exit_code);
  } else if (format == "github") {
    context.out() << report::scan_github(report);
  } else {
    context.out() << report::scan_text(report, context.exit_code, table_style(context));
  }
}

/// The answers for past runs, each of its own.
void scan_runs(Context& context, const ScanOptions& options) {
  const std::string format = context.json ? "json" : options.format;
  if (!options.paths.empty() || !options.roots.empty() || !options.code.empty() ||
      !options.as.empty() || options.only_fixable)
    throw Error(ErrorCode::kUsage,
                "--runs DIR goes with no PATH, --root, --code, --as or --only-fixable");
  if (format != "table" && format != "json")
    throw Error(ErrorCode::kUsage, "--runs has the formats table and json, not " + format);
  PastRuns found = past_runs_below(options.runs);
  if (found.runs.empty() && found.unread.empty())
    throw Error(ErrorCode::kUnresolved,
                options.runs +
                    ": no run was found; --runs reads wandb folders (run-DAY_TIME-ID), "
                    "MLflow runs and Megatron-LM checkpoints");
  RunsReport runs =
      runs_report(packs_of(context, options), verdict_table(context, options.db), std::move(found));
  apply_policies(runs.report, options, context);
  context.exit_code = scan_exit(runs.report, limits_of(options));
  if (format == "json") return print_json(context, runs_json(runs, context.exit_code));
  context.out() << runs_text(runs, context.exit_code, table_style(context));
}

void scan(Context& context, const ScanOptions& options) {
  if (!options.runs.empty()) return scan_runs(context, options);
  ScanReport report = report_of(context, options);
  if (options.fail_on_condition == "met" && !report.has_code && !report.has_project_code)
    throw Error(ErrorCode::kUsage,
                "--fail-on-condition met: only code and configurations say what is met, and none "
                "was read; scan a project with its code, or name it with --code DIR");
  const ScanLimits limits = limits_of(options);
  context.exit_code = scan_exit(report, limits);
  if (const std::string note = passed_note(report, limits); !note.empty())
    report.notes.push_back(note);
  print(context, options, report);
}

void add_options(CLI::App& command, ScanOptions& options) {
  command.add_option(
      "PATH", options.paths,
      "a venv or interpreter, a project with all its lists, or a file: a lock, requirements, "
      "an SBOM, a pyproject.toml, a conda environment, a Dockerfile, what pip list, conda list or "
      "a report of a tool "
      "prints; - reads standard input (default: $VIRTUAL_ENV, else python3 on PATH)");
  command
      .add_option("--as", options.as,
                  fmt::format("what the files are, where their form does not tell: {}",
                              fmt::join(list_kind_names(), ", ")))
      ->check(CLI::IsMember(list_kind_names()));
  command.add_option("--root", options.roots,
                     "the root of an unpacked or mounted image: every environment in it");
  command.add_option(
      "--code", options.code,
      "in DIR: code and settings that meet a condition, copies of a bug's functions; "
      "alone: no environment");
  command.add_option("--runs", options.runs,
                     "past runs below DIR, each a row: wandb, MLflow, Megatron-LM checkpoints");
  command.add_option("--pack", options.packs, "only these packs are asked (default: every one)")
      ->delimiter(',');
  command
      .add_option("--format", options.format,
                  "table, json, sarif, cyclonedx, openvex, markdown "
                  "or github")
      ->check(
          CLI::IsMember({"table", "json", "sarif", "cyclonedx", "openvex", "markdown", "github"}));
  command
      .add_option("--fail-on", options.fail_on,
                  "impacts that exit with 1 (default: silent_wrong,memory_corruption,crash)")
      ->delimiter(',')
      ->check(CLI::IsMember(impact_names()));
  command.add_flag("--all", options.reads_ignored,
                   "of a project also what its .gitignore files leave out");
  command
      .add_option("--fail-on-condition", options.fail_on_condition,
                  "met: only hits whose condition the code that was read meets exit with 1")
      ->check(CLI::IsMember({"met", "open"}));
  command.add_flag("--allow-unknown", options.allows_unknown, "what is unknown exits with 0");
  command.add_flag("--only-fixable", options.only_fixable,
                   "only hits with a right release or a mitigation exit with 1");
  command.add_option("--config", options.config, "entries to ignore (default: .patchbench.toml)");
  command.add_option("--baseline", options.baseline,
                     "what scan --format json wrote: what it holds, too, does not fail; new does");
  command.add_option("--vex", options.vex,
                     "OpenVEX: what it calls not_affected or fixed is ignored");
  command.add_option("--db", options.db, "a newer verdict table (export --format verdicts)");
}

}  // namespace

void add_scan_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<ScanOptions>();
  CLI::App* command = app.add_subcommand(
      "scan", "which packs hit an environment, a lock, an SBOM, an image or your code?");
  add_options(*command, *options);
  command->footer(
      "Every pack, every version that is listed. Runs and imports nothing, needs no network. "
      "Files\n"
      "at hand decide by their digests, else the version. Unknown is what was not measured.\n"
      "Exit: 1 a hit, before 3: something unknown, or nothing that a pack asks about; else 0.\n"
      ".patchbench.toml: [[ignore]] with pack, reason and until (a day).\n"
      "On a line of code or of a configuration: # patchbench: ignore PACK REASON\n"
      "Examples:\n"
      "  patchbench scan .\n"
      "  patchbench scan . --format json > known.json; patchbench scan . --baseline known.json\n"
      "  patchbench scan --runs ~/runs\n"
      "  patchbench scan ~/venv --code train/ --pack liger_flce_none_bwd --fail-on-condition met");
  command->callback([options, &context] { scan(context, *options); });
}

}  // namespace patchbench::cli
