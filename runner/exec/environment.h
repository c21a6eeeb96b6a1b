#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench::exec {

/// Locked wheels unpacked in the cache, or an installed stack.
struct Environment {
  std::vector<std::filesystem::path>
      sites;            ///< folders for PYTHONPATH; none for a host stack that brings its own
  std::string python;   ///< kind `host`: that interpreter; else "" (the sandbox's)
  std::string address;  ///< "torch-2.11-cp311-5e7e5a2610dd" or "host:<digest of its package list>"
  Json packages;        ///< name -> version of the packages that matter (torch, triton, numpy, …)
};

/// The locks, and after them the base of each: the lock that a line `-r <name>.txt` names. Throws
/// Error(kUsage) for one that is not there.
std::vector<std::string> with_base_locks(std::vector<std::string> locks,
                                         const std::filesystem::path& root);

/// Unpacks env/locks/<name>.txt of each name and of its base for an interpreter tag through
/// env/fetch.py (network only if not cached); earlier ones shadow later ones. Throws
/// Error(kNotRunnable) with fetch.py's own line.
Environment locked_environment(const std::vector<std::string>& locks, const std::string& tag,
                               const std::filesystem::path& cache,
                               const std::filesystem::path& root);

/// `--python VENV|INTERPRETER`: the user's installed stack; asks it for its packages. Error(kUsage)
/// without an interpreter.
Environment host_environment(const std::filesystem::path& python);

/// The first folder of that name on the path that a host stack's interpreter imports from, or "".
std::filesystem::path host_folder(const Environment& environment, const std::string& name);

/// SHA-256 of each package-relative file as the interpreter of a host stack would import it
/// ("absent" where it finds none).
Json host_file_digests(const Environment& environment, const std::vector<std::string>& files);

/// What this machine is, found without torch.
struct Gpu {
  int index = 0;
  std::string name, driver, capability;  ///< capability "9.0", "" if unknown
  int64_t memory_bytes = 0;              ///< all of it; 0 if unknown
};
/// The rows that `nvidia-smi --query-gpu=index,name,driver_version,compute_cap,memory.total
/// --format=csv,noheader,nounits` prints; a row of another form is left out.
std::vector<Gpu> gpus_from_csv(const std::string& text);
/// The NVIDIA GPUs, asked once per process: nvidia-smi, else /proc/driver/nvidia.
std::vector<Gpu> find_gpus();
/// For a run record: {"device": "cpu" or "<name> (sm_<capability>)", "cpu", "os"} and a GPU's
/// "driver". `device`: "cpu" or "cuda:N".
Json describe_machine(const std::string& device);

}  // namespace patchbench::exec
