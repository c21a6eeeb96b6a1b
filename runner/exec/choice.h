#pragma once
#include <filesystem>
#include <optional>

#include "exec/probe.h"
#include "exec/sandbox.h"

namespace patchbench::exec {

/// Whether one kind can be used here: its engine works, and it has a base image or can build one.
SandboxProbe probe_sandbox(SandboxKind kind, const std::filesystem::path& cache,
                           const std::filesystem::path& root);

/// The strongest usable kind, or the forced one (Error(kNotRunnable) naming why and what to try). A
/// fall-back is announced on stderr.
SandboxKind choose_sandbox(std::optional<SandboxKind> forced, const std::filesystem::path& cache,
                           const std::filesystem::path& root);

}  // namespace patchbench::exec
