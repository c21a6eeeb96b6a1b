#pragma once
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "fp8_storage_dispatch/op.h"
#include "harness/inputs.h"

/// Problems of patchbench::sparse_mla_fp8 and their answer: fp64 sums over the stored values,
/// decoded here bit by bit.
namespace patchbench::sparse_mla_fp8_test {

using at::Tensor;
using ops::fp8_storage_dispatch::Fp8Storage;
using ops::fp8_storage_dispatch::quantize_mla;

constexpr int64_t kDim = 576, kDimV = 512;
constexpr double kScale = 1.0 / 24;  // of the logits: 576^-0.5
/// P is rounded to bfloat16 (2^-9), and so is the result.
constexpr double kKernelBound = 5e-3;

struct MlaCase {
  std::string name, layout = "tensor";
  int64_t batch = 2, seqlen_q = 3, num_heads = 16, seqlen_k = 96, topk = 64;
  double sharpness = 1;          ///< factor on the query
  bool is_query_stored = false;  ///< block: the query too, per token
  double block_scale = 1;        ///< block: factor on the stored scales, else powers of two
  bool is_rising = false;        ///< all keys in the order of the first head's logits; topk of them
};

struct Problem {
  Tensor query, kv, indices, grad_out;  // fp64, int32
  Fp8Storage q, k;
};

/// topk_indices with repeats, a share of -1, one index beyond the keys and, in row 0 of batch entry
/// 0, no key at all.
inline Tensor indices_of(const MlaCase& c) {
  const std::vector<int64_t> shape = {c.batch, c.seqlen_q, 1, c.topk};
  const harness::Draw draw(11, c.name + "/indices");
  Tensor indices = draw.integers(shape, 0, std::max<int64_t>(c.seqlen_k, 1)).to(at::kInt);
  indices.masked_fill_(harness::Draw(11, c.name + "/none").mask(shape, 0.1), -1);
  if (c.seqlen_k == 0) indices.fill_(-1);
  if (indices.numel() > 0) {
    indices[0][0].fill_(-1);
    indices[c.batch - 1][c.seqlen_q - 1][0][0] = static_cast<int>(c.seqlen_k) + 3;
  }
  return indices;
}

inline Problem problem_of(const MlaCase& c, const at::Device& device) {
  const auto normal = [&](const char* name, const std::vector<int64_t>& shape) {
    return harness::Draw(11, c.name + "/" + name).normal(shape).to(at::kBFloat16);
  };
  Problem p;
  p.query = normal("query", {c.batch, c.seqlen_q, c.num_heads, kDim}) * c.sharpness;
  p.kv = normal("kv", {c.batch, c.seqlen_k, 1, kDim});
  p.indices = indices_of(c);
  if (c.is_rising) {
    const Tensor logits = at::einsum(
        "bsd,bkd->bsk", {p.query.select(2, 0).to(at::kDouble), p.kv.squeeze(2).to(at::kDouble)});
    p.indices = logits.argsort(/*stable=*/true, -1, /*descending=*/false)
                    .unsqueeze(2)
                    .to(at::kInt)
                    .contiguous();
  }
  p.grad_out = normal("grad_out", {c.batch, c.seqlen_q, c.num_heads, kDimV});
  const bool is_dense = c.layout == "block" && !c.is_query_stored;
  p.q = is_dense ? Fp8Storage{p.query.to(device), std::nullopt}
                 : quantize_mla(p.query.to(device), c.layout == "block" ? "token" : c.layout);
  p.k = quantize_mla(p.kv.to(device), c.layout);
  if (c.block_scale != 1) p.k.payload.narrow(-1, kDimV, 16).view(at::kFloat).mul_(c.block_scale);
  return p;
}

// ---- the oracle ----

/// e4m3fn by its definition: 1 sign, 4 exponent bits of bias 7, 3 of mantissa, no infinity.
inline double decoded(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return byte & 0x80 ? -size : size;
}

inline Tensor decode(const Tensor& bytes) {
  const Tensor flat = bytes.cpu().contiguous().view(at::kByte);
  Tensor values = torch::empty(flat.sizes(), at::kDouble);
  for (int64_t i = 0; i < flat.numel(); ++i)
    values.data_ptr<double>()[i] = decoded(flat.data_ptr<uint8_t>()[i]);
  return values;
}

/// The stored values in fp64, [..., 576].
inline Tensor stored_values(const Fp8Storage& s) {
  const Tensor payload = s.payload.cpu();
  if (payload.scalar_type() == at::kBFloat16) return payload.to(at::kDouble);
  if (s.scale) {
    const Tensor scale = s.scale->cpu().to(at::kDouble);
    const Tensor values = decode(payload);
    return scale.numel() == 1
               ? values * scale.reshape(at::IntArrayRef())
               : values * scale.view(values.sizes().slice(0, values.dim() - 1)).unsqueeze(-1);
  }
  const auto bytes = [&](int64_t first, int64_t count) {
    return payload.narrow(-1, first, count).contiguous();
  };
  const Tensor scales = bytes(512, 16).view(at::kFloat).to(at::kDouble).repeat_interleave(128, -1);
  return at::cat(
      {decode(bytes(0, 512)) * scales, bytes(528, 128).view(at::kBFloat16).to(at::kDouble)}, -1);
}

struct Result {
  Tensor out, lse, grad_q, grad_kv;
};

/// All of it in fp64, gradients by autograd.
inline Result oracle(const Problem& p, const Tensor& q_values, const Tensor& k_values) {
  const Tensor q = q_values.detach().clone().requires_grad_();
  const Tensor kv = k_values.detach().clone().requires_grad_();
  const int64_t seqlen_k = kv.size(1);
  const Tensor index = p.indices.squeeze(2).to(at::kLong);
  const Tensor is_key = index.ge(0).logical_and(index.lt(seqlen_k));
  std::vector<Tensor> outs, lses;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const Tensor open = is_key[b].unsqueeze(1);
    const Tensor k =
        at::embedding(seqlen_k > 0 ? kv[b].squeeze(1) : torch::zeros({1, kDim}, at::kDouble),
                      index[b].masked_fill(is_key[b].logical_not(), 0));
    const Tensor logits = at::einsum("shd,skd->shk", {q[b], k}) * kScale;
    const Tensor weight = at::where(open, logits.exp(), 0.0);
    const Tensor sum = weight.sum(-1, true);
    const Tensor value = at::einsum("shk,skd->shd", {weight, k.narrow(-1, 0, kDimV)});
    outs.push_back(at::where(sum.gt(0), value / sum.clamp_min(1e-300), 0.0));
    lses.push_back(at::where(sum.gt(0), sum.clamp_min(1e-300).log2(), 0.0).squeeze(-1));
  }
  Result r{at::stack(outs), at::stack(lses), {}, {}};
  const auto grads = torch::autograd::grad({r.out}, {q, kv}, {p.grad_out.to(at::kDouble)}, true,
                                           false, /*allow_unused=*/true);
  r.grad_q = grads[0];
  r.grad_kv = grads[1].defined() ? grads[1] : torch::zeros_like(kv);
  return r;
}

/// max over rows r of |<got_r, wanted_r> / <wanted_r, wanted_r> - 1|, over rows that are not zero:
/// a row's common factor, which is what weights that do not sum to one leave.
inline double worst_row_factor(const Tensor& got, const Tensor& wanted) {
  const Tensor squares = (wanted * wanted).sum(-1);
  const Tensor factor = (got.cpu().to(at::kDouble) * wanted).sum(-1) / squares.clamp_min(1e-300);
  const Tensor error = at::where(squares.gt(0), (factor - 1).abs(), 0.0);
  return error.numel() > 0 ? error.max().item<double>() : 0;
}

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
inline double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

}  // namespace patchbench::sparse_mla_fp8_test
