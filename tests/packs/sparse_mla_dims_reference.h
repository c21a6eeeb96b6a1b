#pragma once
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "harness/inputs.h"

/// Problems of sparse MLA and their answer in fp64.
namespace patchbench::sparse_mla_dims_test {

using at::Tensor;

struct MlaCase {
  std::string name;
  int64_t head_dim_qk = 96, head_dim_v = 64;
  int64_t batch = 2, seqlen_q = 3, num_heads = 16, seqlen_k = 80, topk = 64;
  std::string data = "iid";
};

struct Problem {
  Tensor q, kv, grad_out;  ///< fp64, values of the dtype under test
  Tensor indices;
  double softmax_scale = 0;
  int64_t head_dim_v = 0;
};

/// Repeats (more slots than keys, or chance), a share of -1, one index beyond the keys, and no key
/// at all for the first query.
inline Tensor indices_of(const MlaCase& c) {
  const std::vector<int64_t> shape = {c.batch, c.seqlen_q, 1, c.topk};
  Tensor indices = harness::Draw(2, c.name + "/indices")
                       .integers(shape, 0, std::max<int64_t>(c.seqlen_k, 1))
                       .to(at::kInt);
  indices.masked_fill_(harness::Draw(2, c.name + "/none").mask(shape, 0.1), -1);
  if (c.seqlen_k == 0) indices.fill_(-1);
  if (indices.numel() > 0) {
    indices[0][0].fill_(-1);
    indices[c.batch - 1][c.seqlen_q - 1][0][0] = static_cast<int>(c.seqlen_k) + 3;
  }
  return indices;
}

/// iid: normal. mean: keys share a mean of twice their spread, queries and grad_out one of each
/// head. sink: every query holds key 0, which lies along one direction that all queries point to.
inline Problem problem_of(const MlaCase& c, at::ScalarType type) {
  const auto normal = [&](const char* name, const std::vector<int64_t>& shape) {
    return harness::Draw(2, c.name + "/" + name).normal(shape);
  };
  Problem p{.indices = indices_of(c),
            .softmax_scale = 1 / std::sqrt(static_cast<double>(c.head_dim_qk)),
            .head_dim_v = c.head_dim_v};
  p.q = normal("q", {c.batch, c.seqlen_q, c.num_heads, c.head_dim_qk});
  p.kv = normal("kv", {c.batch, c.seqlen_k, 1, c.head_dim_qk});
  p.grad_out = normal("grad_out", {c.batch, c.seqlen_q, c.num_heads, c.head_dim_v});
  if (c.data != "iid") {
    const Tensor direction = normal("direction", {c.head_dim_qk});
    if (c.data == "mean") {
      p.q = p.q + normal("mean_q", {c.num_heads, c.head_dim_qk});
      p.kv = p.kv + 2 * direction;
      p.grad_out = p.grad_out + normal("mean_grad", {c.num_heads, c.head_dim_v});
    } else {
      p.q = p.q + direction;
      p.kv.select(1, 0).copy_(direction);
      p.indices.select(3, 0).zero_();
    }
  }
  for (Tensor* tensor : {&p.q, &p.kv, &p.grad_out}) *tensor = tensor->to(type).to(at::kDouble);
  return p;
}

struct Result {
  Tensor out, lse, grad_q, grad_kv;
  std::vector<std::pair<std::string, Tensor>> named() const {
    return {{"out", out}, {"lse", lse}, {"grad_q", grad_q}, {"grad_kv", grad_kv}};
  }
};

/// All of it in fp64, gradients by autograd.
inline Result oracle(const Problem& p) {
  const Tensor q = p.q.detach().clone().requires_grad_();
  const Tensor kv = p.kv.detach().clone().requires_grad_();
  const Tensor index = p.indices.squeeze(2).to(at::kLong);
  const Tensor is_key = index.ge(0).logical_and(index.lt(kv.size(1)));
  const Tensor none = torch::zeros({q.size(0), 1, kv.size(3)}, at::kDouble);
  const Tensor rows = at::cat({kv.squeeze(2), none}, 1);  // the last one is not a key
  std::vector<Tensor> outs, lses;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const Tensor k = at::embedding(rows[b], at::where(is_key[b], index[b], kv.size(1)));
    const Tensor logits = at::einsum("shd,skd->shk", {q[b], k}) * p.softmax_scale;
    const Tensor weight = at::where(is_key[b].unsqueeze(1), logits.exp(), 0.0);
    const Tensor sum = weight.sum(-1, true);
    const Tensor value = at::einsum("shk,skd->shd", {weight, k.narrow(-1, 0, p.head_dim_v)});
    outs.push_back(at::where(sum.gt(0), value / sum.clamp_min(1e-300), 0.0));
    lses.push_back(at::where(sum.gt(0), sum.clamp_min(1e-300).log2(), 0.0).squeeze(-1));
  }
  Result r{at::stack(outs), at::stack(lses), {}, {}};
  const auto grads = torch::autograd::grad({r.out}, {q, kv}, {p.grad_out});
  r.grad_q = grads[0];
  r.grad_kv = grads[1];
  return r;
}

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
inline double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

/// Of a norm. bfloat16: one rounding costs 1.66e-3 in the mean of squares; P or dS and the result
/// are rounded, 2.35e-3 on iid data. float16 has three bits more. float32, float64: sums of up to
/// 576 terms and then topk.
inline double bound_of(at::ScalarType type) {
  if (type == at::kHalf) return 4e-3 / 8;
  return type == at::kBFloat16 ? 4e-3 : type == at::kFloat ? 5e-6 : 1e-14;
}

/// Of a row. A query with one key has no grad_q: what rounding leaves is set against 1e-3 of the
/// largest row (harness::errors_of).
inline double row_bound_of(at::ScalarType type) {
  return (at::elementSize(type) == 2 ? 3 : 100) * bound_of(type);
}

}  // namespace patchbench::sparse_mla_dims_test
