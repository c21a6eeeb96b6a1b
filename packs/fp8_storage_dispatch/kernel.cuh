#pragma once
#include <cstdint>

#include "../sparse_mla_dims/kernel.cuh"
#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
#include <cuda_runtime_api.h>
#endif

/// Sparse multi-head latent attention that reads FP8 storage. No framework header: raw pointers and
/// a stream.
///
///   l[h, j]  = softmax_scale * <q[h, :], k[j, :]>        j over the valid slots of topk_indices
///   out[h,:] = sum_j softmax_j(l[h, j]) * k[j, :512]     lse[h] = log2(sum_j exp(l[h, j]))
///
/// q and k are the stored values times their scales. A slot is valid if its index lies in
/// [0, seqlen_k); an index that occurs twice counts twice. Without a valid slot out and lse are 0.
namespace patchbench::ops::fp8_storage_dispatch {

constexpr int kHeadDim = 576, kHeadDimV = 512;  ///< 512 latent (also the value) + 64 rope
constexpr int kScaleBlock = 128;                ///< latent columns per scale of the block layout
constexpr int kBlockRowBytes = 656;             ///< 512 e4m3, 4 float32 scales, 64 bfloat16

/// One problem. All pointers are of one device and contiguous; nothing is owned.
struct SparseMla {
  const void* q = nullptr;           ///< [batch, seqlen_q, num_heads, 576] e4m3, or bfloat16
  const float* q_scale = nullptr;    ///< null: q is bfloat16
  int64_t q_scale_stride = 0;        ///< 0: one for all; 1: one per (batch, query, head)
  const uint8_t* kv = nullptr;       ///< [batch, seqlen_k, 576] e4m3, or [batch, seqlen_k, 656]
  const float* kv_scale = nullptr;   ///< null: the block layout, which holds its scales; each >= 0
  int64_t kv_scale_stride = 0;       ///< 0: one for all; 1: one per (batch, key)
  const int32_t* indices = nullptr;  ///< [batch, seqlen_q, topk]
  int64_t batch = 0, seqlen_q = 0, seqlen_k = 0, num_heads = 0, topk = 0;
  float softmax_scale = 0;
  static constexpr int head_dim_qk = kHeadDim, head_dim_v = kHeadDimV;
};

#if defined(__CUDACC__) || defined(PATCHBENCH_CUDA)
/// All kernels are of compute capability 9.0 alone.
/// out [batch, seqlen_q, num_heads, 512] bfloat16, lse [batch, seqlen_q, num_heads] float32. One
/// launch, capturable, bitwise deterministic. Returns the launch's status.
cudaError_t launch_forward(const SparseMla& problem, uint16_t* out, float* lse,
                           cudaStream_t stream);

/// The forward of sparse_mla on bfloat16 keys with a query of e4m3 at problem.q, contiguous [batch,
/// seqlen_q, num_heads, 576]. q_scale and its stride: as SparseMla has them. As launch_forward.
cudaError_t launch_stored_query_forward(const sparse_mla_dims::SparseMla& problem,
                                        const sparse_mla_dims::SparseMlaResults& results,
                                        const float* q_scale, int64_t q_scale_stride,
                                        cudaStream_t stream);

/// Stored rows as bfloat16, to [num_rows, 576]: e4m3 without a scale, which is exact, or keys of
/// the block layout with theirs. One launch, capturable, bitwise deterministic. Below 2^34 rows.
cudaError_t launch_widen(const uint8_t* from, int64_t num_rows, bool is_block, uint16_t* to,
                         cudaStream_t stream);
#endif

}  // namespace patchbench::ops::fp8_storage_dispatch
