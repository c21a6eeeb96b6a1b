#pragma once
#include <CLI/CLI.hpp>

#include <functional>

#include "workbench/context.h"
#include "workbench/found_inputs.h"

namespace patchbench::cli {

/// Each function adds one verb; its callback sets `context.exit_code` or throws Error.
void add_bundle_command(CLI::App& app, Context& context);
void add_env_command(CLI::App& app, Context& context);
void add_explore_command(CLI::App& app, Context& context);
void add_export_command(CLI::App& app, Context& context);
void add_job_command(CLI::App& app, Context& context);
void add_ledger_command(CLI::App& app, Context& context);
void add_list_commands(CLI::App& app, Context& context);  // list, show
void add_new_command(CLI::App& app, Context& context);
void add_patch_command(CLI::App& app, Context& context);
void add_run_commands(CLI::App& app, Context& context);  // reproduce, validate, window, claim
void add_scan_command(CLI::App& app, Context& context);
void add_serve_command(CLI::App& app, Context& context);
void add_stage_command(CLI::App& app, Context& context);
void add_status_command(CLI::App& app, Context& context);
void add_sweep_command(CLI::App& app, Context& context);

/// Of `env`: Patchbench's own machine. `app`: the whole program, which the script completes.
void add_cache_command(CLI::App& env, Context& context);
void add_completion_command(CLI::App& app, CLI::App& env, Context& context);
void add_pins_command(CLI::App& env, Context& context);
void add_pins_functions(CLI::App& pins, Context& context);
void add_selftest_command(CLI::App& env, Context& context);

/// Of `job`: tools that know no pack.
void add_capture_check_command(CLI::App& job, Context& context);
void add_compile_cache_command(CLI::App& job, Context& context);
void add_goodput_command(CLI::App& job, Context& context);
void add_job_env_command(CLI::App& job, Context& context);
void add_triage_command(CLI::App& job, Context& context);

/// Of `ledger`.
void add_ledger_lint(CLI::App& ledger, Context& context);
void add_ledger_replay(CLI::App& ledger, Context& context);
void add_ledger_sign(CLI::App& ledger, Context& context);  // sign, verify-signature

/// Of `status`, with what its own options say.
void add_claims_command(CLI::App& status, Context& context, const bool& is_markdown);
void add_due_command(CLI::App& status, Context& context, const std::string& day);
void add_filing_command(CLI::App& status, Context& context, const std::string& day);
void add_page_command(CLI::App& status, Context& context);

/// Does `work` for a verb that asks whether something holds: Error(kIntegrity) is its answer "no".
void answer_whether_it_holds(Context& context, const std::function<void()>& work);

/// The first files of a pack (`new`) with what a search found; their paths. `upstream`:
/// NAME[@VERSION]=FILE.
Json write_found_pack(const Context& context, const std::string& slug, const std::string& title,
                      const std::string& upstream, const FoundInputs& found);

/// The verdict of a recorded run again, from its observations; nothing is started. `id`: the run's,
/// or a unique beginning.
void judge_again(const Context& context, const std::string& id);

}  // namespace patchbench::cli
