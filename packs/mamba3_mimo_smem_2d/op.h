#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>

namespace patchbench::ops::mamba3_mimo_smem_2d {

/// How the CUDA kernels stage tiles of `chunk` = 64 / R tokens in shared memory. No number depends
/// on it; elsewhere it is checked and has no effect.
struct QkDotStaging {
  /// "flat": q and k as [chunk R, head_dim], products as [chunk, R R]. "rank3": [chunk, R,
  /// head_dim] and [chunk, R, R].
  std::string layout = "flat";
  /// "tma": tensor maps, where a row of the tile has 16 bytes; "cp_async".
  std::string copy = "tma";
};

/// The products of q and k within one token of the Mamba-3 MIMO layer, before the rotation:
///
///   qk_dot[b,h,s,r,u] = sum_n (q[b,s,r,g,n] + q_bias[h,r,n]) (k[b,s,u,g,n] + k_bias[h,u,n])
///   g = h / (num_heads / num_groups)
///
/// q, k [batch, seqlen, R, num_groups, head_dim] of one dtype (float32, bfloat16, float16, float64)
/// and device; q_bias, k_bias [num_heads, R, head_dim] float32, with float64 q float64; others than
/// contiguous are copied first. num_groups divides num_heads. Returns [batch, num_heads, seqlen, R,
/// R] in q's dtype. A token's products hold nothing of another token's: sequences packed into batch
/// 1 need no cu_seqlens, and a chunk may hold the end of one and the begin of the next.
///
/// Sums run in float32 (float64 for float64) and are rounded once; q + q_bias is not rounded. On
/// CUDA one kernel (compute capability 8.0, bfloat16 or float32, R of 2, 4 or 8, head_dim 64 or
/// 128, shared memory enough; TMA on 9.0); else, on a CPU and where
/// PATCHBENCH_OP_FALLBACK=mamba3_mimo_smem_2d forces it, plain torch. Bitwise deterministic on one
/// path, and the kernel's result is the same for every staging. Capturable. Not
/// differentiable here: patchbench_ops.mamba3_mimo_qk_dot is, in Python.
///
/// Throws std::runtime_error, one line: `mamba3_mimo_qk_dot: k must have shape [2, 16, 4, 1, 64],
/// got [2, 16, 4, 2, 64]`. Source: derived here. mamba-ssm's mamba3_mimo_bwd.py at 2.3.2.post1
/// forms the same products as blocks of a [64, 64] product, rounds q + q_bias and k + k_bias before
/// it, and keeps them in shared memory as [chunk, R, R].
at::Tensor mamba3_mimo_qk_dot(const at::Tensor& q, const at::Tensor& k, const at::Tensor& q_bias,
                              const at::Tensor& k_bias, const QkDotStaging& staging = {});

/// grad_q, grad_k as q and grad_q_bias, grad_k_bias as q_bias, from grad_qk_dot [batch, num_heads,
/// seqlen, R, R] in q's dtype:
///
///   raw_q[b,s,r,h,n] = sum_u grad_qk_dot[b,h,s,r,u] (k[b,s,u,g,n] + k_bias[h,u,n])
///   raw_k[b,s,u,h,n] = sum_r grad_qk_dot[b,h,s,r,u] (q[b,s,r,g,n] + q_bias[h,r,n])
///   grad_q = sum of raw_q over the heads of a group, grad_q_bias[h,r,n] = sum_{b,s} raw_q; so k
///
/// Sums, paths, staging, determinism and errors as in mamba3_mimo_qk_dot; two kernels, no
/// atomics. Not differentiable.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mamba3_mimo_qk_dot_bwd(
    const at::Tensor& grad_qk_dot, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& q_bias, const at::Tensor& k_bias, const QkDotStaging& staging = {});

/// How tiles are copied for a q like this: "tma", "tma_operands" (q and k by TMA, the products,
/// whose rows have less than 16 bytes, by cp.async), "cp_async" or "plain".
std::string mamba3_mimo_qk_dot_path(const at::Tensor& q, const QkDotStaging& staging = {});

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
