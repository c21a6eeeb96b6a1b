#include "run/setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "core/digest.h"
#include "core/error.h"
#include "exec/choice.h"
#include "exec/image.h"
#include "exec/process.h"
#include "exec/progress.h"
#include "exec/runc.h"
#include "run/names.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

/// The interpreter of sandboxes that use the host's /usr, and its wheel tag.
std::pair<std::string, std::string> host_python() {
  const std::string python = "/usr/bin/python3";
  const exec::Exit exit =
      exec::run({.argv = {python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"}});
  if (!exit.ok()) {
    throw Error(ErrorCode::kNotRunnable,
                python + ": not there or broken; install python3 (env/bootstrap.sh does)");
  }
  return {python, exit.out.substr(0, exit.out.find('\n'))};
}

/// The pack's upstreams that are not under test: at the versions named, else at their red pins or,
/// where the environment has one or either stands alone, not at all.
std::vector<Pin> companions_of(const Context& context, const RunTarget& target,
                               const std::map<std::string, std::string>& named) {
  std::map<std::string, std::string> versions;
  std::vector<std::string> names;
  for (const UpstreamUse& use : target.manifest.upstreams) {
    if (use.name == target.upstream.name) continue;
    names.push_back(use.name);
    if (!use.from_environment && !use.stands_alone && !target.upstream.stands_alone)
      versions[use.name] = use.red_pin;
  }
  for (const auto& [name, version] : named) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: a companion is another upstream of the pack than the one under "
                              "test{}",
                              name, did_you_mean(name, names)));
    }
    versions[name] = version;
  }
  std::vector<Pin> pins;
  for (const auto& [name, version] : versions)
    pins.push_back(context.pins().resolve(name, version));
  return pins;
}

/// The strongest sandbox; bubblewrap with the same interpreter where that would first build its
/// image.
exec::SandboxKind ready_sandbox(const Context& context) {
  using exec::SandboxKind;
  const SandboxKind kind = exec::choose_sandbox(std::nullopt, context.cache, context.root);
  const bool has_image = kind == SandboxKind::kPodman || kind == SandboxKind::kDocker;
  if (!has_image || exec::find_base_image(kind, "bookworm", context.cache, context.root) ||
      host_python().second != exec::kImageTag ||
      !exec::probe_sandbox(SandboxKind::kBubblewrap, context.cache, context.root).usable)
    return kind;
  exec::progress(
      fmt::format("runs in bubblewrap: {} has no base image here yet, which "
                  "`patchbench env images --ensure` builds",
                  exec::sandbox_name(kind)));
  return SandboxKind::kBubblewrap;
}

/// Sandbox and locked wheels.
void prepare_locked(const Context& context, const RunRequest& request, Setup& setup) {
  setup.sandbox = request.sandbox
                      ? exec::choose_sandbox(request.sandbox, context.cache, context.root)
                      : ready_sandbox(context);
  std::string tag;
  if (setup.sandbox == exec::SandboxKind::kPodman || setup.sandbox == exec::SandboxKind::kDocker) {
    const exec::BaseImage image =
        exec::ensure_base_image(setup.sandbox, "bookworm", context.cache, context.root);
    setup.image = image.id;
    setup.python = image.python;
    tag = image.tag;
  } else if (setup.sandbox == exec::SandboxKind::kRunc) {
    const exec::Bundle bundle = exec::find_bundle(context.cache).value();
    setup.image = bundle.tree_digest;
    setup.python = bundle.python;
    tag = bundle.tag;
  } else {
    std::tie(setup.python, tag) = host_python();
  }
  std::vector<std::string> locks = {setup.target.pin->environment};
  for (const Pin& pin : setup.target.companions) {
    if (std::find(locks.begin(), locks.end(), pin.environment) == locks.end())
      locks.push_back(pin.environment);
  }
  setup.environment = exec::locked_environment(locks, tag, context.cache, context.root);
}

/// Chooses the bundle of a staged folder for an installed stack, if it is there or asked for and
/// the interpreter runs in it.
bool use_bundle(const Context& context, const RunRequest& request, Setup& setup) {
  const bool is_asked = request.sandbox == exec::SandboxKind::kRunc;
  const std::optional<exec::Bundle> bundle = exec::find_bundle(context.cache);
  if (!is_asked && (request.sandbox || !bundle)) return false;
  const exec::SandboxProbe probe =
      bundle ? exec::probe_bundle(setup.python, context.cache)
             : exec::probe_sandbox(exec::SandboxKind::kRunc, context.cache, context.root);
  if (!probe.usable && is_asked)
    throw Error(ErrorCode::kNotRunnable, "--sandbox runc: " + probe.detail);
  if (!probe.usable) {
    exec::progress("runc cannot be used here (" + probe.detail + "); falling back to bwrap");
    return false;
  }
  setup.sandbox = exec::SandboxKind::kRunc;
  setup.image = bundle->tree_digest;
  return true;
}

