#include "kernel.cuh"

#include "../kernel/launch.cuh"
// The primitives that the others are written over come first.
#include "../kernel/sm90/wgmma.cuh"

#include "sm90_forward.h"
#include "sm90_rows_forward.h"
#include "sm90_stored_query.h"
#include "sm90_widen.h"

// sm_90a only. The head of each file says what its kernel does. Limits, checked in op.cpp: head_dim
// 576/512, batch and num_heads / 64 below 65536, seqlen_q below 2^31.
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

__global__ void __launch_bounds__(sparse_mla_dims::kForwardThreads, 1)
    sparse_mla_stored_query_forward_kernel(sparse_mla_dims::SparseMla problem,
                                           sparse_mla_dims::SparseMlaResults results,
                                           StoredQuery query) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char tiles[];
  sparse_mla_dims::forward_cta<kHeadDimV / kColumns / 2>(
      problem, results, sparse_mla_dims::Items{blockIdx.x, gridDim.x}, tiles, query);
#endif
}

template <bool kIsBlock>
__global__ void __launch_bounds__(kWidenThreads)
    sparse_mla_widen_kernel(const uint8_t* from, int64_t num_parts, uint16_t* to) {
#if __CUDA_ARCH__ >= 900
  const int64_t part = int64_t{blockIdx.x} * kWidenThreads + threadIdx.x;
  if (part >= num_parts) return;
  if constexpr (kIsBlock) {
    widen_block_part(from, part, to);
  } else {
    widen_part(from, part, to);
  }
#endif
}

}  // namespace

cudaError_t launch_forward(const SparseMla& problem, uint16_t* out, float* lse,
                           cudaStream_t stream) {
  if (num_items(problem) == 0) return cudaSuccess;
  if (problem.kv_scale != nullptr) {
    int64_t grid = 0;
    const cudaError_t status = sm90::persistent_grid(num_items(problem), grid);
    if (status != cudaSuccess) return status;
    return launch_kernel(problem.kv_scale_stride != 0 ? sparse_mla_forward_rows_kernel<true>
                                                      : sparse_mla_forward_rows_kernel<false>,
                         {.grid = static_cast<unsigned>(grid),
                          .threads = kRowsThreads,
                          .bytes = kRowsBytes,
                          .stream = stream},
                         problem, out, lse);
  }
  const dim3 grid(static_cast<unsigned>(problem.seqlen_q),
                  static_cast<unsigned>(num_groups(problem)), static_cast<unsigned>(problem.batch));
  return launch_kernel(
      problem.q_scale != nullptr ? sparse_mla_forward_kernel<Form::kBlock>
                                 : sparse_mla_forward_kernel<Form::kBlockDenseQuery>,
      {.grid = grid, .threads = kThreads, .bytes = kForwardBytes, .stream = stream}, problem, out,
      lse);
}

cudaError_t launch_stored_query_forward(const sparse_mla_dims::SparseMla& problem,
                                        const sparse_mla_dims::SparseMlaResults& results,
                                        const float* q_scale, int64_t q_scale_stride,
                                        cudaStream_t stream) {
  const int64_t num_items = sparse_mla_dims::num_items(problem);
  if (num_items == 0) return cudaSuccess;
  int64_t grid = 0;
  const cudaError_t status = sm90::persistent_grid(num_items, grid);
  if (status != cudaSuccess) return status;
  return launch_kernel(sparse_mla_stored_query_forward_kernel,
                       {.grid = static_cast<unsigned>(grid),
                        .threads = sparse_mla_dims::kForwardThreads,
                        .bytes = kStoredQueryBytes,
                        .stream = stream},
                       problem, results, StoredQuery{q_scale, q_scale_stride});
}

cudaError_t launch_widen(const uint8_t* from, int64_t num_rows, bool is_block, uint16_t* to,
                         cudaStream_t stream) {
  const int64_t parts = num_rows * (is_block ? kBlockParts : kRowParts);
  const int64_t grid = (parts + kWidenThreads - 1) / kWidenThreads;
  if (grid == 0) return cudaSuccess;
  return launch_kernel(
      is_block ? sparse_mla_widen_kernel<true> : sparse_mla_widen_kernel<false>,
      {.grid = static_cast<unsigned>(grid), .threads = kWidenThreads, .stream = stream}, from,
      parts, to);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
