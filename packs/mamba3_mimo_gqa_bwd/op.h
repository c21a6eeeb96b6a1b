#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace patchbench::ops::mamba3_mimo_gqa_bwd {

/// The reduction at the end of the Mamba-3 MIMO backward with grouped B and C: per-head gradients
/// to gradients per group, and the bias gradients from the tensors before that sum.
///
///   grad_q[b,s,r,g,n] = sum_{h = g H/G}^{(g+1) H/G - 1} dq[b,s,r,h,n]        the same for k
///   grad_q_bias[h,r,n] = sum_{b,s} dq[b,s,r,h,n]
///
/// dq, dk [batch, seqlen, num_ranks, num_heads, head_dim] float32, bfloat16 or float16, of one
/// shape, dtype and device; others than contiguous are copied first. num_groups divides num_heads.
/// Returns grad_q, grad_k [batch, seqlen, num_ranks, num_groups, head_dim] of that dtype and
/// grad_q_bias, grad_k_bias [num_heads, num_ranks, head_dim] float32.
///
/// Sums run in float32 and are rounded once. On CUDA one pass over dq and dk (compute capability
/// 8.0, head_dim a multiple of 8, at most 256 heads a group; else, on a CPU and where
/// PATCHBENCH_OP_FALLBACK=mamba3_mimo_gqa_bwd forces it, plain torch: group_reduce_bwd_path ->
/// "cuda" or "plain"). Bitwise deterministic on one path; with num_groups = num_heads the
/// gradients are dq and dk bit for bit. Capturable. Not differentiable: it is a backward.
///
/// Throws c10::Error, one line: `group_reduce_bwd: num_groups must divide num_heads = 6, got 4`.
/// Source: derived here; the grouping of heads is that of mamba-ssm's mamba3_mimo_bwd.py at
/// 2.3.2.post1, which refuses 1 < num_groups < num_heads.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_reduce_bwd(const at::Tensor& dq,
                                                                            const at::Tensor& dk,
                                                                            int64_t num_groups);

/// The path taken for tensors like this one: "cuda" or "plain".
std::string group_reduce_bwd_path(const at::Tensor& dq, int64_t num_groups);

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
