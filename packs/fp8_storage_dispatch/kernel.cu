#include "kernel.cuh"

// The primitives that the others are written over come first.
#include "../kernel/sm90/wgmma.cuh"

#include "sm90_backward.h"
#include "sm90_forward.h"
#include "sm90_keys.h"
#include "sm90_rows_forward.h"

// sm_90a only. The head of each file says what its kernel does, the backward's in
// packs/kernel/sm90/mla_backward.h. Limits, checked in op.cpp: head_dim 576/512, batch and
// num_heads / 64 below 65536, seqlen_q below 2^31.
namespace patchbench::ops::fp8_storage_dispatch {
namespace {

template <Form kForm>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_forward_kernel(SparseMla problem, uint16_t* out, float* lse) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char tiles[];
  forward_cta<kForm>(problem, out, lse, Cta(problem, blockIdx.x, blockIdx.y, blockIdx.z), tiles);
#endif
}

template <bool kIsToken>
__global__ void __launch_bounds__(kRowsThreads, 1)
    sparse_mla_forward_rows_kernel(SparseMla problem, uint16_t* out, float* lse) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char tiles[];
  rows_forward_cta<kIsToken>(problem, out, lse, Items{blockIdx.x, gridDim.x}, tiles);
#endif
}

template <bool kIsBlock>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    sparse_mla_backward_kernel(SparseMla problem, SparseMlaGrads grads) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  Operands<kIsBlock> operands(problem, grads, cta_of(problem, blockIdx.x), storage);
  backward_cta(operands);
#endif
}

__global__ void __launch_bounds__(kDequantizeThreads)
    sparse_mla_dequantize_keys_kernel(SparseMla problem, uint16_t* to) {
#if __CUDA_ARCH__ >= 900
  dequantize_part(problem, int64_t{blockIdx.x} * kDequantizeThreads + threadIdx.x, to);
#endif
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, int64_t bytes,
                   cudaStream_t stream, const Arguments&... arguments) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  kernel<<<grid, threads, bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_forward(const SparseMla& problem, uint16_t* out, float* lse,
                           cudaStream_t stream) {
  if (num_items(problem) == 0) return cudaSuccess;
  if (problem.kv_scale != nullptr) {
    int64_t grid = 0;
    const cudaError_t status = sm90::persistent_grid(num_items(problem), grid);
    if (status != cudaSuccess) return status;
    return launch(problem.kv_scale_stride != 0 ? sparse_mla_forward_rows_kernel<true>
                                               : sparse_mla_forward_rows_kernel<false>,
                  static_cast<unsigned>(grid), kRowsThreads, kRowsBytes, stream, problem, out, lse);
  }
  const dim3 grid(static_cast<unsigned>(problem.seqlen_q),
                  static_cast<unsigned>(num_groups(problem)), static_cast<unsigned>(problem.batch));
  return launch(problem.q_scale != nullptr ? sparse_mla_forward_kernel<Form::kBlock>
                                           : sparse_mla_forward_kernel<Form::kBlockDenseQuery>,
                grid, kThreads, kForwardBytes, stream, problem, out, lse);
}

cudaError_t launch_dequantize_keys(const SparseMla& problem, uint16_t* to, cudaStream_t stream) {
  const int64_t parts = problem.batch * problem.seqlen_k * kKeyParts;
  const auto grid = static_cast<unsigned>((parts + kDequantizeThreads - 1) / kDequantizeThreads);
  if (grid == 0) return cudaSuccess;
  return launch(sparse_mla_dequantize_keys_kernel, grid, kDequantizeThreads, 0, stream, problem,
                to);
}

cudaError_t launch_backward(const SparseMla& problem, const SparseMlaGrads& grads,
                            cudaStream_t stream) {
  if (num_items(problem) == 0) return cudaSuccess;
  return launch(problem.kv_scale != nullptr ? sparse_mla_backward_kernel<false>
                                            : sparse_mla_backward_kernel<true>,
                static_cast<unsigned>(num_items(problem)), kBackwardThreads, kBackwardBytes, stream,
                problem, grads);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
