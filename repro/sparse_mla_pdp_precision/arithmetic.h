#pragma once
#include <torch/torch.h>

#include <cmath>
#include <string>

#include "harness/inputs.h"

/// The backward of sparse MLA in fp64, and where a kernel rounds it. Letters: s rows (queries), h
/// heads, k slots of a row, d width of a key, d_v of a value: the first d_v of the same key.
namespace patchbench::sparse_mla_pdp_precision {

using at::Tensor;
using harness::Draw;
using harness::Tensors;

inline Tensor to_bf16(const Tensor& x) { return x.to(at::kBFloat16).to(x.scalar_type()); }

/// Rounded to that many significant bits, at every exponent.
inline Tensor to_bits(const Tensor& x, int bits) {
  const auto [mantissa, exponent] = at::frexp(x);
  const double steps = std::ldexp(1.0, bits);
  return at::ldexp((mantissa * steps).round() / steps, exponent);
}

struct Shape {
  int64_t rows, keys, heads, width, width_v, topk;
};

/// Keys that every row selects: their gradients have the most terms.
constexpr int64_t kNumSinks = 4;

/// [rows, topk] int32; the rows are the last of the context. A row that has fewer keys before it
/// than slots takes all of them and leaves the others at -1; any other takes the sinks and draws
/// the rest, with repeats, which count as often as they occur.
inline Tensor causal_indices(const Shape& shape, const Draw& draw) {
  Tensor indices = torch::full({shape.rows, shape.topk}, -1, at::kInt);
  auto* index = indices.data_ptr<int32_t>();
  for (int64_t r = 0; r < shape.rows; ++r) {
    const int64_t position = shape.keys - shape.rows + r;
    for (int64_t j = 0; j < shape.topk; ++j, ++index) {
      const auto drawn =
          static_cast<int64_t>(draw.bits(static_cast<uint64_t>(r * shape.topk + j)) >> 1);
      if (position < shape.topk) {
        if (j <= position) *index = static_cast<int32_t>(j);
      } else {
        *index = static_cast<int32_t>(
            j < kNumSinks ? j : kNumSinks + drawn % (position + 1 - kNumSinks));
      }
    }
  }
  return indices;
}

/// q [s, h, d], kv [keys, d], grad_out [s, h, d_v] bf16 and indices [s, k] int32. `data`: "iid":
/// normal. "mean": keys share a mean of twice their spread, queries and grad_out have one per head.
/// "sink": key 0 and every query have a part along one direction, worth 14 in the logit. "cancel":
/// queries and grad_out have a mean per head, and grad_out changes its sign from row to row.
inline Tensors drawn_inputs(const std::string& data, const Shape& shape, uint64_t seed,
                            const std::string& name) {
  const auto normal = [&](const char* part, const std::vector<int64_t>& sizes) {
    return Draw(seed, name + "/" + part).normal(sizes);
  };
  Tensor q = normal("q", {shape.rows, shape.heads, shape.width});
  Tensor kv = normal("kv", {shape.keys, shape.width});
  Tensor grad_out = normal("grad_out", {shape.rows, shape.heads, shape.width_v});
  if (data == "mean" || data == "cancel") {
    q += normal("mean_q", {shape.heads, shape.width});
    grad_out += normal("mean_grad_out", {shape.heads, shape.width_v});
  }
  if (data == "mean") kv += 2 * normal("mean_kv", {shape.width});
  if (data == "cancel") grad_out.slice(0, 1, c10::nullopt, 2).neg_();
  if (data == "sink") {
    constexpr double kSize = 2, kLogit = 14;
    const Tensor direction = normal("direction", {shape.width}).sign();
    kv[0] += kSize * direction;
    q += kLogit / (kSize * std::sqrt(static_cast<double>(shape.width))) * direction;
  }
  const Draw draw(seed, name + "/indices");
  return {{"q", q.to(at::kBFloat16)},
          {"kv", kv.to(at::kBFloat16)},
          {"grad_out", grad_out.to(at::kBFloat16)},
          {"indices", causal_indices(shape, draw)}};
}

/// What the backward of some rows is made of, fp64.
struct Terms {
  Tensor k;              ///< [s, k, d]
  Tensor p;              ///< [s, h, k]: exp(z - lse), z = d^-1/2 <q, k>; 0 without a key
  Tensor g;              ///< [s, h, k]: <grad_out, v>
  Tensor delta;          ///< [s, h, 1]: sum_k p g
  Tensor delta_of_bf16;  ///< the same as <o, grad_out>, o made of bf16 weights and rounded to bf16
  double scale;
  /// d z: scale p (g - delta).
  Tensor ds(const Tensor& row_sum) const { return scale * p * (g - row_sum); }
};

inline Terms terms_of(const Tensor& q, const Tensor& kv, const Tensor& grad_out,
                      const Tensor& indices) {
  Terms terms;
  terms.scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
  const int64_t rows = q.size(0), topk = indices.size(1), width_v = grad_out.size(2);
  terms.k = kv.index_select(0, indices.flatten().clamp_min(0)).view({rows, topk, q.size(2)});
  const Tensor v = terms.k.narrow(2, 0, width_v);
  const Tensor is_none = indices.lt(0).unsqueeze(1);
  const Tensor z = (torch::bmm(q, terms.k.transpose(1, 2)) * terms.scale)
                       .masked_fill(is_none, -std::numeric_limits<double>::infinity());
  const Tensor weights = (z - std::get<0>(z.max(-1, true))).exp();
  const Tensor sum = weights.sum(-1, true);
  terms.p = weights / sum;
  terms.g = torch::bmm(grad_out, v.transpose(1, 2));
  terms.delta = (terms.p * terms.g).sum(-1, true);
  const Tensor out = to_bf16(torch::bmm(to_bf16(weights), v) / sum);
  terms.delta_of_bf16 = (out * grad_out).sum(-1, true);
  return terms;
}

/// Where a backward rounds; the sums run in fp64.
struct Rounding {
  bool is_staged_in_bf16 = false;  ///< p and ds, before the products for grad_q and grad_kv
  bool has_delta_of_bf16 = false;
  bool is_output_bf16 = false;
};

/// grad_q [s, h, d] and grad_kv [keys, d], fp64 or bf16.
inline Tensors backward(const Tensors& inputs, const Rounding& rounding) {
  const auto wide = [&](const char* name) { return inputs.at(name).to(at::kCPU, at::kDouble); };
  const Tensor q = wide("q"), kv = wide("kv"), grad_out = wide("grad_out");
  const Tensor indices = inputs.at("indices").cpu();
  const Terms terms = terms_of(q, kv, grad_out, indices);
  Tensor p = terms.p, ds = terms.ds(rounding.has_delta_of_bf16 ? terms.delta_of_bf16 : terms.delta);
  if (rounding.is_staged_in_bf16) {
    p = to_bf16(p);
    ds = to_bf16(ds);
  }
  Tensor by_slot = torch::bmm(ds.transpose(1, 2), q);
  by_slot.narrow(2, 0, grad_out.size(2)) += torch::bmm(p.transpose(1, 2), grad_out);
  // A slot without a key has p = ds = 0, so that it adds nothing to key 0.
  Tensor grad_kv =
      torch::zeros_like(kv).index_add(0, indices.flatten().clamp_min(0), by_slot.flatten(0, 1));
  const Tensor grad_q = torch::bmm(ds, terms.k);
  const at::ScalarType type = rounding.is_output_bf16 ? at::kBFloat16 : at::kDouble;
  return {{"grad_q", grad_q.to(type)}, {"grad_kv", grad_kv.to(type)}};
}

}  // namespace patchbench::sparse_mla_pdp_precision
