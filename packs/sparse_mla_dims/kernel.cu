#include "kernel.cuh"

#include <algorithm>
#include <limits>

// The primitives that the others are written over come first.
#include "../sm90_warpgroup.cuh"

#include "sm90_backward.h"
#include "sm90_forward.h"

// sm_90a alone: what each kernel does stands at the head of its file. Limits, checked in op.cpp:
// head_dim_qk at most 576, head_dim_v at most 512, multiples of 16; fits_grid.
namespace patchbench::ops::sparse_mla_dims {
namespace {

constexpr int64_t kSharedMax = 227 * 1024;
static_assert(forward_bytes(576) <= kSharedMax && backward_bytes(576, 512) <= kSharedMax,
              "a CTA of sm_90 has 227 KiB");

template <int kHalf>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_forward_kernel(SparseMla problem, SparseMlaResults results) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  forward_cta<kHalf>(problem, results, Cta(problem, blockIdx.x, blockIdx.y), storage);
#endif
}

template <int kHalf>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_backward_kernel(SparseMla problem, SparseMlaGrads grads) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  backward_cta<kHalf>(problem, grads, Cta(problem, blockIdx.x, blockIdx.y), storage);
#endif
}

int64_t num_groups(int64_t num_heads) { return (num_heads + kRows - 1) / kRows; }

template <typename Argument>
cudaError_t launch(void (*kernel)(SparseMla, Argument), const SparseMla& problem,
                   const Argument& argument, int64_t bytes, cudaStream_t stream) {
  if (problem.batch * problem.seqlen_q * problem.num_heads == 0) return cudaSuccess;
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(problem.seqlen_q * num_groups(problem.num_heads)),
                  static_cast<unsigned>(problem.batch));
  kernel<<<grid, kThreads, bytes, stream>>>(problem, argument);
  return cudaGetLastError();
}

}  // namespace

int64_t shared_bytes(int64_t head_dim_qk, int64_t head_dim_v) {
  const int qk = static_cast<int>(head_dim_qk), v = static_cast<int>(head_dim_v);
  return std::max(forward_bytes(qk), backward_bytes(qk, v));
}

bool fits_grid(int64_t batch, int64_t seqlen_q, int64_t num_heads) {
  return batch <= 65535 && seqlen_q * num_groups(num_heads) <= std::numeric_limits<int32_t>::max();
}

cudaError_t launch_forward(const SparseMla& problem, const SparseMlaResults& results,
                           cudaStream_t stream) {
  constexpr decltype(&sparse_mla_forward_kernel<1>) kKernels[] = {
      sparse_mla_forward_kernel<1>, sparse_mla_forward_kernel<2>, sparse_mla_forward_kernel<3>,
      sparse_mla_forward_kernel<4>};
  return launch(kKernels[(num_blocks(problem.head_dim_v) - 1) / 2], problem, results,
                forward_bytes(problem.head_dim_qk), stream);
}

cudaError_t launch_backward(const SparseMla& problem, const SparseMlaGrads& grads,
                            cudaStream_t stream) {
  constexpr decltype(&sparse_mla_backward_kernel<1>) kKernels[] = {
      sparse_mla_backward_kernel<1>, sparse_mla_backward_kernel<2>, sparse_mla_backward_kernel<3>,
      sparse_mla_backward_kernel<4>, sparse_mla_backward_kernel<5>};
  return launch(kKernels[(num_blocks(problem.head_dim_qk) - 1) / 2], problem, grads,
                backward_bytes(problem.head_dim_qk, problem.head_dim_v), stream);
}

}  // namespace patchbench::ops::sparse_mla_dims
