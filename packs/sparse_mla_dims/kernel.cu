#include "kernel.cuh"

#include <algorithm>
#include <limits>

// The primitives that the others are written over come first.
#include "../kernel/sm90/wgmma.cuh"

#include "sm90_backward.h"
#include "sm90_forward.h"

// sm_90a only. The head of each file says what its kernel does. Limits, checked in op.cpp:
// head_dim_qk at most 576, head_dim_v at most 512, multiples of 16; is_launchable.
namespace patchbench::ops::sparse_mla_dims {
namespace {

constexpr int64_t kSharedMax = 227 * 1024;
static_assert(forward_bytes(576) <= kSharedMax && backward_bytes(576, 512) <= kSharedMax,
              "a CTA of sm_90 has 227 KiB");

template <int kHalf>
__global__ void __launch_bounds__(kForwardThreads, 1)
    sparse_mla_forward_kernel(SparseMla problem, SparseMlaResults results) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  forward_cta<kHalf>(problem, results, Items{blockIdx.x, gridDim.x}, storage);
#endif
}

template <int kBlocks>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    sparse_mla_backward_kernel(SparseMla problem, SparseMlaGrads grads) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  backward_cta(Operands<kBlocks>(problem, grads, Cta(problem, blockIdx.x), storage));
#endif
}

constexpr int kStoreThreads = 256;

__global__ void __launch_bounds__(kStoreThreads)
    sparse_mla_store_grad_kv_kernel(SparseMlaGrads grads, int64_t num_groups) {
#if __CUDA_ARCH__ >= 900
  const int64_t group = int64_t{blockIdx.x} * kStoreThreads + threadIdx.x;
  if (group < num_groups) store_grad_kv(grads, group);
#endif
}

template <typename Argument>
cudaError_t launch(void (*kernel)(SparseMla, Argument), const SparseMla& problem,
                   const Argument& argument, int64_t grid, int64_t bytes, cudaStream_t stream) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  static_assert(kForwardThreads == kBackwardThreads, "one launch for both");
  kernel<<<static_cast<unsigned>(grid), kForwardThreads, bytes, stream>>>(problem, argument);
  return cudaGetLastError();
}

}  // namespace

int64_t shared_bytes(int64_t head_dim_qk, int64_t head_dim_v) {
  const int qk = static_cast<int>(head_dim_qk), v = static_cast<int>(head_dim_v);
  return std::max(forward_bytes(qk), backward_bytes(qk, v));
}

bool is_launchable(int64_t batch, int64_t seqlen_q, int64_t num_heads) {
  return num_items({.batch = batch, .seqlen_q = seqlen_q, .num_heads = num_heads}) <=
         std::numeric_limits<int32_t>::max();
}

cudaError_t launch_forward(const SparseMla& problem, const SparseMlaResults& results,
                           cudaStream_t stream) {
  if (num_items(problem) == 0) return cudaSuccess;
  int64_t grid = 0;
  const cudaError_t status = sm90::persistent_grid(num_items(problem), grid);
  if (status != cudaSuccess) return status;
  constexpr decltype(&sparse_mla_forward_kernel<1>) kKernels[] = {
      sparse_mla_forward_kernel<1>, sparse_mla_forward_kernel<2>, sparse_mla_forward_kernel<3>,
      sparse_mla_forward_kernel<4>};
  return launch(kKernels[(num_blocks(problem.head_dim_v) - 1) / 2], problem, results, grid,
                forward_bytes(problem.head_dim_qk), stream);
}

cudaError_t launch_backward(const SparseMla& problem, const SparseMlaGrads& grads,
                            cudaStream_t stream) {
  const int64_t num_groups =
      problem.batch * problem.seqlen_k * (problem.head_dim_qk / kGroupColumns);
  if (num_groups == 0 && num_items(problem) == 0) return cudaSuccess;
  constexpr decltype(&sparse_mla_backward_kernel<1>) kKernels[] = {
      sparse_mla_backward_kernel<1>, sparse_mla_backward_kernel<2>, sparse_mla_backward_kernel<3>,
      sparse_mla_backward_kernel<4>, sparse_mla_backward_kernel<5>, sparse_mla_backward_kernel<6>,
      sparse_mla_backward_kernel<7>, sparse_mla_backward_kernel<8>, sparse_mla_backward_kernel<9>};
  cudaError_t status = cudaSuccess;
  if (num_items(problem) > 0)
    status =
        launch(kKernels[num_blocks(problem.head_dim_qk) - 1], problem, grads, num_items(problem),
               backward_bytes(problem.head_dim_qk, problem.head_dim_v), stream);
  if (status != cudaSuccess || num_groups == 0 || grads.grad_kv == nullptr) return status;
  const auto grid = static_cast<unsigned>((num_groups + kStoreThreads - 1) / kStoreThreads);
  sparse_mla_store_grad_kv_kernel<<<grid, kStoreThreads, 0, stream>>>(grads, num_groups);
  return cudaGetLastError();
}

}  // namespace patchbench::ops::sparse_mla_dims
