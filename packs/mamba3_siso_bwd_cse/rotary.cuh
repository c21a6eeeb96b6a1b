#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// The backward of the steps before the scan: bias, rotation, scale and angles. No framework
/// header: raw pointers and a stream. Formulas: rotary.h.
namespace patchbench::ops::mamba3_siso_bwd_cse {

/// One call. All pointers are of one device, contiguous and 16-byte aligned; nothing is owned. b,
/// s, g, h, n, r: batch, seqlen, num_groups, num_heads, head_dim_qk, num_angles; bf: bfloat16.
struct RotaryBackward {
  const void *q = nullptr, *k = nullptr;                           ///< [b, s, g, n] bf
  const float *q_bias = nullptr, *k_bias = nullptr;                ///< [h, n]
  const void *angles = nullptr, *angles_cumsum = nullptr;          ///< [b, s, h, r] bf
  const float *dt = nullptr, *trap = nullptr;                      ///< [b, h, s]
  const void *grad_q_rotated = nullptr, *grad_k_scaled = nullptr;  ///< [b, s, h, n] bf
  const float* grad_qk_dot = nullptr;                              ///< [b, h, s]
  void *grad_q = nullptr, *grad_k = nullptr;                       ///< as q, k
  float *grad_q_bias = nullptr, *grad_k_bias = nullptr;            ///< as q_bias, k_bias
  void* grad_angles = nullptr;                                     ///< as angles
  float *grad_dt = nullptr, *grad_trap = nullptr;                  ///< as dt, trap
  /// Scratch: gradients of angles_cumsum [b, s, h, r], of scale and of gamma [b, h, s], and each
  /// block's sums over its tokens, [b, blocks, h, 2 n + r]: of the bias gradients and of the first.
  float *grad_cumsum = nullptr, *grad_scale = nullptr, *grad_gamma = nullptr, *sums = nullptr;
  int64_t batch = 0, seqlen = 0, num_groups = 0, num_heads = 0, head_dim_qk = 0, num_angles = 0;
  int64_t block_tokens = 0, num_blocks = 0;  ///< of a row; block_tokens is a multiple of 32
};

/// Tokens of a block, so that the blocks fill a GPU of `num_processors` multiprocessors, each of
/// which holds two CTAs: 128, 64, or 32 where those are too few.
inline int64_t rotary_block_tokens(const RotaryBackward& problem, int64_t num_processors) {
  for (const int64_t tokens : {128, 64}) {
    const int64_t blocks = (problem.seqlen + tokens - 1) / tokens;
    if (problem.num_groups * problem.batch * blocks >= 3 * 2 * num_processors) return tokens;
  }
  return 32;
}

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// Whether the kernels serve these extents: head_dim_qk 64 or 128, num_angles a quarter or a half
/// of it, at most 64 heads a group, and rows that 27 bits count.
bool is_rotary_served(const RotaryBackward& problem);
/// Shared memory in bytes that the largest kernel of this problem needs of a CTA.
int64_t rotary_shared_bytes(const RotaryBackward& problem);
/// Three kernels: all that is of one token, sums over blocks, the angles' reverse sum. No atomics,
/// sums in float32 in a fixed order. Bitwise deterministic; capturable. Returns the launches'
/// status.
cudaError_t launch_rotary_backward(const RotaryBackward& problem, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
