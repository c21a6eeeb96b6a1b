#pragma once
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/inputs.h"
#include "mamba3_siso_bwd_cse/rotary.h"

/// Problems of patchbench::mamba3_siso_rotary_bwd and its gradients by fp64 autograd.
namespace patchbench::mamba3_siso_rotary_test {

using at::Tensor;
using ops::mamba3_siso_bwd_cse::mamba3_siso_rotary_bwd;
using ops::mamba3_siso_bwd_cse::mamba3_siso_rotary_bwd_path;
using ops::mamba3_siso_bwd_cse::RotaryGradients;
using ops::mamba3_siso_bwd_cse::RotaryGradOutputs;
using ops::mamba3_siso_bwd_cse::RotaryInputs;

struct RotaryCase {
  std::string name;
  int64_t batch = 2, seqlen = 150, num_groups = 2, num_heads = 6, head_dim_qk = 128;
  int64_t num_angles = 32;
  bool is_cuda_only = false;
};

struct Call {
  RotaryInputs inputs;
  RotaryGradOutputs grad_outputs;
};

inline at::ScalarType wide_of(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

/// theta_t = sum_{u <= t} pi tanh(angles_u) dt_u.
inline Tensor theta_of(const Tensor& angles, const Tensor& dt) {
  return (angles.tanh() * M_PI * dt.transpose(1, 2).unsqueeze(3)).cumsum(1);
}

/// In fp64, rounded to what the op is given; theta as a forward in that type would leave it.
inline Call problem_of(const RotaryCase& c, at::ScalarType type) {
  const auto draw = [&](const char* name) { return harness::Draw(4, c.name + "/" + name); };
  const auto low = [&](const char* name, int64_t rows, int64_t width) {
    return draw(name).normal({c.batch, c.seqlen, rows, width}).to(type).to(at::kDouble);
  };
  const auto wide = [&](const Tensor& t) { return t.to(wide_of(type)).to(at::kDouble); };
  Call p;
  RotaryInputs& in = p.inputs;
  in.q = low("q", c.num_groups, c.head_dim_qk);
  in.k = low("k", c.num_groups, c.head_dim_qk);
  in.q_bias = wide(draw("q_bias").normal({c.num_heads, c.head_dim_qk}));
  in.k_bias = wide(draw("k_bias").normal({c.num_heads, c.head_dim_qk}));
  in.angles = low("angles", c.num_heads, c.num_angles);
  const std::vector<int64_t> scalars = {c.batch, c.num_heads, c.seqlen};
  in.dt = wide(draw("dt").uniform(scalars, 0.01, 0.2));
  in.trap = wide(draw("trap").normal(scalars));
  in.angles_cumsum = theta_of(in.angles, in.dt).remainder(2 * M_PI).to(type).to(at::kDouble);
  p.grad_outputs = {low("grad_q_rotated", c.num_heads, c.head_dim_qk),
                    low("grad_k_scaled", c.num_heads, c.head_dim_qk),
                    wide(draw("grad_qk_dot").normal(scalars))};
  return p;
}

/// The problem as the op takes it.
inline Call call_on(Call p, at::ScalarType type, const at::Device& device) {
  for (Tensor* t : {&p.inputs.q, &p.inputs.k, &p.inputs.angles, &p.inputs.angles_cumsum,
                    &p.grad_outputs.q_rotated, &p.grad_outputs.k_scaled})
    *t = t->to(type).to(device);
  for (Tensor* t :
       {&p.inputs.q_bias, &p.inputs.k_bias, &p.inputs.dt, &p.inputs.trap, &p.grad_outputs.qk_dot})
    *t = t->to(wide_of(type)).to(device);
  return p;
}

/// Rows [b, s, h, n] with their pairs (2 i, 2 i + 1) turned by theta_i.
inline Tensor turned(const Tensor& rows, const Tensor& theta) {
  const Tensor angle = at::constant_pad_nd(theta, {0, rows.size(3) / 2 - theta.size(3)});
  const Tensor sine = angle.sin(), cosine = angle.cos();
  const auto pairs = rows.unflatten(3, {-1, 2}).unbind(4);
  return at::stack({pairs[0] * cosine - pairs[1] * sine, pairs[0] * sine + pairs[1] * cosine}, 4)
      .flatten(3);
}

/// Autograd through the formulas of rotary.h, at the theta that the op is given.
inline RotaryGradients oracle(const Call& p) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : {p.inputs.q, p.inputs.k, p.inputs.q_bias, p.inputs.k_bias, p.inputs.angles,
                          p.inputs.dt, p.inputs.trap})
    leaves.push_back(t.detach().clone().requires_grad_());
  const Tensor &angles = leaves[4], &dt = leaves[5], &trap = leaves[6];
  const int64_t heads = leaves[2].size(0), groups = leaves[0].size(2);
  const Tensor head_of = torch::arange(heads, at::kLong).floor_divide(heads / groups);
  const Tensor q = leaves[0].index_select(2, head_of) + leaves[2];
  const Tensor k = leaves[1].index_select(2, head_of) + leaves[3];
  const Tensor own_theta = theta_of(angles, dt);
  const Tensor theta = p.inputs.angles_cumsum + own_theta - own_theta.detach();
  const Tensor gamma = dt * trap.sigmoid(), rest = dt - gamma;
  const Tensor next = at::cat({rest.slice(2, 1), torch::zeros_like(rest.slice(2, 0, 1))}, 2);
  const auto by_row = [](const Tensor& t) { return t.transpose(1, 2).unsqueeze(3); };
  const Tensor loss = (turned(q, theta) * p.grad_outputs.q_rotated).sum() +
                      (by_row(gamma + next) * turned(k, theta) * p.grad_outputs.k_scaled).sum() +
                      (gamma * (q * k).sum(3).transpose(1, 2) * p.grad_outputs.qk_dot).sum();
  auto g = torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  for (size_t i = 0; i < g.size(); ++i)
    if (!g[i].defined()) g[i] = torch::zeros_like(leaves[i]);
  return {g[0], g[1], g[2], g[3], g[4], g[5], g[6]};
}

inline std::vector<std::pair<std::string, Tensor>> named(const RotaryGradients& g) {
  return {{"q", g.q},           {"k", g.k},   {"q_bias", g.q_bias}, {"k_bias", g.k_bias},
          {"angles", g.angles}, {"dt", g.dt}, {"trap", g.trap}};
}

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
inline double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.detach().cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

}  // namespace patchbench::mamba3_siso_rotary_test
