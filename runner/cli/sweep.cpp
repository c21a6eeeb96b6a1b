#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "report/table.h"
#include "run/next_step.h"
#include "run/sweep_plan.h"
#include "run/sweep_run.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

std::string state_name(CellState state) {
  switch (state) {
    case CellState::kWaiting:
      return "waiting";
    case CellState::kRunning:
      return "running";
    case CellState::kDone:
      return "done";
  }
  return "";
}

Json sweep_json(const SweepFolder& sweep) {
  const std::vector<CellState> states = states_of(sweep);
  Json cells = Json::array(), counts = {{"done", 0}, {"running", 0}, {"waiting", 0}};
  for (std::size_t i = 0; i < states.size(); ++i) {
    const SweepCell& c = sweep.plan().cells[i];
    const std::string state = state_name(states[i]);
    counts[state] = counts[state].get<int>() + 1;
    cells.push_back({{"cell", i},
                     {"slug", c.slug},
                     {"upstream", c.upstream},
                     {"version", c.version},
                     {"device", c.device},
                     {"state", state}});
    if (const auto result = sweep.result(i)) cells.back().update(*result);
  }
  return {{"dir", sweep.path().string()},
          {"executor", sweep.plan().options.executor},
          {"is_cancelled", sweep.is_cancelled()},
          {"counts", counts},
          {"cells", cells}};
}

/// One line for each pack, device and what came out: versions in the order of the plan.
void print_sweep(const Context& context, const Json& sweep) {
  std::map<std::vector<std::string>, std::vector<std::string>> versions;
  for (const Json& c : sweep.at("cells")) {
    const std::string outcome = c.at("state") == "done" ? c.at("sentinel") : c.at("state");
    versions[{c.at("slug"), c.at("upstream"), c.at("device"), outcome}].push_back(c.at("version"));
  }
  report::Table table({"pack", "device", "outcome", "cells", "versions"});
  for (const auto& [key, list] : versions)
    table.add({key[0], key[2], key[3], std::to_string(list.size()),
               fmt::format("{} {}", key[1], fmt::join(list, " "))});
  context.out() << table.render(table_style(context));
  const Json& counts = sweep.at("counts");
  context.out() << fmt::format("{}: {} done, {} running, {} waiting{}\n",
                               sweep.at("dir").get<std::string>(), counts.at("done").dump(),
                               counts.at("running").dump(), counts.at("waiting").dump(),
                               sweep.at("is_cancelled").get<bool>() ? ", cancelled" : "");
}

void show(const Context& context, const SweepFolder& sweep) {
  const Json document = sweep_json(sweep);
  if (context.json) {
    print_json(context, document);
  } else {
    print_sweep(context, document);
    context.out() << next_step_of_sweep(document);
  }
}

struct SweepOptions {
  SweepPlanOptions sweep;
  std::string dir;
  bool is_detached = false, is_plan = false;
};

void add_options(CLI::App& command, SweepOptions& options) {
  command.add_option("--packs", options.sweep.packs, "which packs (default: all)")->delimiter(',');
  command
      .add_option("--upstreams", options.sweep.upstreams,
                  "red, all, versions or NAME@VERSION, where NAME@all too (default: red)")
      ->delimiter(',');
  command
      .add_option("--devices", options.sweep.devices,
                  "cpu, cuda or a GPU type such as h200 (default: cpu)")
      ->delimiter(',');
  command.add_option("--executor", options.sweep.executor, "local or slurm")->capture_default_str();
  command.add_option("--dir", options.dir,
                     "folder of the sweep; with Slurm one that every node sees (default: beside "
                     "the ledger)");
  command.add_option("--workers", options.sweep.workers, "cells at once (default: half the cores)")
      ->check(CLI::Range(1, 10000));
  command.add_option("--retries", options.sweep.retries, "how often a cell that broke runs again")
      ->capture_default_str()
      ->check(CLI::Range(0, 100));
  command.add_option("--seed", options.sweep.seed, "seed of the inputs")->capture_default_str();
  command.add_option("--sandbox", options.sweep.sandbox, "podman, docker, bwrap or process");
  command.add_option("--sbatch", options.sweep.sbatch,
                     "a further word for sbatch, such as --partition=long (repeatable)");
  command.add_flag("--detach", options.is_detached, "leave once Slurm has the jobs");
  command.add_flag("--plan", options.is_plan, "list the cells, and stop");
  command.footer(
      "One cell is one `reproduce`. The same words again take a sweep up: what has a result or is\n"
      "answered by the ledger is not run. On Slurm each cell is a task of an array job, on a GPU "
      "with\n--gres=gpu:1 and --constraint=TYPE. Whoever can write to the folder writes to your "
      "ledger: a\nfolder that others can write to is refused.\n"
      "Exit: 0 every cell has a result, 3 one has none, 4 not runnable here.\n"
      "Examples:\n  patchbench sweep --packs liger_flce_none_bwd --upstreams all --workers 2\n"
      "  patchbench sweep --devices cpu,h200 --executor slurm --dir /shared/sweep "
      "--sbatch=--time=1:00:00\n  patchbench sweep status");
}

