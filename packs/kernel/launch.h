#pragma once
#ifdef PATCHBENCH_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "checks.h"

/// What a launch needs of torch and of CUDA's runtime: the stream, facts of the device, and the
/// launch's status.
namespace patchbench::ops {

/// A function of libtorch_cuda, which is loaded wherever a tensor is on a GPU. The library does not
/// link it, so that it also loads into a torch without CUDA.
template <typename Function>
Function* torch_cuda_function(const char* name) {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* found = library == nullptr ? nullptr : dlsym(library, name);
  PB_CHECK(found != nullptr, "patchbench_ops: libtorch_cuda.so has no function ", name);
  return reinterpret_cast<Function*>(found);
}

/// torch's current stream of the tensor's GPU.
inline cudaStream_t current_stream(const Tensor& tensor) {
  using Getter = AOTITorchError(int32_t device, void** stream);
  static Getter* const get = torch_cuda_function<Getter>("aoti_torch_get_current_cuda_stream");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

/// Throws with the op's name and CUDA's message unless all is well.
inline void check_cuda(const char* op, cudaError_t status) {
  PB_CHECK(status == cudaSuccess, op, ": CUDA error: ", cudaGetErrorString(status));
}

/// Facts of a GPU that decide whether a kernel serves.
struct Gpu {
  int major = 0, minor = 0, num_processors = 0;
  int64_t shared_bytes = 0;  ///< that one CTA may ask for
};

inline Gpu gpu_of(const Tensor& tensor) {
  const auto fact = [&](cudaDeviceAttr which) {
    int value = 0;
    check_cuda("patchbench_ops", cudaDeviceGetAttribute(&value, which, tensor.get_device_index()));
    return value;
  };
  return {.major = fact(cudaDevAttrComputeCapabilityMajor),
          .minor = fact(cudaDevAttrComputeCapabilityMinor),
          .num_processors = fact(cudaDevAttrMultiProcessorCount),
          .shared_bytes = fact(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

}  // namespace patchbench::ops
#endif
