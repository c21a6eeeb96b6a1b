#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "core/file_text.h"
#include "job/goodput.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

struct GoodputOptions {
  std::string before, after, evidence;
};

void write_evidence(const std::string& path, const Json& compared) {
  std::ofstream out(path, std::ios::binary);
  out << canonical_json(compared) << "\n";
  out.close();
  if (!out) throw Error(ErrorCode::kUsage, path + ": cannot be written");
}

void show(const Context& context, const Json& compared) {
  report::Table table({"", "before", "after"});
  const Json &before = compared.at("before"), &after = compared.at("after");
  const auto number = [](const Json& value) { return fmt::format("{:.4g}", value.get<double>()); };
  const auto share = [](const Json& value) {
    return fmt::format("{:.1f} %", 100 * value.get<double>());
  };
  table.add({"tokens/s", number(before.at("tokens_per_s")), number(after.at("tokens_per_s"))});
  for (const char* part : {"compile", "stall", "lost", "idle"}) {
    const std::string key = std::string("share_") + part;
    table.add({std::string(part) + " of wall time", share(before.at(key)), share(after.at(key))});
  }
  for (const char* key : {"num_steps", "num_failures"})
    table.add({key, before.at(key).dump(), after.at(key).dump()});
  table.add({"peak memory, MiB",
             std::to_string(before.at("peak_memory_bytes").get<int64_t>() >> 20),
             std::to_string(after.at("peak_memory_bytes").get<int64_t>() >> 20)});
  table.add({"adapter", before.at("adapter"), after.at("adapter")});
  context.out() << table.render(table_style(context));
  const std::string keep = compared.at("keep");
  context.out() << fmt::format("\nafter / before: {:.4f}, 95 % within {:.4f} to {:.4f}: {}\n",
                               compared.at("ratio").get<double>(),
                               number_from(compared.at("interval").at(0)),
                               number_from(compared.at("interval").at(1)),
                               keep == "keep"   ? "keep, the run gains"
                               : keep == "drop" ? "drop, the run loses"
                                                : "no difference beyond the noise of the steps");
}

void run(const Context& context, const GoodputOptions& options) {
  const std::string schema = read_file(context.root / "env/run_report.schema.json");
  const auto read = [&](const std::string& path) {
    return job::RunReport::parse(read_file(path), path, schema);
  };
  const Json compared = job::compare_runs(read(options.before), read(options.after));
  if (!options.evidence.empty()) write_evidence(options.evidence, compared);
  if (context.json) {
    print_json(context, compared);
  } else {
    show(context, compared);
  }
}

}  // namespace

void add_goodput_command(CLI::App& job, Context& context) {
  auto options = std::make_shared<GoodputOptions>();
  CLI::App* command =
      job.add_subcommand("goodput", "what a whole training run gains, from two run reports");
  command->add_option("before", options->before, "a report (form: env/run_report.schema.json)")
      ->required();
  command->add_option("after", options->after, "one of the same model, batch and hardware")
      ->required();
  command->add_option("--evidence", options->evidence,
                      "write the comparison with the digests of both reports here");
  command->footer(
      "Goodput is tokens that count over the wall time of the run. The interval holds the noise\n"
      "of the steps within each run; noise between runs needs more runs.\n"
      "Exit: 0 compared or unlike runs.\n"
      "Examples:\n  patchbench job goodput before.json after.json\n"
      "  patchbench job goodput before.json after.json --evidence goodput.json");
  command->callback([options, &context] { run(context, *options); });
}

}  // namespace patchbench::cli