/// The upstream's files as the installed stack would import them. Throws Error(kNotRunnable) where
/// it has none of them.
Json files_of_stack(const Setup& setup) {
  const Json files = exec::host_file_digests(setup.environment, setup.target.upstream.files);
  if (!files.empty() && std::all_of(files.begin(), files.end(),
                                    [](const Json& digest) { return digest == "absent"; }))
    throw Error(
        ErrorCode::kNotRunnable,
        fmt::format("--python {}: {} is not installed there (no {}); install it, or name a "
                    "release after the pack",
                    setup.python, setup.target.upstream.name, setup.target.upstream.files.front()));
  return files;
}

/// Sandbox and an installed stack (--python).
void prepare_host(const Context& context, const RunRequest& request, Setup& setup) {
  setup.environment = exec::host_environment(*request.python);
  setup.python = setup.environment.python;
  if (!setup.target.pin && !request.subject.is_in_process()) setup.files = files_of_stack(setup);
  const auto kind = request.sandbox.value_or(exec::SandboxKind::kBubblewrap);
  if (use_bundle(context, request, setup)) return;
  if (kind == exec::SandboxKind::kPodman || kind == exec::SandboxKind::kDocker) {
    throw Error(
        ErrorCode::kUsage,
        "--python needs --sandbox bwrap or process: an image has no part of the host's stack");
  }
  const exec::SandboxProbe probe = exec::probe_sandbox(kind, context.cache, context.root);
  if (!probe.usable && request.sandbox)
    throw Error(ErrorCode::kNotRunnable, "--sandbox: " + probe.detail);
  if (!probe.usable)
    exec::progress("bwrap cannot be used here (" + probe.detail +
                   "); falling back to a plain process, unisolated");
  setup.sandbox = probe.usable ? kind : exec::SandboxKind::kProcess;
}

}  // namespace

RunTarget target_of(const Context& context, const RunRequest& request) {
  RunTarget target;
  target.manifest = context.manifest(request.slug);
  need_mode(target.manifest, request.subject);
  if (const auto waived = target.manifest.waived(Column::kRepro)) {
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("{}: no reproducer yet ({})", request.slug, *waived));
  }
  check_subject(target.manifest, request.subject);
  check_cases(target.manifest, request.choice.cases);
  target.upstream = upstream_use(target.manifest, request.upstream.value_or(""), request.subject);
  target.device = chosen_device(request.device);
  if (!request.python || request.needs_pin || request.version) {
    target.pin = context.pins().resolve(target.upstream.name,
                                        request.version.value_or(target.upstream.red_pin));
    target.companions = companions_of(context, target, request.companions);
  }
  return target;
}

Setup prepare_here(const Context& context, const RunRequest& request) {
  Setup setup{.target = target_of(context, request)};
  RunTarget& target = setup.target;
  const Program judge = judge_program(context, request.slug);
  if (judge.file.empty()) {
    throw Error(ErrorCode::kNotRunnable,
                fmt::format("the judge of {} is not there; in a clone run ./patchbench (preset "
                            "host has no torch), else install the wheel patchbench-judge",
                            request.slug));
  }
  setup.machine = exec::describe_machine(target.device.text());
  setup.started = context.now();
  setup.compile_cache = request.compile_cache;
  setup.jobs = request.jobs;
  if (request.python) {
    prepare_host(context, request, setup);
  } else {
    prepare_locked(context, request, setup);
  }
  if (judge.is_of_wheel) setup.libtorch = libtorch_for(context, setup.environment);
  const JudgeDevice at = judge_device(judge, setup.libtorch, target.device);
  setup.judge = at.device;
  target.has_ops = at.has_ops;
  if (at.device != target.device) setup.machine["oracle"] = at.device.text();
  setup.run_id = sha256_hex(fmt::format("{} {} {} {}", request.slug, setup.started, ::getpid(),
                                        std::random_device{}()))
                     .substr(0, 16);
  setup.folder = context.cache / "runs" / setup.run_id;
  return setup;
}

}  // namespace patchbench
