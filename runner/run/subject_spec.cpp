#include "run/subject_spec.h"

#include <fmt/format.h>

#include <fstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_text.h"
#include "run/names.h"

namespace patchbench {
namespace {

namespace fs = std::filesystem;

fs::path ops_library(const Context& context) {
  return context.bin.parent_path() / "lib/libpatchbench_ops.so";
}

/// Whether the subject is given the ops. A named mode may need them; without a name the mitigation
/// is judged without them, in its plain form.
bool has_ops(const Context& context, const Subject& subject) {
  return subject == SubjectKind::kMitigated && !subject.mode().empty() &&
         fs::exists(ops_library(context));
}

/// "/.pb/env-1/z3/lib:": a library that a wheel links by a path next to its own is found by name
/// where the two lie in different folders.
std::string libraries_of(const fs::path& site, const std::string& at) {
  std::string folders;
  for (const auto& package : fs::directory_iterator(site)) {
    if (fs::is_directory(package.path() / "lib"))
      folders += at + "/" + package.path().filename().string() + "/lib:";
  }
  return folders;
}

}  // namespace

void write_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) throw Error(ErrorCode::kInternal, path.string() + ": cannot be written");
}

std::vector<git::Checkout> check_out(const Context& context, const Setup& setup,
                                     const Subject& subject, const std::vector<Edit>& edits,
                                     RunContext& run) {
  std::vector<git::Checkout> checkouts;
  // The liar calls no upstream: an op's run then fetches none.
  if (setup.target.pin && subject != SubjectKind::kLiar) {
    git::Store store(context.cache, context.root);
    checkouts.push_back(store.materialize(*setup.target.pin, edits));
    run.tree = checkouts.front().tree;
    run.files = git::Store::digests(checkouts.front(), setup.target.upstream.files);
    for (const Pin& other : setup.target.companions) {
      checkouts.push_back(store.materialize(other, {}));
      run.files.update(git::Store::digests(
          checkouts.back(), upstream_use(setup.target.manifest, other.upstream).files));
    }
  } else if (!setup.target.pin) {
    if (!edits.empty())
      throw Error(ErrorCode::kUsage,
                  "an installed stack (--python) is judged as it is: it takes no edits");
    run.files = setup.files;
  }
  if (has_ops(context, subject))
    run.sandbox.add_given("ops_sha256", sha256_hex(read_file(ops_library(context))));
  return checkouts;
}

exec::SandboxSpec sandbox_spec(const Context& context, const Setup& setup, const Subject& subject,
                               const std::vector<git::Checkout>& checkouts,
                               const fs::path& folder) {
  exec::SandboxSpec spec;
  spec.kind = setup.sandbox;
  spec.image = setup.image;
  spec.python = setup.python;
  const std::string slug = setup.target.manifest.slug.str();
  const std::string work = spec.cwd;
  spec.argv = {setup.python, "/.pb/harness/subject_runtime.py", "/.pb/subject/subject.py", work};
  if (subject == SubjectKind::kLiar)
    spec.argv = {setup.python, "/.pb/harness/lying_subject.py", work};
  spec.mounts = {{folder / "work", work, true},
                 {context.root / "repro/harness", "/.pb/harness", false},
                 {context.root / "repro" / slug, "/.pb/subject", false}};
  std::string path;
  for (const git::Checkout& checkout : checkouts) {
    const auto idx = &checkout - checkouts.data();
    const std::string at = idx == 0 ? "/.pb/upstream" : fmt::format("/.pb/upstream-{}", idx);
    spec.mounts.push_back({checkout.path, at, false});
    const std::string inner = fs::relative(checkout.package, checkout.path).generic_string();
    path += (path.empty() ? "" : ":") + (inner == "." ? at : at + "/" + inner);
  }
  std::string libraries;
  for (const fs::path& site : setup.environment.sites) {
    const auto idx = &site - setup.environment.sites.data();
    const std::string at = idx == 0 ? "/.pb/env" : "/.pb/env-" + std::to_string(idx);
    spec.mounts.push_back({site, at, false});
    path += (path.empty() ? "" : ":") + at;
    if (setup.environment.sites.size() > 1) libraries += libraries_of(site, at);
  }
  spec.env = {
      {"HOME", work + "/home"},  {"TMPDIR", work + "/tmp"}, {"TRITON_CACHE_DIR", work + "/triton"},
      {"PATH", "/usr/bin:/bin"}, {"LANG", "C.UTF-8"},       {"PYTHONDONTWRITEBYTECODE", "1"},
      {"OMP_NUM_THREADS", "2"},  {"PYTHONHASHSEED", "0"}};
  if (!libraries.empty()) spec.env["LD_LIBRARY_PATH"] = libraries;
  if (subject == SubjectKind::kMitigated) {
    spec.mounts.push_back({context.root / "mitigations", "/.pb/mitigations", false});
    path += (path.empty() ? "" : ":") + std::string("/.pb/mitigations");
    spec.env["PATCHBENCH_MITIGATE"] = slug + (subject.mode().empty() ? "" : ":" + subject.mode());
    spec.env["PATCHBENCH_FORCE"] = slug;
    if (has_ops(context, subject)) {
      spec.mounts.push_back({ops_library(context).parent_path(), "/.pb/ops", false});
      spec.env["PATCHBENCH_OPS_LIB"] = "/.pb/ops/" + ops_library(context).filename().string();
    }
  }
  spec.env["PYTHONPATH"] = path;
  spec.env["PATCHBENCH_UPSTREAM"] = setup.target.upstream.name;
  spec.wants_gpu = setup.target.device.is_gpu();
  if (!spec.wants_gpu) spec.env["TRITON_INTERPRET"] = "1";
  const StepLimits limits = limits_on(setup.target.device);
  spec.timeout_s = limits.timeout_s;
  spec.memory_bytes = limits.memory_bytes;
  spec.max_processes = limits.max_processes;
  spec.log = folder / "subject.log";
  spec.report = folder / "sandbox.json";
  return spec;
}

}  // namespace patchbench
