#include "exec/process_sandbox.h"

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "exec/engine.h"
#include "exec/limited.h"
#include "exec/process.h"
#include "exec/spawn.h"

namespace patchbench::exec {
namespace {

/// Inside paths as host paths; the longest mount that holds a path wins.
class PathMap {
 public:
  explicit PathMap(std::vector<Mount> mounts) : mounts_(std::move(mounts)) {
    std::stable_sort(mounts_.begin(), mounts_.end(), [](const Mount& a, const Mount& b) {
      return a.inside.size() > b.inside.size();
    });
  }

  std::string path(const std::string& inside) const {
    for (const Mount& mount : mounts_) {
      if (inside == mount.inside || inside.starts_with(mount.inside + "/")) {
        return std::filesystem::absolute(mount.host).string() + inside.substr(mount.inside.size());
      }
    }
    return inside;
  }

  /// Each part between colons on its own, as in PYTHONPATH.
  std::string list(const std::string& value) const {
    std::string mapped;
    std::size_t begin = 0;
    for (;;) {
      const std::size_t end = value.find(':', begin);
      mapped += path(value.substr(begin, end - begin));
      if (end == std::string::npos) return mapped;
      mapped += ':';
      begin = end + 1;
    }
  }

 private:
  std::vector<Mount> mounts_;
};

}  // namespace

SandboxReport run_as_process(const SandboxSpec& spec) {
  prepare_mounts(spec, Ownership::kKeep);
  const PathMap map(spec.mounts);
  SpawnRequest request;
  for (const std::string& word : spec.argv) request.argv.push_back(map.path(word));
  const std::string program = find_program(request.argv.at(0));
  if (program.empty()) return engine_failure(request.argv[0] + ": not found on PATH");
  request.argv[0] = program;
  for (const auto& [name, value] : spec.env) request.env.push_back(name + "=" + map.list(value));
  request.cwd = map.path(spec.cwd);
  request.own_session = true;
  request.death_signal = SIGKILL;
  request.no_new_privileges = true;
  return run_limited(spec, std::move(request));
}

}  // namespace patchbench::exec
