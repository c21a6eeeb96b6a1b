#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "exec/process.h"

namespace patchbench::cli {
namespace {

struct CaptureCheckOptions {
  std::vector<std::string> command;
  std::string detectors, within;
};

/// The interpreter and what it is to run: `python3.12 script.py …`, `script.py …` or
/// `module:function`.
std::pair<std::string, std::vector<std::string>> split(const std::vector<std::string>& command) {
  const bool names_python =
      std::filesystem::path(command.front()).filename().string().starts_with("python");
  const std::string python = names_python ? command.front() : "python3";
  return {python, {command.begin() + (names_python ? 1 : 0), command.end()}};
}

[[noreturn]] void run(const Context& context, const CaptureCheckOptions& options) {
  const auto [python, target] = split(options.command);
  if (target.empty())
    throw Error(ErrorCode::kUsage, "capture-check: name a script or MODULE:FUNCTION after python");
  if (exec::find_program(python).empty())
    throw Error(ErrorCode::kUsage, "capture-check: " + python + ": no such program");
  std::vector<std::string> argv = {python,
                                   (context.root / "repro/harness/capture_check.py").string()};
  if (context.json) argv.push_back("--json");
  if (!options.detectors.empty()) argv.insert(argv.end(), {"--detector", options.detectors});
  if (!options.within.empty()) argv.insert(argv.end(), {"--within", options.within});
  argv.insert(argv.end(), target.begin(), target.end());
  std::vector<char*> raw;
  for (std::string& word : argv) raw.push_back(word.data());
  raw.push_back(nullptr);
  ::execvp(raw[0], raw.data());
  throw Error(ErrorCode::kInternal, python + ": " + std::strerror(errno));
}

}  // namespace

void add_capture_check_command(CLI::App& job, Context& context) {
  auto options = std::make_shared<CaptureCheckOptions>();
  CLI::App* command = job.add_subcommand(
      "capture-check", "which lines of your own code would break a CUDA graph capture?");
  command
      ->add_option("command", options->command,
                   "[PYTHON] SCRIPT ARGS... or [PYTHON] MODULE:FUNCTION")
      ->required();
  command->add_option(
      "--detector", options->detectors,
      "of reads, fake, capture, sync, with commas (default: all that can run here)");
  command->add_option("--within", options->within, "only sites in this package or folder");
  command->positionals_at_end();
  command->footer(
      "The interpreter must have torch: it is the one your code runs on. Nothing is sandboxed.\n"
      "Exit: 0 nothing found, 1 sites found, 4 no detector could run.\nExamples:\n"
      "  patchbench job capture-check -- python train_step.py\n"
      "  patchbench job capture-check --within mypkg -- mypkg.step:forward\n"
      "mypkg.step may define example_inputs(). A function also runs on fake CUDA tensors: that\n"
      "needs no GPU.");
  command->callback([options, &context] { run(context, *options); });
}

}  // namespace patchbench::cli
