#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace patchbench::ops::mamba3_siso_bwd_cse {

/// What mamba-ssm's Mamba-3 SISO layer makes of its inputs before the scan (op.h), per token t,
/// head h and its group g = h / (num_heads / num_groups), from a zero angle at each row's start:
///   gamma_t = dt_t sigmoid(trap_t)     scale_t = gamma_t + dt_{t+1} (1 - sigmoid(trap_{t+1}))
///   theta_t = sum_{u <= t} pi tanh(angles_u) dt_u, up to whole turns
///   q'_t = R(theta_t) (q_t + q_bias)     k'_t = scale_t R(theta_t) (k_t + k_bias)
///   qk_dot_t = gamma_t <q_t + q_bias, k_t + k_bias>
/// R turns the pairs (2 i, 2 i + 1), i < num_angles, and leaves the others; what the last token
/// would take of the next one's dt is 0. Low: one dtype, float32, bfloat16, float16 or float64;
/// wide: float32, float64 with float64. Others than contiguous are copied first.
struct RotaryInputs {
  at::Tensor q, k;            ///< [batch, seqlen, num_groups, head_dim_qk] low
  at::Tensor q_bias, k_bias;  ///< [num_heads, head_dim_qk] wide
  /// [batch, seqlen, num_heads, num_angles] low; 2 num_angles <= head_dim_qk. angles_cumsum is
  /// theta, as the forward left it.
  at::Tensor angles, angles_cumsum;
  at::Tensor dt, trap;  ///< [batch, num_heads, seqlen] wide
};

/// Of the loss, by what the scan takes: grad_q, grad_k and grad_qk_dot of mamba3_siso_bwd.
struct RotaryGradOutputs {
  at::Tensor q_rotated, k_scaled;  ///< [batch, seqlen, num_heads, head_dim_qk] low
  at::Tensor qk_dot;               ///< [batch, num_heads, seqlen] wide
};

/// By its inputs, of their shapes and dtypes.
struct RotaryGradients {
  at::Tensor q, k, q_bias, k_bias, angles, dt, trap;
};

/// The gradients. With Q = q_t + q_bias, K = k_t + k_bias, u and w the rows of
/// grad_outputs.q_rotated and k_scaled turned back by theta_t, e grad_outputs.qk_dot and indices
/// [0], [1] of a pair:
///   P_t = u + gamma_t e_t K
///   grad_q_t = sum of P_t over a group's heads     grad_q_bias = sum_t P_t
///   N_t = scale_t w + gamma_t e_t Q                grad_k_t, grad_k_bias likewise
///   grad_theta_t = Q[0] u[1] - Q[1] u[0] + scale_t (K[0] w[1] - K[1] w[0])
///   s_t = <K, w>     c_t = e_t <Q, K>     T_t = sum_{u >= t} grad_theta_u
///   grad_angles_t = pi dt_t (1 - tanh^2(angles_t)) T_t
///   grad_dt_t = (c_t + s_t) sigmoid(trap_t) + s_{t-1} (1 - sigmoid(trap_t))
///               + pi sum_i tanh(angles_t) T_t
///   grad_trap_t = (c_t + s_t - s_{t-1}) dt_t sigmoid'(trap_t)
///
/// Sums run in the wide dtype and gradients are rounded once. On CUDA three kernels (bfloat16,
/// head_dim_qk 64 or 128, num_angles a quarter or a half of it, at most 64 heads a group, compute
/// capability 8.0 with up to 156 KiB of shared memory a CTA), which take sine, cosine, sigmoid and
/// tanh to about 2^-20. Elsewhere, and where PATCHBENCH_OP_FALLBACK=mamba3_siso_bwd_cse forces it,
/// plain torch. Bitwise deterministic on one path; no host synchronisation; capturable. Not
/// differentiable: it is a backward. Not taken: packed sequences, a first angle or state, gradients
/// of final ones.
///
/// Least bytes at batch 2, seqlen 8192, 128 heads, 8 groups, 128 x 32 angles in bfloat16: 1.65e9,
/// of which grad_outputs are 1.07e9; the kernels also write and read grad_theta, 5.4e8.
///
/// Throws std::runtime_error, one line: `mamba3_siso_rotary_bwd: k must have shape [2, 64, 4, 128],
/// got [2, 64, 3, 128]`. Source: derived here by differentiating the formulas; mamba-ssm's
/// mamba3_siso_bwd.py and angle_dt.py at 2.3.2.post1 take the same gradients in three kernels and
/// five sums.
RotaryGradients mamba3_siso_rotary_bwd(const RotaryInputs& inputs,
                                       const RotaryGradOutputs& grad_outputs);

/// The path taken for inputs like these: "cuda" or "plain".
std::string mamba3_siso_rotary_bwd_path(const RotaryInputs& inputs);

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
