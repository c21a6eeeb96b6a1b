#pragma once
#include <filesystem>
#include <vector>

namespace patchbench::exec {

/// The device nodes a CUDA process opens: /dev/nvidia* and what lies in /dev/nvidia-caps.
std::vector<std::filesystem::path> gpu_device_nodes();

/// The driver's shared objects as the dynamic linker finds them on this machine (libcuda,
/// libnvidia-*), for an image that has none.
std::vector<std::filesystem::path> gpu_driver_libraries();

/// Whether a CDI specification of `nvidia.com/gpu` is registered.
bool has_gpu_cdi();

}  // namespace patchbench::exec
