#pragma once
#include <cstdint>
#ifdef PATCHBENCH_CUDA
#include <cuda_runtime_api.h>
#endif

/// Sparse multi-head latent attention on sm_90's warpgroup products. No framework header: raw
/// pointers and a stream. Formulas: op.h.
namespace patchbench::ops::sparse_mla_dims {

/// One problem. Pointers are of one device and 16-byte aligned; nothing is owned. The last axis of
/// q and kv is dense, the strides of the others are multiples of 8, all in elements; the rest is
/// contiguous.
struct SparseMla {
  const uint16_t* q = nullptr;  ///< [batch, seqlen_q, num_heads, head_dim_qk] bfloat16
  int64_t q_stride_batch = 0, q_stride_query = 0, q_stride_head = 0;
  const uint16_t* kv = nullptr;  ///< [batch, seqlen_k, head_dim_qk] bfloat16
  int64_t kv_stride_batch = 0, kv_stride_key = 0;
  const int32_t* indices = nullptr;  ///< [batch, seqlen_q, topk]
  int64_t batch = 0, seqlen_q = 0, seqlen_k = 0, num_heads = 0, topk = 0;
  int head_dim_qk = 0, head_dim_v = 0;
  float softmax_scale = 0;
};

/// What the forward gives: rows are (batch, seqlen_q, num_heads).
struct SparseMlaResults {
  uint16_t* out = nullptr;            ///< [rows, head_dim_v] bfloat16
  uint16_t* out_remainder = nullptr;  ///< [rows, head_dim_v] bfloat16; null: not wanted
  float* lse = nullptr;               ///< [rows], base 2
};

/// Inputs of the backward besides the problem, and its outputs.
struct SparseMlaGrads {
  const uint16_t* grad_out = nullptr;       ///< [rows, head_dim_v] bfloat16
  const uint16_t* out = nullptr;            ///< as grad_out
  const uint16_t* out_remainder = nullptr;  ///< as grad_out; null: Delta from the rounded out
  const float* lse = nullptr;               ///< [rows]
  uint16_t* grad_q = nullptr;               ///< [rows, head_dim_qk] bfloat16
  /// [batch, seqlen_k, head_dim_qk], zero before: it is added to. The columns are permuted.
  float* grad_kv_sum = nullptr;
  uint16_t* grad_kv = nullptr;  ///< as grad_kv_sum, bfloat16, columns in order; null: not wanted
  int32_t* choice = nullptr;    ///< one value, which the launch uses
};

/// What the elements of q and kv are multiplied by: one for each (batch, query, head), each (batch,
/// key), or one for all.
struct SparseMlaScales {
  const float* q = nullptr;  ///< null: 1
  int64_t q_stride = 0;      ///< 0: one for all; else 1
  const float* kv = nullptr;
  int64_t kv_stride = 0;
};

#ifdef PATCHBENCH_CUDA
/// Shared memory in bytes that one CTA of the larger kernel wants, at these head dimensions.
int64_t shared_bytes(int64_t head_dim_qk, int64_t head_dim_v);
/// Whether the grid of this problem can be launched.
bool is_launchable(int64_t batch, int64_t seqlen_q, int64_t num_heads);
/// One launch, capturable, bitwise deterministic. Returns the launch's status.
cudaError_t launch_forward(const SparseMla& problem, const SparseMlaResults& results,
                           cudaStream_t stream);
/// Two launches or four, capturable. grad_q is bitwise deterministic, grad_kv is not: rows add
/// atomically.
cudaError_t launch_backward(const SparseMla& problem, const SparseMlaGrads& grads,
                            const SparseMlaScales& scales, cudaStream_t stream);
#endif

}  // namespace patchbench::ops::sparse_mla_dims