/// The sweep of a plan, by the words that choose its cells and where they run.
std::string command_of(const SweepPlanOptions& sweep) {
  std::string command = "patchbench sweep";
  for (const auto& [option, list] :
       {std::pair("packs", sweep.packs), std::pair("upstreams", sweep.upstreams),
        std::pair("devices", sweep.devices)})
    if (!list.empty()) command += fmt::format(" --{} {}", option, fmt::join(list, ","));
  return command + (sweep.executor == "local" ? "" : " --executor " + sweep.executor);
}

void start(Context& context, const SweepOptions& options) {
  const SweepPlan plan = plan_sweep(context, options.sweep);
  if (options.is_detached && options.sweep.executor != "slurm")
    throw Error(ErrorCode::kUsage, "sweep: --detach is for --executor slurm");
  if (options.is_plan) {
    Json cells = Json::array();
    report::Table table({"pack", "upstream", "version", "device"});
    for (const SweepCell& c : plan.cells) {
      cells.push_back({c.slug, c.upstream, c.version, c.device});
      table.add({c.slug, c.upstream, c.version, c.device});
    }
    if (context.json) return print_json(context, cells);
    context.out() << table.render(table_style(context))
                  << report::closing(
                         fmt::format("Cells that would run: {}. Nothing ran.", plan.cells.size()),
                         command_of(options.sweep));
    return;
  }
  const SweepFolder sweep =
      SweepFolder::create(SweepFolder::path_for(context, plan, options.dir), plan);
  const std::size_t num_left = run_sweep(context, sweep, options.is_detached);
  show(context, sweep);
  if (num_left == 0 || options.is_detached) return;
  context.err() << fmt::format(
      "patchbench: {} cells have no result; logs in {}; the same words again "
      "take it up\n",
      num_left, (sweep.path() / "logs").string());
  context.exit_code = kExitNoAnswer;
}

}  // namespace

void add_sweep_command(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("sweep", "a matrix of runs, here or on a Slurm cluster");
  auto options = std::make_shared<SweepOptions>();
  add_options(*command, *options);
  command->add_subcommand("status", "how far each cell of --dir, or of the last sweep, is")
      ->callback([options, &context] { show(context, SweepFolder::open(context, options->dir)); });
  CLI::App* cancel = command->add_subcommand("cancel", "end a sweep; what has ended stays");
  cancel->callback([options, &context] {
    const SweepFolder sweep = SweepFolder::open(context, options->dir);
    if (!cancel_sweep(sweep))
      throw Error(ErrorCode::kUnresolved,
                  "sweep: Slurm's controller does not answer; try again, or scancel");
    show(context, sweep);
  });
  CLI::App* cell = command->add_subcommand("cell", "run one cell (what a task of a sweep starts)");
  auto number = std::make_shared<std::size_t>(0);
  cell->add_option("number", *number, "which")->required();
  cell->callback([options, number, &context] {
    run_cell(context, SweepFolder::open(context, options->dir), *number);
  });
  command->callback([command, options, &context] {
    if (command->get_subcommands().empty()) start(context, *options);
  });
}

}  // namespace patchbench::cli
