#include "harness/cuda_half.h"

#include <dlfcn.h>
#include <link.h>
#include <torch/cuda.h>

#include <filesystem>

#include "harness/answer.h"

namespace patchbench::harness {
namespace {

/// Why libtorch_cuda cannot be loaded, or "". The two halves are of one build of torch: no other
/// folder is looked into by that name.
std::string load_cuda_half() {
  constexpr const char* kHalf = "libtorch_cuda.so";
  if (::dlopen(kHalf, RTLD_NOW | RTLD_NOLOAD) != nullptr) return "";
  void* cpu_half = ::dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (cpu_half == nullptr || ::dlinfo(cpu_half, RTLD_DI_LINKMAP, &map) != 0)
    return "libtorch_cpu.so is not a library of this process";
  const std::filesystem::path file = std::filesystem::path(map->l_name).parent_path() / kHalf;
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
  return printable(::dlerror(), 200);
}

}  // namespace

bool has_cuda_ops() {
#ifdef PATCHBENCH_CUDA
  return true;
#else
  return false;
#endif
}

std::string why_not_on(const std::string& device) {
  if (device == "cpu") return "";
  if (std::string why = load_cuda_half(); !why.empty()) return why;
  const auto index = std::stoi(device.substr(5));
  if (torch::cuda::is_available() && index < static_cast<int>(torch::cuda::device_count()))
    return "";
  return "torch finds no " + device;
}

}  // namespace patchbench::harness
