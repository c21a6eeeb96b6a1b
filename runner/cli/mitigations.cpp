
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "report/scan_text.h"
#include "report/table.h"
#include "status/table_style.h"

namespace patchbench::cli {
namespace {

struct DoctorOptions {
  std::string python, lock, requirements;
  bool has_exit_code = false;
};

std::string doctor_path(const DoctorOptions& options) {
  for (const std::string& named : {options.lock, options.requirements, options.python}) {
    if (!named.empty()) return named;
  }
  const char* active = std::getenv("VIRTUAL_ENV");
  if (active == nullptr || *active == '\0') {
    throw Error(ErrorCode::kUsage,
                "mitigations doctor: no venv is active; name one: --python VENV, --lock FILE or "
                "--requirements FILE");
  }
  return active;
}

/// The answers of `scan` to one input, under the exit statuses of `git bisect run`.
void doctor(Context& context, const DoctorOptions& options) {
  const ScanReport report = environment_report(context, doctor_path(options));
  const auto has = [&](ScanState state) {
    return std::any_of(report.answers.begin(), report.answers.end(), [&](const ScanAnswer& one) {
      return one.state == state && one.ignored.empty();
    });
  };
  const bool is_unknown = !report.unread.empty() || has(ScanState::kUnknown);
  if (options.has_exit_code) context.exit_code = has(ScanState::kHit) ? 1 : is_unknown ? 125 : 0;
  if (context.json) {
    Json document = scan_json(report, context.exit_code);
    document["packs"] = document["answers"];  // the verb's own key
    document.erase("answers");
    return print_json(context, document);
  }
  context.out() << report::scan_text(report, context.exit_code, table_style(context));
}

}  // namespace

CLI::App* add_mitigations_command(CLI::App& app, Context& context) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand("mitigations", "the runtime fixes of mitigations/");
  command->require_subcommand(1);
  CLI::App* sub = command->add_subcommand("doctor", "what patchbench scan says of one environment");
  CLI::Option* python = sub->add_option("--python", options->python,
                                        "a venv or its interpreter (default: $VIRTUAL_ENV)");
  CLI::Option* lock = sub->add_option("--lock", options->lock, "a lock");
  CLI::Option* required = sub->add_option("--requirements", options->requirements, "a pip file");
  python->excludes(lock)->excludes(required);
  lock->excludes(required);
  sub->add_flag("--exit-code", options->has_exit_code,
                "0 no pack hits it, 1 one does, 125 none is known to, and something is unknown");
  sub->footer(
      "The answers are those of patchbench scan, which takes more and has exit statuses of "
      "its own.");
  sub->callback([options, &context] { run_scan([&] { doctor(context, *options); }); });
  return command;
}

}  // namespace patchbench::cli
