#pragma once
#include <torch/torch.h>

#include <cmath>

#include "harness/pack.h"

/// Sparse attention over FP8 storage, in any floating dtype: what the pack's op and the fused entry
/// of the dispatcher should give.
namespace patchbench::fp8_storage_dispatch {

using at::Tensor;
using harness::Tensors;

constexpr int64_t kDim = 576, kDimV = 512;
constexpr double kSoftmaxScale = 1.0 / 24;  // 576^-0.5

/// Stored rows as values: e4m3 times the scale, block rows taken apart.
inline Tensor values_of(const Tensors& inputs, const std::string& prefix) {
  const auto find = [&](const std::string& name) {
    const auto at = inputs.find(prefix + name);
    return at == inputs.end() ? Tensor() : at->second;
  };
  const Tensor dense = find("dense"), payload = find("payload"), per_tensor = find("scale_inv"),
               scale = per_tensor.defined() ? per_tensor : find("scale");
  if (dense.defined()) return dense.to(at::kDouble);
  const auto decoded = [](const Tensor& bytes) {
    return bytes.contiguous().view(at::kFloat8_e4m3fn).to(at::kDouble);
  };
  if (scale.defined()) {
    const Tensor values = decoded(payload);
    if (scale.numel() == 1) return values * scale.to(at::kDouble).reshape(at::IntArrayRef());
    return values * scale.to(at::kDouble).unsqueeze(-1);
  }
  const Tensor scales = payload.narrow(-1, kDimV, 16).contiguous().view(at::kFloat);
  const Tensor rope = payload.narrow(-1, kDimV + 16, 128).contiguous().view(at::kBFloat16);
  return at::cat(
      {decoded(payload.narrow(-1, 0, kDimV)) * scales.to(at::kDouble).repeat_interleave(128, -1),
       rope.to(at::kDouble)},
      -1);
}

/// Sparse attention over the keys that indices name, by autograd; in the dtype of q.
inline Tensors attend(const Tensor& q_any, const Tensor& kv_any, const Tensor& indices,
                      const Tensor& grad_out) {
  const Tensor q = q_any.detach().clone().requires_grad_();
  const Tensor kv = kv_any.detach().clone().requires_grad_();
  const Tensor index = indices.squeeze(2).to(at::kLong);
  const Tensor is_key = index.ge(0).logical_and(index.lt(kv.size(1)));
  std::vector<Tensor> outs, lses;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const Tensor k =
        at::embedding(kv[b].squeeze(1), index[b].masked_fill(is_key[b].logical_not(), 0));
    const Tensor logits = at::einsum("shd,skd->shk", {q[b], k}) * kSoftmaxScale;
    const Tensor closed = is_key[b].unsqueeze(1).logical_not();
    const Tensor top = logits.masked_fill(closed, -1e30).amax(-1, true).clamp_min(-1e4).detach();
    const Tensor weight = (logits - top).masked_fill(closed, -1e30).exp();
    const Tensor sum = weight.sum(-1, true), has_key = sum.gt(0);
    const Tensor value = at::einsum("shk,skd->shd", {weight, k.narrow(-1, 0, kDimV)});
    outs.push_back(value / at::where(has_key, sum, 1.0));
    lses.push_back(at::where(has_key,
                             at::where(has_key, sum, 1.0).log2() + top * std::log2(std::exp(1.0)),
                             0.0)
                       .squeeze(-1));
  }
  Tensors values = {{"out", at::stack(outs).detach()}, {"lse", at::stack(lses).detach()}};
  if (!grad_out.defined()) return values;
  const auto grads = torch::autograd::grad({at::stack(outs)}, {q, kv}, {grad_out.to(q)});
  values["grad_q"] = grads[0];
  values["grad_kv"] = grads[1];
  return values;
}

inline Tensors right_attention(const Tensors& inputs, at::ScalarType type) {
  const bool is_training = inputs.contains("grad_out");
  Tensors values =
      attend(values_of(inputs, "q_").to(type), values_of(inputs, "kv_").to(type),
             inputs.at("topk_indices"), is_training ? inputs.at("grad_out") : Tensor());
  if (is_training) values["is_fp8_used"] = torch::ones({}, type);
  return values;
}

/// The fused absorbed entry's results on the stored values, in its layout [seqlen, batch, heads,
/// head_dim]: `out`, and the gradients of both operands where there is one of `out`.
inline Tensors entry_results(const Tensors& inputs, at::ScalarType type) {
  const auto batch_first = [](const Tensor& tensor) { return tensor.transpose(0, 1); };
  const bool is_training = inputs.contains("grad_out");
  Tensors found =
      attend(batch_first(values_of(inputs, "q_").to(type)),
             batch_first(values_of(inputs, "kv_").to(type)), inputs.at("topk_indices").unsqueeze(2),
             is_training ? batch_first(inputs.at("grad_out")) : Tensor());
  found.erase("lse");
  for (auto& [name, tensor] : found) tensor = batch_first(tensor).contiguous();
  return found;
}

}  // namespace patchbench::fp8_storage_dispatch
