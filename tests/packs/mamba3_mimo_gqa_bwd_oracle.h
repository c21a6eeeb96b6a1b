#pragma once
#include <torch/torch.h>

#include "harness/inputs.h"
#include "mamba3_mimo_gqa_bwd/op.h"

/// Problems of patchbench::mamba3_mimo_bwd and their right gradients: fp64 autograd through the
/// recurrence, token by token.
namespace patchbench::mamba3_mimo_test {

using at::Tensor;
using ops::mamba3_mimo_gqa_bwd::MimoGradients;
using ops::mamba3_mimo_gqa_bwd::MimoInputs;

struct MimoCase {
  std::string name;
  int64_t batch = 2, seqlen = 40, num_ranks = 4, num_heads = 4, num_groups = 2, head_dim_qk = 16,
          head_dim_v = 8, num_angles = 4;
  std::vector<int64_t> lengths = {};  ///< packed into batch 1 and seqlen = their sum
  bool has_d = true, has_z = true, has_o = true;
  double steepest = 0.5;  ///< -adt is below this
  bool has_kernel = false;
};

/// Extents that the kernels serve.
inline MimoCase on_kernel(MimoCase c) {
  c.head_dim_qk = c.head_dim_qk == 16 ? 64 : c.head_dim_qk;
  c.head_dim_v = c.head_dim_v == 8 ? 64 : c.head_dim_v;
  c.has_kernel = true;
  return c;
}

/// Leaves for the oracle in fp64, already rounded to what the op is given.
struct Problem {
  MimoInputs inputs;
  Tensor grad_out;
  std::vector<int64_t> begins;  ///< of sequences; the end last. Dense: 0, seqlen
};

inline Problem problem_of(const MimoCase& given, at::ScalarType low) {
  MimoCase c = given;
  Problem p{.begins = {0}};
  for (const int64_t length : c.lengths) p.begins.push_back(p.begins.back() + length);
  if (c.lengths.empty()) {
    p.begins.push_back(c.seqlen);
  } else {
    c.batch = 1;
    c.seqlen = p.begins.back();
  }
  const int64_t b = c.batch, s = c.seqlen, r = c.num_ranks, h = c.num_heads, n = c.head_dim_qk;
  const at::ScalarType wide = low == at::kDouble ? low : at::kFloat;
  const auto draw = [&](const char* name) { return harness::Draw(6, c.name + "/" + name); };
  const auto normal = [&](const char* name, std::vector<int64_t> shape, at::ScalarType type) {
    return draw(name).normal(std::move(shape)).to(type).to(at::kDouble);
  };
  const auto uniform = [&](const char* name, std::vector<int64_t> shape, double from, double to) {
    return draw(name).uniform(std::move(shape), from, to).to(wide).to(at::kDouble);
  };
  MimoInputs& in = p.inputs;
  in.q = normal("q", {b, s, r, c.num_groups, n}, low);
  in.k = normal("k", {b, s, r, c.num_groups, n}, low);
  in.v = normal("v", {b, s, h, c.head_dim_v}, low);
  in.adt = uniform("adt", {b, h, s}, -c.steepest, -1e-4);
  in.dt = uniform("dt", {b, h, s}, 0.05, 0.25);
  in.trap = normal("trap", {b, h, s}, low);
  in.q_bias = normal("q_bias", {h, r, n}, wide);
  in.k_bias = normal("k_bias", {h, r, n}, wide);
  in.mimo_v = normal("mimo_v", {h, r, c.head_dim_v}, wide);
  in.angles = uniform("angles", {b, s, h, c.num_angles}, -6.28, 6.28);
  if (c.has_d) in.d = normal("d", {h}, wide);
  if (c.has_o) in.mimo_o = normal("mimo_o", {h, r, c.head_dim_v}, wide);
  if (c.has_z) {
    in.z = normal("z", {b, s, h, c.head_dim_v}, low);
    in.mimo_z = normal("mimo_z", {h, r, c.head_dim_v}, wide);
  }
  if (!c.lengths.empty()) in.cu_seqlens = torch::tensor(p.begins, at::kLong).to(at::kInt);
  using Sizes = std::vector<int64_t>;
  p.grad_out = normal(
      "grad_out", c.has_o ? Sizes{b, s, h, c.head_dim_v} : Sizes{b, s, r, h, c.head_dim_v}, low);
  return p;
}

/// Pointers to all tensors that have gradients, in the order of MimoGradients; null where absent.
inline std::vector<Tensor*> leaves_of(MimoInputs& in) {
  const auto optional = [](std::optional<Tensor>& t) { return t ? &*t : nullptr; };
  return {&in.q,
          &in.k,
          &in.v,
          &in.adt,
          &in.dt,
          &in.trap,
          &in.q_bias,
          &in.k_bias,
          &in.mimo_v,
          optional(in.mimo_z),
          optional(in.mimo_o),
          &in.angles,
          optional(in.d),
          optional(in.z)};
}

inline std::vector<std::pair<std::string, Tensor>> named(const MimoGradients& g) {
  return {{"q", g.q},           {"k", g.k},
          {"v", g.v},           {"adt", g.adt},
          {"dt", g.dt},         {"trap", g.trap},
          {"q_bias", g.q_bias}, {"k_bias", g.k_bias},
          {"mimo_v", g.mimo_v}, {"mimo_z", g.mimo_z},
          {"mimo_o", g.mimo_o}, {"angles", g.angles},
          {"d", g.d},           {"z", g.z}};
}

/// The problem as the op takes it: q, k, v, z and trap low, the others wide.
inline MimoInputs inputs_on(const Problem& p, at::ScalarType low, const at::Device& device) {
  MimoInputs in = p.inputs;
  const at::ScalarType wide = low == at::kDouble ? low : at::kFloat;
  const auto leaves = leaves_of(in);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool is_low = i < 3 || i == 5 || i == 13;
    if (leaves[i]) *leaves[i] = leaves[i]->to(is_low ? low : wide).to(device);
  }
  if (in.cu_seqlens) in.cu_seqlens = in.cu_seqlens->to(device);
  return in;
}

