#pragma once
#include <cuda_runtime.h>

#include <cstdint>

/// The launch of a kernel with dynamic shared memory.
namespace patchbench::ops {

struct LaunchShape {
  dim3 grid, threads;
  int64_t bytes = 0;  ///< dynamic shared memory of a CTA
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;  ///< CTAs in a cluster, along x
};

/// Starts `kernel`. Without the attribute CUDA refuses more than 48 KiB. Returns the first status
/// that is not a success.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), const LaunchShape& shape,
                          const Arguments&... arguments) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.bytes));
  if (status != cudaSuccess) return status;
  // Not __cluster_dims__ at the kernel: nvcc refuses it for compute_80, whose code is built, too.
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster, 1, 1};
  const cudaLaunchConfig_t config{.gridDim = shape.grid,
                                  .blockDim = shape.threads,
                                  .dynamicSmemBytes = static_cast<size_t>(shape.bytes),
                                  .stream = shape.stream,
                                  .attrs = &cluster,
                                  .numAttrs = shape.cluster > 1 ? 1u : 0u};
  cudaLaunchKernelEx(&config, kernel, arguments...);
  return cudaGetLastError();
}

}  // namespace patchbench::ops
