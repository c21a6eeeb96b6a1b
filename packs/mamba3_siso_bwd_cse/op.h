#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace patchbench::ops::mamba3_siso_bwd_cse {

/// One Mamba-3 SISO scan, per batch entry b and head h, from the sequence's own initial state:
///   S_t = e^{a_t} S_{t-1} + v_t (x) k_t                                      a = adt, natural log
///   y_t = e^{a_t} S_{t-1} q_t + (qk_dot_t + d) v_t
/// q is rotated, k rotated and scaled, as mamba-ssm's compute_dqkv takes them. Others than
/// contiguous are copied first.
struct SisoInputs {
  at::Tensor q, k;              ///< [batch, seqlen, num_heads, head_dim_qk], one dtype with v
  at::Tensor v;                 ///< [batch, seqlen, num_heads, head_dim_v] fp32, bf16 or fp16
  at::Tensor adt, qk_dot;       ///< [batch, num_heads, seqlen] float32, adt < 0
  std::optional<at::Tensor> d;  ///< [num_heads] float32; absent: 0
  /// [num_sequences + 1] int32 from 0 to seqlen, not decreasing: sequences packed into batch 1.
  /// Absent: each batch entry is a sequence, num_sequences = batch. On CUDA's kernel path its
  /// values are not read on the host; wrong ones give wrong gradients, but no access out of bounds.
  std::optional<at::Tensor> cu_seqlens;
  int64_t chunk_size = 64;
};

/// What the loss gives back, and what the forward left.
struct SisoSaved {
  at::Tensor grad_out;  ///< of y: shape and dtype of v
  /// [batch, num_heads, num_chunks, head_dim_v, head_dim_qk], dtype of v: S at each chunk's start.
  /// ceil(seqlen / chunk_size) chunks; packed, the ceil(length / chunk_size) chunks of each
  /// sequence one after another, more chunks behind them being ignored. Chunks may lie inside of
  /// head_dim_v in memory, as mamba-ssm has them; other strides are copied first.
  at::Tensor states;
  /// Of the final states, [num_sequences, num_heads, head_dim_v, head_dim_qk] float32; absent: 0.
  std::optional<at::Tensor> grad_final_state;
};

struct SisoGradients {
  at::Tensor q, k, v;        ///< shapes and dtype of the inputs
  at::Tensor adt, qk_dot;    ///< [batch, num_heads, seqlen] float32
  at::Tensor d;              ///< [num_heads] float32; [0] without d
  at::Tensor initial_state;  ///< as grad_final_state, always
};

/// Gradients of the scan, chunk by chunk. In a chunk, S0 its first state, dS the gradient of its
/// last, cs the inclusive sum of a, rev_j = cs_end - cs_j, M_ij = e^{cs_i - cs_j} for i > j else 0;
/// with E = grad_out v^T and T = q k^T each formed and masked once:
///   grad_q_i = e^{cs_i} S0^T grad_out_i + sum_j (M E)_ij k_j
///   grad_k_j = e^{rev_j} dS^T v_j + sum_i (M E)_ij q_i
///   grad_v_j = e^{rev_j} dS k_j + sum_i (M T)_ij grad_out_i + (d + qk_dot_j) grad_out_j
///   grad_qk_dot_j = E_jj     grad_d = sum E_jj     dS_prev = e^{cs_end} dS + sum_i e^{cs_i}
///                                                            grad_out_i (x) q_i
///   grad_adt_t = e^{cs_end} <S0, dS> + sum_{i >= t} r_i + sum_{j < t} w_j     W = M E T
///   r_i = e^{cs_i} <grad_out_i, S0 q_i> + sum_j W_ij - sum_j W_ji     w_j = e^{rev_j} <v_j, dS
///   k_j>
///
/// Products are summed in float32 and gradients rounded once. On CUDA kernels on tensor cores (bf16
/// or fp16, chunk_size 64, head dims of 32, 64 or 128, compute capability 8.0 with up to 150 KiB of
/// shared memory a CTA), which also round masked E and T, dS as an operand and e^{cs} grad_out to
/// that dtype: a scan that leaves dS at each chunk's end, and a CTA per chunk and head. On compute
/// capability 9.0, bf16, head dims of 64 or 128: one kernel on wgmma that walks a head's chunks
/// with dS in registers and also rounds d + qk_dot; packed, or where batch * num_heads leave a
/// quarter of the GPU idle, behind a scan that leaves dS, rounded, every few chunks. Elsewhere, and
/// where PATCHBENCH_OP_FALLBACK=mamba3_siso_bwd_cse forces it, plain torch in float32; packed on
/// CUDA that form reads cu_seqlens on the host, so only the kernel path is then capturable. Bitwise
/// deterministic on one path. Not differentiable.
///
/// Throws std::runtime_error, one line: `mamba3_siso_bwd: v must have shape [2, 64, 4, head_dim_v],
/// got [2, 64, 3, 32]`. Source: derived here by differentiating the scan. mamba-ssm's
/// mamba3_siso_bwd.py at 2.3.2.post1 forms V grad_out^T three times and K Q^T twice for the same
/// gradients.
SisoGradients mamba3_siso_bwd(const SisoInputs& inputs, const SisoSaved& saved);

/// y as v, the final states [num_sequences, num_heads, head_dim_v, head_dim_qk] float32 and
/// `states` of SisoSaved (packed: num_sequences + seqlen / chunk_size chunks, the unused ones 0) in
/// plain torch, sums in float32. initial_state as the final states; absent: 0. Not
/// differentiable here: patchbench_ops.mamba3_siso is, in Python.
std::tuple<at::Tensor, at::Tensor, at::Tensor> mamba3_siso_forward(
    const SisoInputs& inputs, const std::optional<at::Tensor>& initial_state = std::nullopt);

/// The path taken for inputs like these: "cuda" or "plain".
std::string mamba3_siso_bwd_path(const SisoInputs& inputs);

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
