#pragma once
#include <algorithm>
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

/// How many chunks a CTA of sm_90's kernel should take on a GPU that holds `num_slots` of its CTAs:
/// all of a row's, where whole rows fill three quarters of the GPU.
inline int64_t chunks_per_slot(const SisoBackward& problem, int64_t num_slots) {
  const int64_t rows = std::max<int64_t>(problem.batch * problem.num_heads, 1);
  const int64_t num_chunks = std::max<int64_t>(problem.num_chunks, 1);
  // Whole rows need no scan: worth a wave that fills three quarters of the GPU.
  const int64_t waves = (rows + num_slots - 1) / num_slots;
  if (problem.cu_seqlens == nullptr && 4 * rows >= 3 * waves * num_slots) return num_chunks;
  const int64_t segments = rows < num_slots ? num_slots / rows : 4;
  return std::max<int64_t>((num_chunks + segments - 1) / segments, 1);
}

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// Whether the kernels serve these extents: both head dims 32, 64 or 128, and a grid that fits.
bool is_served(const SisoBackward& problem);
/// Shared memory in bytes that the larger kernel of this problem needs of a CTA.
int64_t shared_bytes(const SisoBackward& problem);
/// Whether sm_90's kernel serves these: bfloat16, both head dims 64 or 128.
bool is_walked(const SisoBackward& problem, ElementType type);
/// chunks_per_slot on a GPU of `num_processors` multiprocessors.
int64_t chunks_per_cta(const SisoBackward& problem, int64_t num_processors);
/// That kernel, behind the scan.
cudaError_t launch_walk(const SisoBackward& problem, cudaStream_t stream);
/// The scan over chunks, if there is one, then the walk or one CTA per chunk and head.
/// No atomics, sums in float32 in a fixed order. Bitwise deterministic; capturable. Returns the
/// launches' status.
cudaError_t launch_siso_backward(const SisoBackward& problem, ElementType type,
                                 int64_t num_processors, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