inline Tensor turned(const Tensor& x, const Tensor& theta) {
  const int64_t count = theta.size(-1), half = x.size(-1) / 2;
  const Tensor cos = theta.cos(), sin = theta.sin();
  const Tensor a = x.slice(-1, 0, count), b = x.slice(-1, half, half + count);
  return at::cat(
      {a * cos - b * sin, x.slice(-1, count, half), a * sin + b * cos, x.slice(-1, half + count)},
      -1);
}

/// out of op.h's recurrence, one token after another.
inline Tensor recurrence(const MimoInputs& in, const std::vector<int64_t>& begins) {
  const int64_t share = in.v.size(2) / in.q.size(3);
  const auto per_head = [&](const Tensor& x, const Tensor& bias) {
    return turned(x.repeat_interleave(share, 3) + bias.transpose(0, 1), in.angles.unsqueeze(2));
  };
  const Tensor q = per_head(in.q, in.q_bias), k = per_head(in.k, in.k_bias);
  const Tensor x = in.v.unsqueeze(2) * in.mimo_v.transpose(0, 1);
  const Tensor weight = in.trap.sigmoid(), decay = in.adt.exp();
  std::vector<Tensor> rows;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    Tensor state, before;
    for (int64_t t = begins[i]; t < begins[i + 1]; ++t) {
      const auto at_t = [&](const Tensor& steps) {
        return steps.select(2, t).view({-1, x.size(3), 1, 1});
      };
      const Tensor now = at::einsum("brhp,brhn->bhpn", {x.select(1, t), k.select(1, t)});
      Tensor next = at_t(weight * in.dt) * now;
      if (t > begins[i])
        next = next + at_t(decay) * state + at_t((1 - weight) * in.dt * decay) * before;
      state = next;
      before = now;
      rows.push_back(at::einsum("bhpn,brhn->brhp", {state, q.select(1, t)}));
    }
  }
  Tensor y = rows.empty() ? x * 0 : at::stack(rows, 1);
  if (in.d) y = y + in.d->unsqueeze(-1) * x;
  if (in.z) y = y * at::silu(in.z->unsqueeze(2) * in.mimo_z->transpose(0, 1));
  return in.mimo_o ? (y * in.mimo_o->transpose(0, 1)).sum(2) : y;
}

/// The right gradients, in the order of MimoGradients; [0] for absent inputs.
inline std::vector<Tensor> oracle(const Problem& p) {
  MimoInputs in = p.inputs;
  std::vector<Tensor> present, all;
  for (Tensor* leaf : leaves_of(in)) {
    if (leaf) present.push_back(*leaf = leaf->detach().clone().requires_grad_());
  }
  const auto grads = torch::autograd::grad({recurrence(in, p.begins)}, present, {p.grad_out},
                                           std::nullopt, false, /*allow_unused=*/true);
  size_t next = 0;
  for (const Tensor* leaf : leaves_of(in)) {
    all.push_back(!leaf                   ? torch::zeros({0}, at::kDouble)
                  : grads[next].defined() ? grads[next]
                                          : torch::zeros_like(*leaf));
    next += leaf != nullptr;
  }
  return all;
}

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
inline double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.detach().cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

}  // namespace patchbench::mamba3_mimo_test
