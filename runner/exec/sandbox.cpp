#include "exec/sandbox.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "core/error.h"
#include "core/fields.h"
#include "core/slug.h"
#include "exec/bubblewrap.h"
#include "exec/container.h"
#include "exec/engine.h"
#include "exec/probe.h"
#include "exec/process_sandbox.h"
#include "exec/runc.h"

namespace patchbench::exec {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::kUsage, "sandbox spec: " + reason);
}

/// Whether a host path is a folder or lies in it, links resolved as far as they are there.
bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path relative =
      fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

Mount mount_from(const Json& json) {
  FieldReader fields(json, "sandbox spec: mount");
  Mount mount{fields.text("host"), fields.text("inside"), fields.boolean("writable")};
  fields.finish();
  if (!mount.host.is_absolute() || !fs::path(mount.inside).is_absolute() ||
      mount.inside.ends_with("/")) {
    refuse("mount " + shown(mount.inside) +
           ": both paths must be absolute, without a slash at the end");
  }
  return mount;
}

void check(const SandboxSpec& spec) {
  if (spec.argv.empty() || spec.argv[0].empty()) refuse("argv names no program");
  if (!(spec.timeout_s > 0) || !std::isfinite(spec.timeout_s)) refuse("timeout_s must be above 0");
  if (spec.memory_bytes <= 0 || spec.max_processes <= 0)
    refuse("memory_bytes and max_processes must be above 0");
  for (const fs::path& file : {spec.log, spec.report}) {
    if (!file.is_absolute()) refuse("log and report must be absolute paths");
    for (const Mount& mount : spec.mounts) {
      if (mount.is_writable && lies_in(file, mount.host))
        refuse(file.string() + ": lies where the subject can write");
    }
  }
}

}  // namespace

std::string sandbox_name(SandboxKind kind) {
  switch (kind) {
    case SandboxKind::kPodman:
      return "podman";
    case SandboxKind::kDocker:
      return "docker";
    case SandboxKind::kRunc:
      return "runc";
    case SandboxKind::kBubblewrap:
      return "bwrap";
    case SandboxKind::kProcess:
      return "process";
  }
  throw Error(ErrorCode::kInternal, "sandbox kind out of range");
}

SandboxKind sandbox_from(const std::string& name) {
  std::vector<SandboxKind> kinds(std::begin(kSandboxKinds), std::end(kSandboxKinds));
  kinds.push_back(SandboxKind::kRunc);
  std::vector<std::string> names;
  for (const SandboxKind kind : kinds) {
    if (sandbox_name(kind) == name) return kind;
    names.push_back(sandbox_name(kind));
  }
  throw Error(ErrorCode::kUsage, "no sandbox '" + shown(name) + "'" + did_you_mean(name, names));
}

bool is_isolated(SandboxKind kind) { return kind != SandboxKind::kProcess; }

Json SandboxSpec::to_json() const {
  Json list = Json::array();
  for (const Mount& mount : mounts) {
    list.push_back(
        {{"host", mount.host.string()}, {"inside", mount.inside}, {"writable", mount.is_writable}});
  }
  return {{"kind", sandbox_name(kind)},
          {"image", image},
          {"python", python},
          {"argv", argv},
          {"env", env},
          {"mounts", list},
          {"cwd", cwd},
          {"wants_gpu", wants_gpu},
          {"memory_bytes", memory_bytes},
          {"max_processes", max_processes},
          {"timeout_s", timeout_s},
          {"log", log.string()},
          {"report", report.string()}};
}

SandboxSpec SandboxSpec::from_json(const Json& json) {
  FieldReader fields(json, "sandbox spec");
  SandboxSpec spec;
  spec.kind = sandbox_from(fields.text("kind"));
  spec.image = fields.text("image");
  spec.python = fields.text("python");
  spec.argv = fields.texts("argv");
  const Json env = fields.object("env");
  for (const auto& [name, value] : env.items()) {
    if (!value.is_string() || name.empty() || name.find('=') != std::string::npos)
      refuse("env " + shown(name) + " is no variable");
    spec.env[name] = value.get<std::string>();
  }
  const Json& mounts = fields.value("mounts");
  if (!mounts.is_array()) refuse("mounts must be an array");
  for (const Json& mount : mounts) spec.mounts.push_back(mount_from(mount));
  spec.cwd = fields.text("cwd");
  spec.wants_gpu = fields.boolean("wants_gpu");
  spec.memory_bytes = static_cast<int64_t>(fields.count("memory_bytes", uint64_t{1} << 50));
  spec.max_processes = static_cast<int>(fields.count("max_processes", 1 << 20));
  spec.timeout_s = fields.number("timeout_s");
  spec.log = fields.text("log");
  spec.report = fields.text("report");
  fields.finish();
  check(spec);
  return spec;
}

Json SandboxReport::to_json() const {
  return {{"exit_code", exit_code},
          {"signal", signal},
          {"timed_out", timed_out},
          {"out_of_memory", out_of_memory},
          {"engine_failed", engine_failed},
          {"peak_bytes", peak_bytes},
          {"meter", meter},
          {"limits", limits},
          {"wall_s", wall_s},
          {"error", error}};
}

SandboxReport SandboxReport::from_json(const Json& json) {
  FieldReader fields(json, "sandbox report");
  SandboxReport report;
  report.exit_code = static_cast<int>(fields.number("exit_code"));
  report.signal = static_cast<int>(fields.count("signal", 255));
  report.timed_out = fields.boolean("timed_out");
  report.out_of_memory = fields.boolean("out_of_memory");
  report.engine_failed = fields.boolean("engine_failed");
  report.peak_bytes = static_cast<int64_t>(fields.count("peak_bytes", uint64_t{1} << 53));
  report.meter = fields.text("meter");
  report.limits = fields.text("limits");
  report.wall_s = fields.number("wall_s");
  report.error = fields.text("error");
  fields.finish();
  return report;
}

SandboxReport run_sandboxed(const SandboxSpec& spec) {
  SandboxReport report;
  try {
    check(spec);
    fs::remove(spec.report);
    switch (spec.kind) {
      case SandboxKind::kPodman:
      case SandboxKind::kDocker:
        report = run_in_container(spec, engine_settings(spec.kind, default_cache()));
        break;
      case SandboxKind::kRunc:
        report = run_in_runc(spec);
        break;
      case SandboxKind::kBubblewrap:
        report = run_in_bubblewrap(spec, engine_settings(spec.kind, default_cache()));
        break;
      case SandboxKind::kProcess:
        report = run_as_process(spec);
        break;
    }
  } catch (const std::exception& e) {
    report = engine_failure(e.what());
  }
  std::ofstream out(spec.report);
  out << report.to_json().dump() << "\n";
  if (!out.flush()) throw Error(ErrorCode::kInternal, spec.report.string() + ": cannot be written");
  return report;
}

}  // namespace patchbench::exec
