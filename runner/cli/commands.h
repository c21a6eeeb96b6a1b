#pragma once
#include <CLI/CLI.hpp>

#include <functional>

#include "core/scan_report.h"
#include "workbench/context.h"
#include "workbench/found_inputs.h"

namespace patchbench::cli {

/// Each command registers itself; its callback sets `context.exit_code` or throws Error.
void add_run_commands(CLI::App& app, Context& context);      // reproduce, validate, window, claim
void add_selftest_command(CLI::App& app, Context& context);  // selftest
void add_list_commands(CLI::App& app,
                       Context& context);                 // list, show, status, new
void add_patch_command(CLI::App& app, Context& context);  // patch new|save|show|apply|export|rebase
void add_ledger_command(CLI::App& app, Context& context);  // ledger verify|export|import|evict
/// The first files of a pack (`new`) with what a search found; their paths. `upstream`:
/// NAME[@VERSION]=FILE.
Json write_found_pack(const Context& context, const std::string& slug, const std::string& title,
                      const std::string& upstream, const FoundInputs& found);
/// The verdict of a recorded run again, from its observations; nothing is started. `id`: the run's,
/// or a unique beginning.
void judge_again(const Context& context, const std::string& id);
CLI::App* add_judge_command(CLI::App& app, Context& context);     // hidden: replay --judge
void add_env_command(CLI::App& app, Context& context);            // env …, cache …
void add_stage_command(CLI::App& app, Context& context);          // stage
void add_capture_check_command(CLI::App& app, Context& context);  // capture-check
/// Questions of `status`; at the top they are hidden, for scripts that were written before.
CLI::App* add_claims_command(CLI::App& app, Context& context);
CLI::App* add_filing_command(CLI::App& app, Context& context);
CLI::App* add_due_command(CLI::App& app, Context& context, const std::string& name);
CLI::App* add_page_command(CLI::App& app, Context& context, const std::string& name);
void add_lint_claims_command(CLI::App& app, Context& context);  // lint-claims
void add_pins_functions(CLI::App& pins, Context& context);      // pins functions
void add_scan_command(CLI::App& app, Context& context);         // scan
/// Runs what scan does: every failure but a usage error becomes Error(kNotRunnable), exit status 4.
void run_scan(const std::function<void()>& work);
/// What scan says of one PATH, with the entries of .patchbench.toml.
ScanReport environment_report(const Context& context, const std::string& path);
/// mitigations doctor: scan under its first name; hidden.
CLI::App* add_mitigations_command(CLI::App& app, Context& context);
void add_triage_command(CLI::App& app, Context& context);      // triage
void add_bundle_command(CLI::App& app, Context& context);      // bundle
void add_export_command(CLI::App& app, Context& context);      // export
void add_goodput_command(CLI::App& app, Context& context);     // goodput
void add_explore_command(CLI::App& app, Context& context);     // explore
void add_sweep_command(CLI::App& app, Context& context);       // sweep …
void add_replay_command(CLI::App& app, Context& context);      // replay
void add_completion_command(CLI::App& app, Context& context);  // completion

}  // namespace patchbench::cli
