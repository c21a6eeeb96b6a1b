#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/device.h"
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
/// or that of an installed stack which is_locked_libtorch, else the lock `judge`, fetched where it
/// is not in the cache. Throws Error(kNotRunnable).
std::filesystem::path libtorch_for(const Context& context, const exec::Environment& environment);

/// Whether the libraries of a folder equal the libraries of one locked wheel of torch by SHA-256:
/// the rows `# libtorch TAG FILE SHA256` of a lock.
bool is_locked_libtorch(const std::filesystem::path& folder, const std::filesystem::path& lock);

/// Where a judge computes. The oracle is computed on the CPU always.
struct JudgeDevice {
  Device device;        ///< of the plain computation: the subject's, or the CPU
  bool has_ops = true;  ///< subjects of the judge's own process run on the subject's device
};

/// Asks a judge where it computes for a subject on `device`; of a GPU one line of progress says it.
/// Throws Error(kInternal) where the judge does not answer.
JudgeDevice judge_device(const Program& judge, const std::filesystem::path& libtorch,
                         const Device& device);

}  // namespace patchbench
