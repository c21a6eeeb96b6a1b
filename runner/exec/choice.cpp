#include "exec/choice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "core/error.h"
#include "exec/image.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "exec/runc.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

std::string limits_detail(SandboxKind kind, const EngineSettings& settings) {
  if (settings.limits_memory && settings.limits_processes)
    return fmt::format("limits by {}", is_isolated(kind) && kind != SandboxKind::kBubblewrap
                                           ? sandbox_name(kind)
                                           : "cgroup");
  return "limits by watchdog (no cgroup can be made here)";
}

}  // namespace

SandboxProbe probe_sandbox(SandboxKind kind, const fs::path& cache, const fs::path& root) {
  if (kind == SandboxKind::kProcess) {
    return {kind, true,
            "not isolated: the subject sees this machine's network and the user's files"};
  }
  if (kind == SandboxKind::kRunc) {
    const std::optional<Bundle> bundle = find_bundle(cache);
    if (!bundle)
      return {kind, false, "no bundle here; only a folder of `stage --container` has one"};
    return probe_bundle("", cache);
  }
  const FoundEngine found = found_engine(kind, cache);
  if (!found.failure.empty()) return {kind, false, found.failure};
  const EngineSettings& settings = found.settings;
  const std::string runtime = settings.global.empty() ? "" : " (" + settings.global.back() + ")";
  const std::string detail = fmt::format("{} {}{}, {}", sandbox_name(kind), settings.version,
                                         runtime, limits_detail(kind, settings));
  if (kind == SandboxKind::kBubblewrap || find_base_image(kind, "bookworm", cache, root))
    return {kind, true, detail};
  if (::geteuid() == 0 && !find_program("debootstrap").empty())
    return {kind, true, detail + ", base image still to be built"};
  return {kind, false,
          detail + ", but there is no base image and only root with debootstrap can build one"};
}

SandboxKind choose_sandbox(std::optional<SandboxKind> forced, const fs::path& cache,
                           const fs::path& root) {
  if (forced) {
    const SandboxProbe probe = probe_sandbox(*forced, cache, root);
    if (probe.usable) return *forced;
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("--sandbox {}: {}; patchbench env doctor shows what works here",
                            sandbox_name(*forced), probe.detail));
  }
  std::string passed_over;
  for (const SandboxKind kind : kSandboxKinds) {
    const SandboxProbe probe = probe_sandbox(kind, cache, root);
    if (!probe.usable) {
      passed_over += fmt::format("{}{}: {}", passed_over.empty() ? "" : "; ", sandbox_name(kind),
                                 probe.detail);
      continue;
    }
    const bool is_weaker = kind == SandboxKind::kBubblewrap || kind == SandboxKind::kProcess;
    if (is_weaker)
      std::cerr << fmt::format("sandbox: {}{} ({})\n", sandbox_name(kind),
                               is_isolated(kind) ? "" : ", UNISOLATED", passed_over);
    return kind;
  }
  throw Error(ErrorCode::kInternal, "the plain process was not usable");
}

}  // namespace patchbench::exec
