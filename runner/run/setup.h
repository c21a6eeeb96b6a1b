#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/run_plan.h"
#include "exec/environment.h"
#include "exec/sandbox.h"
#include "run/programs.h"
#include "workbench/context.h"

namespace patchbench {

/// What the user asked for: which subject of which release, on what, and which cases.
struct RunRequest {
  std::string slug;
  std::optional<std::string> upstream;            ///< of the pack's; nullopt: the first
  std::optional<std::string> version;             ///< nullopt: the red pin
  std::map<std::string, std::string> companions;  ///< upstream that is not under test -> version
  Subject subject = SubjectKind::kUpstream;
  CaseChoice choice;
  std::optional<std::string> device;            ///< nullopt: cuda:0 where it can be used, else cpu
  std::optional<exec::SandboxKind> sandbox;     ///< nullopt: the strongest
  std::optional<std::filesystem::path> python;  ///< an installed stack is the environment
  bool needs_pin = false;  ///< with `python`: judge a pinned release on it, not the installed one
  std::optional<std::filesystem::path> compile_cache;  ///< copied to each subject's ~/.tilelang
  int jobs = 1;                                        ///< subjects that run at a time
};

/// This machine, ready to run the steps of a plan.
struct Setup {
  RunTarget target;
  exec::SandboxKind sandbox = exec::SandboxKind::kProcess;
  exec::Environment environment;
  Json files = Json::object();     ///< of an installed stack: the upstream's files -> SHA-256
  std::string image, python;       ///< as the sandbox needs them
  std::filesystem::path libtorch;  ///< folder of it, for a judge that brings none; else empty
  Device judge;                    ///< where the judge computes for a subject on the device
  std::string run_id, started;
  Json machine;                  ///< exec::describe_machine
  std::filesystem::path folder;  ///< <cache>/runs/<run_id>
  std::optional<std::filesystem::path> compile_cache;
  int jobs = 1;
};

/// The release of a request, found without fetching anything: manifest, upstream, pins, device.
/// Throws Error(kUsage) or Error(kNotRunnable) with one clear line for what is wrong.
RunTarget target_of(const Context& context, const RunRequest& request);

/// Chooses the sandbox and prepares the environment on this machine. Throws Error with one clear
/// line for each thing that is wrong or impossible here.
Setup prepare_here(const Context& context, const RunRequest& request);

}  // namespace patchbench
