#pragma once
#include <filesystem>
#include <vector>

namespace patchbench::exec {

/// The device nodes a CUDA process opens: /dev/nvidia* and what lies in /dev/nvidia-caps.
std::vector<std::filesystem::path> gpu_device_nodes();

/// The driver's shared objects as the dynamic linker finds them on this machine (libcuda,
/// libnvidia-*), for an image that has none.
std::vector<std::filesystem::path> gpu_driver_libraries();

/// Where an image that has no driver finds those libraries. Its linker cache does not know them and
/// LD_LIBRARY_PATH is the subject's, so they lie in its own library folder; Triton, which asks that
/// cache, is told by TRITON_LIBCUDA_PATH.
inline constexpr const char* kDriverFolder = "/usr/lib/x86_64-linux-gnu";
inline constexpr const char* kDriverFolderVariable = "TRITON_LIBCUDA_PATH";

/// Whether a CDI specification of `nvidia.com/gpu` is registered.
bool has_gpu_cdi();

}  // namespace patchbench::exec
