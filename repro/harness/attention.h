#pragma once
#include "harness/inputs.h"

namespace patchbench::harness {

/// Operands of sparse attention over one key head, in any floating dtype.
struct SparseAttention {
  at::Tensor q;         ///< [batch, seqlen_q, num_heads, head_dim_qk]
  at::Tensor kv;        ///< [batch, seqlen_k, head_dim_qk]; values are the first head_dim_v columns
  at::Tensor indices;   ///< [batch, seqlen_q, topk]; an index that names no key is left out
  at::Tensor grad_out;  ///< [batch, seqlen_q, num_heads, head_dim_v]
  double softmax_scale = 1;
};

/// What the terms of an element's sum come to in the gradients (Pack::least_size).
struct TermSizes {
  double grad_q = 0, grad_kv = 0;
};

/// grad_q = sum_j dS_j k_j and grad_kv = sum dS_j q + P_j grad_out with
/// dS_j = softmax_scale P_j (dP_j - delta), dP_j = <grad_out, v_j>, delta = sum_j P_j dP_j: where
/// one key has nearly all of P, or keys are alike, dP_j - delta cancels and its rounding errors do
/// not. Where the products in dP_j cancel, its rounding errors stay as well. Sizes are root mean
/// squares over the elements of the rows that have terms, with dP_j - delta replaced by
/// sqrt(dP_j^2 + delta^2 + <grad_out^2, v_j^2>). A key that a row names several times is one term:
/// its terms are rounded alike. Computed in fp64; derived here.
TermSizes term_sizes(const SparseAttention& operands);

}  // namespace patchbench::harness
