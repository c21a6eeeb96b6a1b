#include "cli/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "cli/commands.h"
#include "cli/help_format.h"
#include "core/error.h"
#include "core/exit_status.h"
#include "core/json.h"
#include "ledger/ledger.h"

namespace patchbench::cli {
namespace {

namespace fs = std::filesystem;

std::string exit_table() {
  std::string text = "Exit status:\n";
  for (std::size_t status = 0; status < kExitMeanings.size(); ++status)
    text += fmt::format("  {}  {}\n", status, kExitMeanings.at(status));
  return text + fmt::format(
                    "Of reproduce --bisect: {} absent, {} present, {} cannot be judged, {} stop.\n",
                    +kBisectAbsent, +kBisectPresent, +kBisectCannotJudge, +kBisectStop);
}

fs::path env_path(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? fs::path(value) : fs::path();
}

fs::path program_folder() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  return failed ? fs::path(".") : self.parent_path();
}

/// What the program reads: PATCHBENCH_ROOT, else what was installed with it, else where it was
/// built.
fs::path root_for(const fs::path& bin) {
  fs::path named = env_path("PATCHBENCH_ROOT");
  if (!named.empty()) return named;
  const fs::path installed = bin.parent_path() / "share/patchbench";
  return fs::exists(installed / "packs") ? installed : fs::path(PATCHBENCH_SOURCE_DIR);
}

Context make_context() {
  Context context;
  context.bin = program_folder();
  context.root = root_for(context.bin);
  const fs::path cache = env_path("XDG_CACHE_HOME");
  context.cache = (cache.empty() ? env_path("HOME") / ".cache" : cache) / "patchbench";
  context.ledger = ledger::Ledger::default_path();
  return context;
}

/// The subcommand names of an app, for "did you mean".
std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

/// The option names of the command the words reached, for "did you mean".
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const CLI::Option* option : sub->get_options()) names.push_back(option->get_name());
    for (const std::string& name : option_names(*sub)) names.push_back(name);
  }
  return names;
}

/// The one line for words that CLI11 refuses.
std::string refusal(const CLI::App& app, const CLI::ParseError& error, int argc,
                    const char* const* argv) {
  std::string line = error.what();
  line = line.substr(0, line.find('\n'));
  if (app.get_subcommands().empty() && argc > 1) {
    const std::string word = argv[argc > 2 && std::string_view(argv[1]) == "--json" ? 2 : 1];
    if (!word.starts_with("-"))
      return fmt::format("unknown command '{}'{}", word, did_you_mean(word, command_names(app)));
  }
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool is_named = line.find(word) != std::string::npos && word.starts_with("--");
    if (!is_named) continue;
    const std::vector<std::string> known = option_names(app);
    if (std::find(known.begin(), known.end(), word) == known.end())
      return fmt::format("unknown or incomplete option '{}'{}", word, did_you_mean(word, known));
  }
  return line + "; see --help";
}

}  // namespace

void answer_whether_it_holds(Context& context, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIntegrity) throw;
    context.err() << "patchbench: " << printable(e.what()) << "\n";
    context.exit_code = kExitNo;
  }
}

int run_program(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  const bool is_bisect = std::any_of(
      argv, argv + argc, [](const char* word) { return std::string_view(word) == "--bisect"; });
  const auto failed = [&](int status, const std::string& line) {
    err << "patchbench: " << printable(line) << "\n";
    return is_bisect ? kBisectStop : status;
  };
  Context context = make_context();
  context.output = {&out, &err};
  CLI::App app{
      "Reproduce GPU-training bugs on the real upstream release, validate fixes, keep the record."};
  app.set_version_flag("--version", std::string("patchbench ") + PATCHBENCH_VERSION);
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--ledger", context.ledger,
                 "ledger file (default: $PATCHBENCH_LEDGER or the user's state folder)");
  app.add_flag("--json", context.json, "one JSON document on stdout instead of a table");
  app.add_flag("--plain", context.plain, "tables with tabs between the cells, for programs");
  app.footer(
      exit_table() +
      "First: patchbench list, patchbench reproduce liger_flce_none_bwd, patchbench env doctor.");
  add_list_commands(app, context);
  add_status_command(app, context);
  add_new_command(app, context);
  add_run_commands(app, context);
  add_patch_command(app, context);
  add_ledger_command(app, context);
  add_stage_command(app, context);
  add_scan_command(app, context);
  add_serve_command(app, context);
  add_bundle_command(app, context);
  add_export_command(app, context);
  add_explore_command(app, context);
  add_sweep_command(app, context);
  add_env_command(app, context);
  add_job_command(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e, out, err);
  } catch (const CLI::ParseError& e) {
    return failed(kExitUsage, refusal(app, e, argc, argv));
  } catch (const Error& e) {
    return failed(exit_status_of(e.code()), e.what());
  } catch (const std::exception& e) {
    return failed(kExitOurs, std::string("internal: ") + e.what());
  }
  return context.exit_code;
}

}  // namespace patchbench::cli
