#pragma once
#include <cstdint>

#include "../kernel/tensor.h"
#include "kernel.cuh"

namespace patchbench::ops::sparse_mla_dims {

/// The problem of bfloat16 q [batch, seqlen_q, num_heads, head_dim_qk] and kv [batch, seqlen_k,
/// ..., head_dim_qk], strided as SparseMla asks, and of contiguous indices [batch, seqlen_q, 1,
/// topk].
inline SparseMla problem_of(const Tensor& q, const Tensor& kv, const Tensor& indices,
                            double softmax_scale, int64_t head_dim_v) {
  return {.q = q.data<uint16_t>(),
          .q_stride_batch = q.stride(0),
          .q_stride_query = q.stride(1),
          .q_stride_head = q.stride(2),
          .kv = kv.data<uint16_t>(),
          .kv_stride_batch = kv.stride(0),
          .kv_stride_key = kv.stride(1),
          .indices = indices.data<int32_t>(),
          .batch = q.size(0),
          .seqlen_q = q.size(1),
          .seqlen_k = kv.size(1),
          .num_heads = q.size(2),
          .topk = indices.size(3),
          .head_dim_qk = static_cast<int>(q.size(3)),
          .head_dim_v = static_cast<int>(head_dim_v),
          .softmax_scale = static_cast<float>(softmax_scale)};
}

}  // namespace patchbench::ops::sparse_mla_dims
