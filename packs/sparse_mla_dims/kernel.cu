#include "kernel.cuh"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "../kernel/launch.cuh"
// The primitives that the others are written over come first.
#include "../kernel/sm90/wgmma.cuh"

#include "sm90_cluster_backward.h"
#include "sm90_forward.h"
#include "sm90_scaled_backward.h"
#include "sm90_working_set.h"

// sm_90a only. The head of each file says what its kernel does. Limits, checked in op.cpp:
// head_dim_qk at most 576, head_dim_v at most 512, multiples of 16; is_launchable.
namespace patchbench::ops::sparse_mla_dims {
namespace {

constexpr int64_t kSharedMax = 227 * 1024;
static_assert(forward_bytes(576) <= kSharedMax && backward_bytes(576, 512) <= kSharedMax &&
                  kClusterBytes <= kSharedMax && kScaledBytes <= kSharedMax,
              "a CTA of sm_90 has 227 KiB");

template <int kHalf>
__global__ void __launch_bounds__(kForwardThreads, 1)
    sparse_mla_forward_kernel(SparseMla problem, SparseMlaResults results) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  forward_cta<kHalf>(problem, results, Items{blockIdx.x, gridDim.x}, storage);
#endif
}

/// What SparseMlaGrads::choice says: which kernel of two computes the backward.
enum Choice : int32_t { kOneCta, kCluster };

__global__ void __launch_bounds__(kCountThreads)
    sparse_mla_choose_kernel(SparseMla problem, SparseMlaGrads grads, int64_t num_queries,
                             int64_t l2_bytes) {
#if __CUDA_ARCH__ >= 900
  __shared__ PageSet pages;
  const int64_t num_keys = count_named_keys(problem, num_queries, pages);
  if (threadIdx.x == 0)
    *grads.choice = uses_cluster(problem, num_keys, l2_bytes) ? kCluster : kOneCta;
#endif
}

template <int kBlocks, int kHeadSteps>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    sparse_mla_backward_kernel(SparseMla problem, SparseMlaGrads grads) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  if (grads.choice != nullptr && *grads.choice != kOneCta) return;
  backward_cta(Operands<kBlocks, kHeadSteps>(problem, grads, Cta(problem, blockIdx.x), storage));
#endif
}

template <int kHeadSteps>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    sparse_mla_scaled_backward_kernel(SparseMla problem, SparseMlaGrads grads,
                                      SparseMlaScales scales) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  backward_cta(
      ScaledOperands<kHeadSteps>(problem, grads, scales, Cta(problem, blockIdx.x), storage));
#endif
}

template <int kRest>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    sparse_mla_cluster_backward_kernel(SparseMla problem, SparseMlaGrads grads) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char storage[];
  if (*grads.choice != kCluster) return;
  cluster_backward_cta<kRest>(problem, grads, blockIdx.x / kClusterCtas, storage);
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

using BackwardKernel = void (*)(SparseMla, SparseMlaGrads);

/// The kernels of a number of head steps, by blocks of q.
template <int kHeadSteps, int... kIndices>
constexpr std::array<BackwardKernel, kMaxBlocks> backward_kernels(
    std::integer_sequence<int, kIndices...> /*blocks*/) {
  return {sparse_mla_backward_kernel<kIndices + 1, kHeadSteps>...};
}

/// The place in a table of kernels for head_steps 1, 2 and 4.
int head_steps_place(int64_t num_heads) { return head_steps(num_heads) / 2; }

BackwardKernel backward_kernel(int64_t num_heads, int blocks) {
  constexpr std::make_integer_sequence<int, kMaxBlocks> kBlocks;
  static constexpr std::array kKernels = {
      backward_kernels<1>(kBlocks), backward_kernels<2>(kBlocks), backward_kernels<4>(kBlocks)};
  return kKernels[head_steps_place(num_heads)][blocks - 1];
}

/// The L2 of the current device.
cudaError_t l2_bytes_of_device(int64_t& bytes) {
  int device = 0, value = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, device);
  bytes = value;
  return status;
}

