#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "exec/environment.h"
#include "workbench/context.h"

namespace patchbench {

/// A program that a run starts: its file, and the words that every start begins with.
struct Program {
  std::filesystem::path file;  ///< empty where it is not there
  std::vector<std::string> argv;
  bool is_of_wheel = false;  ///< patchbench-judge: it brings no libtorch
};

/// What judges a pack: `repro_<slug>` of a build, else `patchbench-judge <slug>` of the wheel.
Program judge_program(const Context& context, const std::string& slug);

/// What searches a user's function: `explore_function` of a build, else `patchbench-judge
/// explore_function` of the wheel.
Program search_program(const Context& context);

/// What runs a sandbox: `patchbench-sandbox SPEC` of a build, else `patchbench sandbox SPEC`.
Program sandbox_program(const Context& context);

/// The folder of libtorch for a program that brings none: that of a locked environment of the run,
/// else the lock `judge`, fetched where it is not in the cache. Throws Error(kNotRunnable).
std::filesystem::path libtorch_for(const Context& context, const exec::Environment& environment);

}  // namespace patchbench
