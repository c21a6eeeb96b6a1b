#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

#include "kernel.cuh"

/// The Mamba-3 MIMO backward up to the sum over a group's heads, which kernel.cuh's reduction
/// makes. No framework header: raw pointers and a stream. Formulas: op.h.
namespace patchbench::ops::mamba3_mimo_gqa_bwd {

/// One call, bfloat16. All pointers are of one device, contiguous and 16-byte aligned; nothing is
/// owned. b, s, r, g, h, n, p: batch, seqlen, num_ranks, num_groups, num_heads, head_dim_qk,
/// head_dim_v; low: bfloat16.
struct MimoBackward {
  const void *q = nullptr, *k = nullptr;             ///< [b, s, r, g, n] low
  const void* v = nullptr;                           ///< [b, s, h, p] low
  const void* z = nullptr;                           ///< as v; may be null, then mimo_z is
  const void* grad_out = nullptr;                    ///< as v; without mimo_o [b, s, r, h, p]
  const void* trap = nullptr;                        ///< [b, h, s] low, or float with has_wide_trap
  const float *adt = nullptr, *dt = nullptr;         ///< [b, h, s]
  const float *q_bias = nullptr, *k_bias = nullptr;  ///< [h, r, n]
  const float *mimo_v = nullptr, *mimo_z = nullptr, *mimo_o = nullptr;  ///< [h, r, p]
  const float* angles = nullptr;                                        ///< [b, s, h, a]
  const float* d = nullptr;                                             ///< [h]; may be null
  const int32_t* cu_seqlens = nullptr;  ///< [num_sequences + 1]; null where rows are the sequences
  void *grad_v = nullptr, *grad_z = nullptr, *grad_trap = nullptr;               ///< as v, z, trap
  float *grad_adt = nullptr, *grad_dt = nullptr;                                 ///< [b, h, s]
  float *grad_mimo_v = nullptr, *grad_mimo_z = nullptr, *grad_mimo_o = nullptr;  ///< [h, r, p]
  float *grad_angles = nullptr, *grad_d = nullptr;                               ///< as theirs
  void *raw_q = nullptr, *raw_k = nullptr;  ///< scratch [b, s, r, h, n] low: gradients per head
  /// Scratch [num_chunks, h, p, n] low, rows split and columns exchanged: first what a chunk adds,
  /// then S0 and dS.
  void *states = nullptr, *grad_states = nullptr;
  float* decays = nullptr;  ///< scratch [num_chunks, h]: e^{cs_end}
  /// Scratch, num_partials() for each chunk and head: [num_chunks, h, 2, num_sums()], then of d
  /// [num_chunks, h].
  float* partials = nullptr;
  float *grad_steps = nullptr, *grad_own = nullptr;  ///< scratch [b, h, s]: of s_t and of gam_t
  /// Scratch, only with cu_seqlens: [num_chunks, 4], first token and length of each chunk, whether
  /// it is its sequence's first, and that sequence's end; [num_sequences + 1], chunks before each.
  int32_t *spans = nullptr, *first_chunks = nullptr;
  int64_t batch = 0, seqlen = 0, num_ranks = 0, num_groups = 0, num_heads = 0, head_dim_qk = 0,
          head_dim_v = 0, num_angles = 0;
  int64_t num_chunks = 0;     ///< packed: a bound, num_sequences + seqlen / chunk_tokens()
  int64_t num_sequences = 0;  ///< batch without cu_seqlens
  bool has_wide_trap = false;

  constexpr int64_t chunk_tokens() const { return num_ranks == 0 ? 64 : 64 / num_ranks; }
  /// Sums over a chunk's tokens: mimo_z, mimo_o, mimo_v.
  constexpr int64_t num_sums() const { return 3 * num_ranks * head_dim_v; }
  /// Floats of a chunk and head: two parts of each sum, and d.
  constexpr int64_t num_partials() const { return 2 * num_sums() + 1; }
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// Whether the kernels serve these extents: 1, 2, 4 or 8 ranks, head dims 64 or 128, any tokens at
/// all, and grids that fit.
bool is_served(const MimoBackward& problem);
/// Shared memory in bytes that the largest kernel of this problem needs of a CTA.
int64_t shared_bytes(const MimoBackward& problem);
/// Everything but the sum over a group's heads and the biases: those are group_reduce's of raw_q
/// and raw_k. No atomics, sums in float32 in a fixed order. Bitwise deterministic, no host
/// synchronisation. Returns the launches' status.
cudaError_t launch_mimo_backward(const MimoBackward& problem, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
