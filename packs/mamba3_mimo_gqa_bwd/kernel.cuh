#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// Per-head gradients of the Mamba-3 MIMO backward summed over the heads of a group, and over all
/// tokens for the biases. No framework header: raw pointers and a stream.
///
///   grad[row, r, g, n]   = sum_{h in group g} raw[row, r, h, n]        group g: heads g H/G ... +
///   H/G - 1 grad_bias[h, r, n]   = sum_row raw[row, r, h, n]                   row runs over batch
///   x seqlen
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

constexpr int64_t kMaxGroupHeads = 256;  ///< heads of a group that the reduction serves

enum class ElementType { kFloat32, kBFloat16, kFloat16 };

/// Both tensors of one call. All pointers are of one device, contiguous and 16-byte aligned (the
/// kernel reads 16-byte words); nothing is owned.
struct GroupReduce {
  const void* raw[2] = {nullptr, nullptr};  ///< dq, dk: [rows, num_ranks, num_heads, head_dim]
  void* grad[2] = {nullptr, nullptr};       ///< [rows, num_ranks, num_groups, head_dim]
  float* partial = nullptr;  ///< scratch [2, num_row_blocks, num_heads, num_ranks, head_dim]
  float* grad_bias[2] = {nullptr, nullptr};  ///< [num_heads, num_ranks, head_dim]
  int64_t rows = 0, num_ranks = 0, num_heads = 0, num_groups = 0, head_dim = 0;
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// How many blocks of rows a problem is cut into on a device of `num_processors` multiprocessors:
/// the first extent of `partial`.
int64_t num_row_blocks(const GroupReduce& problem, int num_processors);
/// Whether the kernel serves these extents: rows, head_dim a multiple of 8, at most 256 heads a
/// group.
bool is_served(const GroupReduce& problem);
/// Two launches: each raw element is read once, sums in float32 in a fixed order, no atomics.
/// Bitwise deterministic on one kind of device; capturable. Returns the launches' status.
cudaError_t launch_group_reduce(const GroupReduce& problem, ElementType type, int num_processors,
                                cudaStream_t stream);
#endif

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
