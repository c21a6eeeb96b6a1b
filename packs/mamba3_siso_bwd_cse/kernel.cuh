#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// The chunked backward of the Mamba-3 SISO scan. No framework header: raw pointers and a stream.
///
///   grad_state[c-1] = e^{cs_end} grad_state[c] + sum_i e^{cs_i} grad_out_i (x) q_i       (scan)
/// and, per chunk, all the rest from q, k, v, grad_out, states[c], grad_state[c]: see op.h.
namespace patchbench::ops::mamba3_siso_bwd_cse {

enum class ElementType { kBFloat16, kFloat16 };

constexpr int64_t kChunk = 64;  ///< tokens a chunk that the kernels serve

/// One call. All pointers are of one device, contiguous and 16-byte aligned; nothing is owned. b,
/// s, h, n, p: batch, seqlen, num_heads, head_dim_qk, head_dim_v; low: the element type.
struct SisoBackward {
  const void *q = nullptr, *k = nullptr;         ///< [b, s, h, n] low
  const void *v = nullptr, *grad_out = nullptr;  ///< [b, s, h, p] low
  /// Low, chunk starts: [b, h, num_chunks, p, n], or [b, h, p, num_chunks, n] as mamba-ssm has
  /// them. Elements from a chunk to the next, and from a row of n to the next.
  const void* states = nullptr;
  int64_t state_chunk = 0, state_row = 0;
  const float *adt = nullptr, *qk_dot = nullptr;  ///< [b, h, s]
  const float* d = nullptr;                       ///< [h]; may be null
  const float* grad_final_state = nullptr;        ///< [num_sequences, h, p, n]; may be null
  const int32_t* cu_seqlens = nullptr;  ///< [num_sequences + 1]; null where rows are the sequences
  void *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;  ///< as q, k, v
  float *grad_adt = nullptr, *grad_qk_dot = nullptr;             ///< [b, h, s]
  float* grad_initial_state = nullptr;                           ///< [num_sequences, h, p, n]
  /// Whether the scan runs. Without it, and without cu_seqlens, the walk takes whole rows.
  bool has_scan = true;
  /// Scratch [b, h, num_chunks, p, n] low, of the scan: the gradient at the end of each
  /// chunks_per_cta-th chunk and of a sequence's last.
  void* grad_states = nullptr;
  /// Scratch [num_chunks, 3], first token and length of each chunk, and its index in its sequence;
  /// only with cu_seqlens.
  int32_t* chunk_spans = nullptr;
  int64_t batch = 0, seqlen = 0, num_heads = 0, head_dim_qk = 0, head_dim_v = 0;
  int64_t num_chunks = 0, num_sequences = 0;  ///< num_sequences = batch without cu_seqlens
  /// Neighbouring chunks that a CTA of sm_90's kernel walks; 0 for the portable one, a chunk a CTA.
  int64_t chunks_per_cta = 0;
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// Whether the kernels serve these extents: both head dims 32, 64 or 128, and a grid that fits.
bool is_served(const SisoBackward& problem);
/// Shared memory in bytes that the larger kernel of this problem needs of a CTA.
int64_t shared_bytes(const SisoBackward& problem);
/// Whether sm_90's kernel serves these: bfloat16, both head dims 64 or 128.
bool is_walked(const SisoBackward& problem, ElementType type);
/// How many chunks a CTA of it should take: all of a row's, where the rows fill the GPU.
int64_t chunks_per_cta(const SisoBackward& problem);
/// That kernel, behind the scan.
cudaError_t launch_walk(const SisoBackward& problem, cudaStream_t stream);
/// The scan over chunks, if there is one, then the walk or one CTA per chunk and head.
/// No atomics, sums in float32 in a fixed order. Bitwise deterministic; capturable. Returns the
/// launches' status.
cudaError_t launch_siso_backward(const SisoBackward& problem, ElementType type,
                                 cudaStream_t stream);
#endif

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
