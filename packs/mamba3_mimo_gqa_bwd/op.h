#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
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
/// Throws std::runtime_error, one line: `group_reduce_bwd: num_groups must divide num_heads = 6,
/// got 4`. Source: derived here; the grouping of heads is that of mamba-ssm's mamba3_mimo_bwd.py at
/// 2.3.2.post1, which refuses 1 < num_groups < num_heads.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_reduce_bwd(const at::Tensor& dq,
                                                                            const at::Tensor& dk,
                                                                            int64_t num_groups);

/// The path taken for tensors like this one: "cuda" or "plain".
std::string group_reduce_bwd_path(const at::Tensor& dq, int64_t num_groups);

/// The Mamba-3 MIMO layer, per batch entry, head h and its group h / (H / G), from a zero state at
/// the start of each sequence; r counts ranks, rotate turns the pairs (n, head_dim_qk / 2 + n):
///   q_tr = rotate(q + q_bias, angles_t)     k_tr likewise     x_tr = v_t mimo_v_r
///   S_t = e^{adt} S_{t-1} + (1 - l_t) dt_t e^{adt} sum_r x_{t-1,r} (x) k_{t-1,r}
///         + l_t dt_t sum_r x_tr (x) k_tr                          l = sigmoid(trap)
///   y_tr = S_t q_tr + d x_tr     out_t = sum_r mimo_o_r y_tr silu(z_t mimo_z_r)
/// Without z the gate is 1; without mimo_o ranks stay apart. Low: the dtype of q, bfloat16,
/// float16, float32 or float64; wide: float32, float64 with a float64 q. Others than contiguous are
/// copied.
struct MimoInputs {
  at::Tensor q, k;            ///< [batch, seqlen, num_ranks, num_groups, head_dim_qk] low
  at::Tensor v;               ///< [batch, seqlen, num_heads, head_dim_v] low
  at::Tensor adt, dt;         ///< [batch, num_heads, seqlen] wide, adt < 0
  at::Tensor trap;            ///< [batch, num_heads, seqlen] low or wide
  at::Tensor q_bias, k_bias;  ///< [num_heads, num_ranks, head_dim_qk] wide
  at::Tensor mimo_v;          ///< [num_heads, num_ranks, head_dim_v] wide
  std::optional<at::Tensor> mimo_z, mimo_o;  ///< as mimo_v; mimo_z goes with z
  at::Tensor angles;            ///< [batch, seqlen, num_heads, num_angles] wide, summed over time
  std::optional<at::Tensor> d;  ///< [num_heads] wide; absent: 0
  std::optional<at::Tensor> z;  ///< as v; absent: no gate
  /// [num_sequences + 1] int32 from 0 to seqlen, not decreasing: sequences packed into batch 1.
  /// Absent: each batch entry is a sequence.
  std::optional<at::Tensor> cu_seqlens;
};

/// Each as its input, dtype included; [0] where the input is absent.
struct MimoGradients {
  at::Tensor q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z;
};

/// Gradients of all inputs for grad_out, the gradient of `out`: [batch, seqlen, num_heads,
/// head_dim_v] low, without mimo_o [batch, seqlen, num_ranks, num_heads, head_dim_v].
///
/// Nothing is saved by a forward: states are computed again. Tokens are taken in chunks of C =
/// max(1, 64 / num_ranks); the rows of a chunk are a = (token i, rank). With cs the inclusive sum
/// of adt in the chunk, rev_j = cs_end - cs_j, g = gradient of y, gam = l dt, s_j = gam_j + (1 -
/// l_{j+1}) dt_{j+1} (gam_j at a sequence's last token), S0 the chunk's first state, dS the
/// gradient of its last, E = g x^T, T = q k^T and M_ab = s_j e^{cs_i - cs_j} for i > j, gam_i for i
/// = j, else 0:
///   y_a = e^{cs_i} S0 q_a + sum_b (M T)_ab x_b + d x_a
///   grad q_a = e^{cs_i} S0^T g_a + sum_b (M E)_ab k_b, turned back and summed over a group's heads
///   grad k_b = s_j e^{rev_j} dS^T x_b + sum_a (M E)_ab q_a
///   grad x_b = s_j e^{rev_j} dS k_b + sum_a (M T)_ab g_a + d g_b
///   grad s_j = e^{rev_j} sum_r <x_jr, dS k_jr> + sum_{i > j} e^{cs_i - cs_j} (E T)_ij
///   grad adt_t = e^{cs_end} <S0, dS> + sum_{i >= t} r_i + sum_{j < t} s_j e^{rev_j} <x_j, dS k_j>
///   r_i = e^{cs_i} <g_i, S0 q_i> + sum_j W_ij - sum_j W_ji, W = M E T off the diagonal
///
/// Throws std::runtime_error, one line: `mamba3_mimo_bwd: v must have dtype float32, got float16`.
/// On CUDA kernels on tensor cores (bfloat16, 1, 2, 4 or 8 ranks, head dims of 64 or 128, at most
/// 256 heads a group, compute capability 8.0 with up to 184 KiB of shared memory a CTA): a chunk's
/// part of the states, a scan over chunks, a CTA per chunk and head, then group_reduce_bwd's
/// kernels; sums in float32; q and k after the turn, x, g, masked E and T, states, dS and the
/// gradients of q and k per head are rounded to bfloat16. No host synchronisation: cu_seqlens is
/// not read on the host, wrong ones give wrong gradients, but no access out of bounds. Elsewhere,
/// and where PATCHBENCH_OP_FALLBACK=mamba3_mimo_gqa_bwd forces it, plain torch with sums in the
/// wide dtype; packed, that form reads cu_seqlens on the host. Bitwise deterministic on one path.
/// Not differentiable.
///
/// Source: derived here by differentiating the recurrence. The arguments equal those in mamba-ssm's
/// mamba_mimo_bwd_combined at 2.3.2.post1, less the sums of adt, which are made here; the angles
/// are its running sums.
MimoGradients mamba3_mimo_bwd(const MimoInputs& inputs, const at::Tensor& grad_out);

/// The path taken for inputs like these: "cuda" or "plain".
std::string mamba3_mimo_bwd_path(const MimoInputs& inputs);

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
