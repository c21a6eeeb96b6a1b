#pragma once
#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/manifest.h"
#include "core/pin.h"

namespace patchbench::cli {

/// What every command shares: where things are and how to print.
struct Context {
  std::filesystem::path root;  ///< the repository (PATCHBENCH_ROOT, else where it was built)
  std::filesystem::path
      bin;  ///< folder of this program: patchbench-sandbox and repro_<slug> stand beside it
  std::filesystem::path cache;   ///< $XDG_CACHE_HOME/patchbench
  std::filesystem::path ledger;  ///< --ledger
  bool json = false;             ///< --json: one JSON document on stdout, nothing else
  int exit_code = 0;

  Manifest manifest(const std::string& slug) const;  ///< Error(kUsage) with did-you-mean
  std::vector<std::string> slugs() const;            ///< every pack, by number
  Pins pins() const;
};

/// A progress line on stderr (a terminal gets it rewritten in place; elsewhere one line each).
void progress(const std::string& text);

/// Checks that a word of --since is a day or a time, as a text that compares with a record's
/// `started`. Throws Error(kUsage).
void check_since(const std::string& since);

/// Today's day by UTC: "2026-01-31".
std::string today();

/// Prints one JSON document; bytes that are no UTF-8 become the replacement character.
void print_json(const Json& document);

/// Writes a file whole or not at all, its folders made.
void write_whole(const std::filesystem::path& path, const std::string& text);

/// Each command registers itself; its callback sets `context.exit_code` or throws Error.
void add_run_commands(CLI::App& app, Context& context);  // reproduce, validate, window, selftest
void add_list_commands(CLI::App& app,
                       Context& context);  // list, show, status, report, lifecycle, new
void add_patch_command(CLI::App& app, Context& context);  // patch new|save|show|apply|export|rebase
void add_ledger_command(CLI::App& app, Context& context);  // ledger verify|export|import|evict
void add_judge_command(CLI::App& app, Context& context);   // judge
void add_env_command(CLI::App& app, Context& context);     // env …, cache …
void add_stage_command(CLI::App& app, Context& context);   // stage
void add_capture_check_command(CLI::App& app, Context& context);  // capture-check
void add_claims_command(CLI::App& app, Context& context);         // claims
void add_lint_claims_command(CLI::App& app, Context& context);    // lint-claims
void add_mitigations_command(CLI::App& app, Context& context);    // mitigations doctor
void add_triage_command(CLI::App& app, Context& context);         // triage
void add_bundle_command(CLI::App& app, Context& context);         // bundle
void add_filing_command(CLI::App& app, Context& context);         // filing
void add_export_command(CLI::App& app, Context& context);         // export
void add_goodput_command(CLI::App& app, Context& context);        // goodput
void add_sweep_command(CLI::App& app, Context& context);          // sweep …
void add_replay_command(CLI::App& app, Context& context);         // replay

}  // namespace patchbench::cli
