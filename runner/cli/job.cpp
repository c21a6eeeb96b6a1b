#include "cli/commands.h"

namespace patchbench::cli {

void add_job_command(CLI::App& app, Context& context) {
  CLI::App* job = app.add_subcommand(
      "job", "tools for a training job, which know no pack: settings, logs, caches");
  job->require_subcommand(1);
  job->footer("Examples:\n  patchbench job env check\n  patchbench job triage train.log");
  add_job_env_command(*job, context);
  add_triage_command(*job, context);
  add_compile_cache_command(*job, context);
  add_goodput_command(*job, context);
  add_capture_check_command(*job, context);
}

}  // namespace patchbench::cli
