#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace patchbench::ops::fp8_storage_dispatch {

/// FP8 storage of an operand: the bytes, and the scales that they are multiplied by.
///   "tensor"  payload [..., 576] float8_e4m3fn, scale float32 [1]
///   "token"   payload [..., 576] float8_e4m3fn, scale float32 [...]: one a row
///   "block"   payload [..., 656] uint8: 512 e4m3, 4 float32 (one per 128 columns, powers of two),
///             64 bfloat16 (the rope); no separate scale
/// scale = max(amax, 2^-14) / 448 over what it serves; a byte is e4m3(x / scale), rounded to
/// nearest even; block: scale = 2^ceil(log2(max(amax / 448, 1e-4))).
/// A key's scale is not below 0; on CUDA one of a row below 2^-60 counts as 2^-60.
struct Fp8Storage {
  at::Tensor payload;
  std::optional<at::Tensor> scale;
};
/// x [..., 576] float32, bfloat16 or float64. CPU and CUDA, deterministic, not differentiable.
Fp8Storage quantize_mla(const at::Tensor& x, const std::string& layout);
/// The stored values, float32 [..., 576]: the form that a kernel without FP8 would have to be
/// given.
at::Tensor dequantize_mla(const Fp8Storage& storage);

/// Sparse multi-head latent attention on FP8 storage:
///   l[b,s,h,j] = softmax_scale * <q[b,s,h,:], kv[b,t_j,0,:]>,  t_j = topk_indices[b,s,0,j]
///   out[b,s,h,:] = sum_j softmax_j(l) kv[b,t_j,0,:512]   lse[b,s,h] = log2 sum_j exp(l)
///
/// q [batch, seqlen_q, num_heads, 576] as "tensor" or "token", or bfloat16 with a "block" kv;
/// kv [batch, seqlen_k, 1, 576 or 656]; topk_indices [batch, seqlen_q, 1, topk] int32. An index
/// outside [0, seqlen_k) is invalid and skipped; one that occurs twice counts twice; a query
/// without a key gives out = 0, lse = 0. Returns out [batch, seqlen_q, num_heads, 512] bfloat16 and
/// lse [batch, seqlen_q, num_heads] float32. Sums in float32. Not differentiable here:
/// patchbench_ops.sparse_mla_fp8 is, in Python, of dense operands.
///
/// On CUDA of compute capability 9.0 one kernel of the forward reads the stored bytes; nothing is
/// dequantised in global memory, but for "block" keys where seqlen_q * topk >= 8 * seqlen_k: these
/// are dequantised once, for the kernel of patchbench::sparse_mla, which converts a stored query as
/// it loads it. The backward does the same with all keys, and with a stored query in the place of
/// grad_q; scales of a tensor or a token stay float32. That takes 1152 bytes a key until the call
/// ends, and block scales that are not powers of two round the key to bfloat16. The forward's other
/// logits are products of the bytes themselves, on FP8 tensor cores, but for the rope of "block"
/// and with a bfloat16 query. Those cores keep about 14 bits of a sum of e4m3 products: every 128
/// columns it goes to float32, and lse is within the larger of 1e-3 and 2^-11 of itself, elsewhere
/// within 1e-3 (of the rounded keys). On an H200, 8 queries of 128 heads and 2048 of 8192 keys, the
/// largest error of lse was 1.0e-4 ("tensor"), 9.3e-5 ("token"), 8.9e-5 ("block" with a stored
/// query) on normal data and 4.2e-3, 4.2e-3, 5.2e-3 with the query times 4. Elsewhere, and where
/// PATCHBENCH_OP_FALLBACK=fp8_storage_dispatch forces it, a plain form in torch dequantises the
/// gathered rows chunk by chunk (sparse_mla_fp8_path: "cuda" or "plain"). Forward and grad_q are
/// bitwise deterministic on one path; grad_kv on CUDA is not. Capturable.
///
/// On CUDA grad_kv is added atomically, which patchbench_ops refuses in torch's deterministic mode.
///
/// Refused in one line: one operand stored and the other dense (but for "block"), e5m2, a scale of
/// another count, head_dim other than 576, strides other than contiguous,
/// q or kv that start at no multiple of 16 bytes, 2^31 and more of batch * seqlen_q *
/// ceil(num_heads / 64). Source: derived here; the layout of 656 bytes is that of DeepSeek V3.2's
/// cache (FlashMLA).
std::tuple<at::Tensor, at::Tensor> sparse_mla_fp8_forward(const Fp8Storage& q, const Fp8Storage& kv,
                                                          const at::Tensor& topk_indices,
                                                          double softmax_scale);
/// Gradients of the dequantised operands, bfloat16: grad_q [batch, seqlen_q, num_heads, 576],
/// grad_kv [batch, seqlen_k, 1, 576] (summed in float32).
///   P = exp2(l log2(e) - lse)   dS = P (grad_out V^T - rowsum(grad_out out)) softmax_scale
///   grad_q = dS K               grad_kv = dS^T Q + [P^T grad_out, 0]
std::tuple<at::Tensor, at::Tensor> sparse_mla_fp8_backward(
    const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& lse, const Fp8Storage& q,
    const Fp8Storage& kv, const at::Tensor& topk_indices, double softmax_scale);

/// The path taken for operands like this one: "cuda" or "plain".
std::string sparse_mla_fp8_path(const at::Tensor& kv);

}  // namespace patchbench::ops::fp8_storage_dispatch