/// Where all of kv and grad_kv fit into L2, the kernel of one CTA. Else the indices decide, on the
/// device: both kernels are launched, and one of them returns at once.
cudaError_t launch_chosen(const SparseMla& problem, SparseMlaGrads grads, cudaStream_t stream) {
  constexpr BackwardKernel kClusterKernels[] = {sparse_mla_cluster_backward_kernel<0>,
                                                sparse_mla_cluster_backward_kernel<kColumns / 2>};
  int64_t l2_bytes = 0;
  cudaError_t status = l2_bytes_of_device(l2_bytes);
  if (status != cudaSuccess) return status;
  const int blocks = num_blocks(problem.head_dim_qk);
  if (uses_cluster(problem, problem.seqlen_k, l2_bytes)) {
    const int64_t num_ctas = kClusterCtas * num_items(problem, kClusterHeads);
    int64_t ctas_at_once = 0;
    status = sm90::persistent_grid(num_ctas, ctas_at_once);
    if (status != cudaSuccess) return status;
    sparse_mla_choose_kernel<<<1, kCountThreads, 0, stream>>>(
        problem, grads, ctas_at_once / kClusterCtas, l2_bytes);
    status = cudaGetLastError();
    if (status == cudaSuccess)
      status = launch_kernel(kClusterKernels[blocks - 2 * kValueBlocks],
                             {.grid = static_cast<unsigned>(num_ctas),
                              .threads = kBackwardThreads,
                              .bytes = kClusterBytes,
                              .stream = stream,
                              .cluster = kClusterCtas},
                             problem, grads);
    if (status != cudaSuccess) return status;
  } else {
    grads.choice = nullptr;
  }
  return launch_kernel(backward_kernel(problem.num_heads, blocks),
                       {.grid = static_cast<unsigned>(num_items(problem)),
                        .threads = kBackwardThreads,
                        .bytes = backward_bytes(problem.head_dim_qk, problem.head_dim_v),
                        .stream = stream},
                       problem, grads);
}

cudaError_t launch_scaled(const SparseMla& problem, const SparseMlaGrads& grads,
                          const SparseMlaScales& scales, cudaStream_t stream) {
  constexpr decltype(&sparse_mla_scaled_backward_kernel<1>) kKernels[] = {
      sparse_mla_scaled_backward_kernel<1>, sparse_mla_scaled_backward_kernel<2>,
      sparse_mla_scaled_backward_kernel<4>};
  return launch_kernel(kKernels[head_steps_place(problem.num_heads)],
                       {.grid = static_cast<unsigned>(num_items(problem)),
                        .threads = kBackwardThreads,
                        .bytes = kScaledBytes,
                        .stream = stream},
                       problem, grads, scales);
}

}  // namespace

int64_t shared_bytes(int64_t head_dim_qk, int64_t head_dim_v) {
  const int qk = static_cast<int>(head_dim_qk), v = static_cast<int>(head_dim_v);
  return std::max(
      {forward_bytes(qk), backward_bytes(qk, v), has_cluster_kernel(qk, v) ? kClusterBytes : 0});
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
  return launch_kernel(kKernels[(num_blocks(problem.head_dim_v) - 1) / 2],
                       {.grid = static_cast<unsigned>(grid),
                        .threads = kForwardThreads,
                        .bytes = forward_bytes(problem.head_dim_qk),
                        .stream = stream},
                       problem, results);
}

cudaError_t launch_backward(const SparseMla& problem, const SparseMlaGrads& grads,
                            const SparseMlaScales& scales, cudaStream_t stream) {
  const int64_t num_groups =
      problem.batch * problem.seqlen_k * (problem.head_dim_qk / kGroupColumns);
  const bool is_scaled = scales.q != nullptr || scales.kv != nullptr;
  const cudaError_t status = num_items(problem) == 0 ? cudaSuccess
                             : is_scaled             ? launch_scaled(problem, grads, scales, stream)
                                                     : launch_chosen(problem, grads, stream);
  if (status != cudaSuccess || num_groups == 0 || grads.grad_kv == nullptr) return status;
  const auto grid = static_cast<unsigned>((num_groups + kStoreThreads - 1) / kStoreThreads);
  sparse_mla_store_grad_kv_kernel<<<grid, kStoreThreads, 0, stream>>>(grads, num_groups);
  return cudaGetLastError();
}

}  // namespace patchbench::ops::sparse_mla_dims
