#pragma once
#include <filesystem>
#include <string>

#include "exec/engine.h"
#include "exec/sandbox.h"

namespace patchbench::exec {

/// What one kind can do on this machine, found by trying it, not by asking for versions.
struct SandboxProbe {
  SandboxKind kind;
  bool usable = false;
  std::string detail;  ///< version and limits, or why not and how to get it
};
/// What trying one engine gave: settings, or why there are none.
struct FoundEngine {
  EngineSettings settings;
  std::string failure;
};
/// Tries one engine end to end (starts a trivial process in it). Cached per boot under
/// `<cache>/probe`; only what worked is remembered.
FoundEngine found_engine(SandboxKind kind, const std::filesystem::path& cache);

/// The next questions are asked of the engines anew. What another process is trying stays.
void forget_probes(const std::filesystem::path& cache);

/// Whether `python`, an interpreter of this machine, imports torch inside of the bundle: its own
/// folders are mounted, its system libraries are the bundle's. Not cached.
SandboxProbe probe_bundle(const std::string& python, const std::filesystem::path& cache);

/// What an engine's probe found, probing first if that was not done since the machine started.
/// Throws Error(kNotRunnable) with the probe's detail if the engine does not work here.
EngineSettings engine_settings(SandboxKind kind, const std::filesystem::path& cache);

}  // namespace patchbench::exec
