#pragma once
#include <filesystem>
#include <set>
#include <string>

#include "exec/engine.h"
#include "exec/sandbox.h"

namespace patchbench::exec {

/// The folders that an interpreter outside of /usr imports from: its own prefixes and its path.
/// Never the root folder, nor a home folder as a whole.
std::set<std::filesystem::path> interpreter_folders(const std::string& python);

/// Runs a spec by bubblewrap. `settings` come from the probe.
SandboxReport run_in_bubblewrap(const SandboxSpec& spec, const EngineSettings& settings);

}  // namespace patchbench::exec
