#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

namespace patchbench::ops::sparse_mla_dims {

/// Sparse multi-head latent attention, of any head dimension. A key's first head_dim_v columns are
/// also its value; t_j = topk_indices[b,s,0,j]:
///   z[b,s,h,j] = softmax_scale * <q[b,s,h,:], kv[b,t_j,0,:]>
///   out[b,s,h,:] = sum_j softmax_j(z) kv[b,t_j,0,:head_dim_v]   lse[b,s,h] = log2 sum_j exp(z)
///
/// q [batch, seqlen_q, num_heads, head_dim_qk] and kv [batch, seqlen_k, 1, head_dim_qk], both
/// bfloat16, float16, float32 or float64, any strides; topk_indices [batch, seqlen_q, 1, topk]
/// int32. head_dim_qk at most 576, head_dim_v at most 512 and head_dim_qk, both multiples of 16
/// (equal ones too: no rope). An index outside [0, seqlen_k) is invalid and skipped; one that
/// occurs twice counts twice; a query without a key gives out = 0, lse = 0 and no gradient.
///
/// Returns out [batch, seqlen_q, num_heads, head_dim_v] in q's dtype, lse [batch, seqlen_q,
/// num_heads] and out_remainder: what rounding took from out, in out's shape and dtype, so that
/// out + out_remainder has 16 bits of mantissa and more; [0] where out is float32 or float64, and
/// where the operator is called with delta "rounded". Sums, and lse, are float32 (float64 on
/// float64). Not differentiable here: patchbench_ops.sparse_mla is, in Python.
///
/// On CUDA of compute capability 9.x with shared memory for it (227 KiB a CTA at 576/512), bfloat16
/// goes to a kernel of warpgroup products, which also rounds P to bfloat16. Elsewhere, and where
/// PATCHBENCH_OP_FALLBACK=sparse_mla_dims forces it, plain torch, some queries at a time: besides
/// results it holds at most kScratchBytes, or what one query needs (about 16 bytes for each of topk
/// x head_dim_qk) where that is more. No host synchronisation: capturable. Bitwise deterministic on
/// one path, but for grad_kv on CUDA.
///
/// Throws std::runtime_error, one line: `sparse_mla: head_dim_v must be a multiple of 16 from 16 to
/// min(512, head_dim_qk) = 128, got 129`.
/// Source: derived here. Megatron-LM's SparseMLA (megatron-core 0.19.2) computes the same for
/// 576/512 alone.
std::tuple<at::Tensor, at::Tensor, at::Tensor> sparse_mla_forward(const at::Tensor& q,
                                                                  const at::Tensor& kv,
                                                                  const at::Tensor& topk_indices,
                                                                  double softmax_scale,
                                                                  int64_t head_dim_v);

constexpr int64_t kScratchBytes = 256 << 20;

/// grad_q and grad_kv in the shapes and dtype of q and kv:
///   P = exp2(z log2(e) - lse)   dS = softmax_scale P (grad_out V^T - Delta)
///   grad_q = dS K               grad_kv = dS^T Q + [P^T grad_out, 0], summed before it is rounded
/// out, out_remainder and lse as sparse_mla_forward gave them; grad_out as out.
///
/// delta    "exact"   The kernel takes Delta = <grad_out, out + out_remainder>. Plain torch, which
///                    has all keys of a query at once, takes Delta = sum_j P_j dP_j in the type of
///                    sums, and reads neither out nor out_remainder.
///          "rounded" Delta = <grad_out, out>, as upstream; out_remainder may be [0]. The error of
///                    a rounded out is common to all keys of a query, so that it does not average
///                    out in grad_q where the keys share a mean or one key holds most of the mass.
///                    Where that is nearly all of it, the kernel's "exact", with 16 bits, does not
///                    do either: 2.7e-2 off in such a row (sparse_mla_pdp_precision), "rounded" 29.
/// staging  what P and dS are rounded to before they are multiplied, on bfloat16 alone: "bf16", or
///          "split": a bfloat16 and the bfloat16 of the remainder (always in plain torch).
/// output_mask  which gradients are wanted; the others come back undefined. Plain torch leaves
///          their work out; the kernel does it all the same.
/// On CUDA the kernel adds grad_kv atomically, which patchbench_ops refuses in torch's
/// deterministic mode.
std::tuple<at::Tensor, at::Tensor> sparse_mla_backward(
    const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& out_remainder,
    const at::Tensor& lse, const at::Tensor& q, const at::Tensor& kv,
    const at::Tensor& topk_indices, double softmax_scale, const std::string& delta = "exact",
    const std::string& staging = "bf16", std::array<bool, 2> output_mask = {true, true});

/// The path taken for a query like this one: "cuda" or "plain". The forward's is that of "bf16".
std::string sparse_mla_path(const at::Tensor& q, int64_t head_dim_v,
                            const std::string& staging = "bf16");

}  // namespace patchbench::ops::sparse_mla_dims
