// patchbench::mamba3_siso_rotary_bwd on torch's stable ABI. What it does: rotary.h.
#include <cmath>
#include <string>
#include <tuple>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "rotary.cuh"

namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_siso_bwd_cse";
constexpr const char* kOp = "mamba3_siso_rotary_bwd";
constexpr const char* kNeeds =
    "bfloat16, head_dim_qk 64 or 128, num_angles a quarter or a half of it, at most 64 heads a "
    "group, "
    "and compute capability 8.0 with 156 KiB of shared memory a CTA";

/// The arguments of the op: rotary.h.
struct RotaryInputs {
  Tensor q, k, q_bias, k_bias, angles, angles_cumsum, dt, trap;
};
struct RotaryGradOutputs {
  Tensor q_rotated, k_scaled, qk_dot;
};

ScalarType wide_of(const Tensor& q) { return q.scalar_type() == kDouble ? kDouble : kFloat; }

#ifdef PATCHBENCH_CUDA
/// The extents alone.
RotaryBackward extents_of(const RotaryInputs& in) {
  RotaryBackward problem;
  problem.batch = in.q.size(0);
  problem.seqlen = in.q.size(1);
  problem.num_groups = in.q.size(2);
  problem.num_heads = in.q_bias.size(0);
  problem.head_dim_qk = in.q.size(3);
  problem.num_angles = in.angles.size(3);
  return problem;
}
#endif

bool has_kernel(const RotaryInputs& in) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (in.q.is_cuda() && in.q.scalar_type() == kBFloat16) {
    const RotaryBackward problem = extents_of(in);
    const Gpu gpu = gpu_of(in.q);
    return is_rotary_served(problem) && gpu.major >= 8 &&
           gpu.shared_bytes >= rotary_shared_bytes(problem);
  }
#else
  static_cast<void>(in);
#endif
  return false;
}

// ---- checks ----

void check_tensor(const char* name, const Tensor& tensor, const Ints& shape, ScalarType type,
                  const Tensor& q) {
  ops::check_tensor(kOp, name, tensor, shape, type, q);
}

void check(const RotaryInputs& in, const RotaryGradOutputs& grad) {
  const Tensor& q = in.q;
  check_axes(kOp, "q", q, 4, "[batch, seqlen, num_groups, head_dim_qk]");
  const auto low = q.scalar_type(), wide = wide_of(q);
  PB_CHECK(low == kFloat || low == kBFloat16 || low == kHalf || low == kDouble, kOp,
           ": q must have dtype float32, bfloat16, float16 or float64, got ", text_of(low));
  const auto b = q.size(0), s = q.size(1), g = q.size(2), n = q.size(3);
  check_tensor("k", in.k, {b, s, g, n}, low, q);
  PB_CHECK(in.q_bias.dim() == 2, kOp, ": q_bias must have shape [num_heads, ", n, "], got ",
           text_of(in.q_bias.shape()));
  const auto h = in.q_bias.size(0);
  check_tensor("q_bias", in.q_bias, {h, n}, wide, q);
  check_tensor("k_bias", in.k_bias, {h, n}, wide, q);
  PB_CHECK(g > 0 && h % g == 0, kOp, ": num_groups must divide num_heads = ", h, ", got ", g);
  PB_CHECK(in.angles.dim() == 4 && 2 * in.angles.size(3) <= n, kOp,
           ": angles must have 4 axes [batch, seqlen, num_heads, num_angles], 2 num_angles <= ", n,
           ", got ", text_of(in.angles.shape()));
  const auto r = in.angles.size(3);
  check_tensor("angles", in.angles, {b, s, h, r}, low, q);
  check_tensor("angles_cumsum", in.angles_cumsum, {b, s, h, r}, low, q);
  check_tensor("dt", in.dt, {b, h, s}, wide, q);
  check_tensor("trap", in.trap, {b, h, s}, wide, q);
  check_tensor("grad_q_rotated", grad.q_rotated, {b, s, h, n}, low, q);
  check_tensor("grad_k_scaled", grad.k_scaled, {b, s, h, n}, low, q);
  check_tensor("grad_qk_dot", grad.qk_dot, {b, h, s}, wide, q);
}

// ---- the plain form ----

/// `row` turned by -theta, of which `sine` and `cosine` [b, s, h, r] are.
Tensor turned_back(const Tensor& row, const Tensor& sine, const Tensor& cosine) {
  const int64_t turned = 2 * sine.size(3);
  const auto pairs = row.narrow(3, 0, turned).unflatten(3, {-1, 2}).unbind(4);
  const Tensor first = cosine * pairs[0] + sine * pairs[1];
  const Tensor second = cosine * pairs[1] - sine * pairs[0];
  return cat({stack({first, second}, 4).flatten(3), row.narrow(3, turned, row.size(3) - turned)},
             3);
}

/// a[0] b[1] - a[1] b[0] of the pairs that are turned, [b, s, h, r].
Tensor cross(const Tensor& a, const Tensor& b, int64_t num_angles) {
  const auto pairs = [&](const Tensor& t) {
    return t.narrow(3, 0, 2 * num_angles).unflatten(3, {-1, 2}).unbind(4);
  };
  const auto left = pairs(a), right = pairs(b);
  return left[0] * right[1] - left[1] * right[0];
}

/// [b, h, s] as factors of [b, s, h, n].
Tensor by_row(const Tensor& scalars) { return scalars.transpose(1, 2).unsqueeze(3); }

Gradients backward_plain(const RotaryInputs& in, const RotaryGradOutputs& grad) {
  const auto wide = wide_of(in.q), low = in.q.scalar_type();
  const int64_t groups = in.q.size(2), heads = in.q_bias.size(0), num_angles = in.angles.size(3);
  const auto of_heads = [&](const Tensor& row, const Tensor& bias) {
    return row.to(wide).repeat_interleave(heads / groups, 2) + bias;
  };
  const auto of_groups = [&](const Tensor& rows) {
    return rows.unflatten(2, {groups, heads / groups}).sum(Ints{3}).to(low).contiguous();
  };
  const auto none = [](const Tensor& scalars) { return zeros_like(scalars.slice(2, 0, 1)); };
  const Tensor q = of_heads(in.q, in.q_bias), k = of_heads(in.k, in.k_bias);
  const Tensor share = in.trap.sigmoid(), gamma = in.dt * share;
  const Tensor rest = in.dt * (1 - share);
  const Tensor scale = gamma + cat({rest.slice(2, 1), none(rest)}, 2);
  const Tensor theta = in.angles_cumsum.to(wide), sine = theta.sin(), cosine = theta.cos();
  const Tensor u = turned_back(grad.q_rotated.to(wide), sine, cosine);
  const Tensor w = turned_back(grad.k_scaled.to(wide), sine, cosine);
  const Tensor mixed = by_row(gamma * grad.qk_dot), scales = by_row(scale);
  const Tensor grad_q = u + mixed * k, grad_k = scales * w + mixed * q;
  const Tensor grad_theta = cross(q, u, num_angles) + scales * cross(k, w, num_angles);
  const Tensor after = grad_theta.flip({1}).cumsum(1).flip({1}) * M_PI;
  const Tensor turn = in.angles.to(wide).tanh();
  const Tensor grad_scale = (k * w).sum(Ints{3}).transpose(1, 2);
  const Tensor own = grad_scale + grad.qk_dot * (q * k).sum(Ints{3}).transpose(1, 2);
  const Tensor before = cat({none(grad_scale), grad_scale.slice(2, 0, -1)}, 2);
  return {of_groups(grad_q),
          of_groups(grad_k),
          grad_q.sum(Ints{0, 1}),
          grad_k.sum(Ints{0, 1}),
          (after * by_row(in.dt) * (1 - turn * turn)).to(low).contiguous(),
          (own * share + before * (1 - share) + (after * turn).sum(Ints{3}).transpose(1, 2))
              .contiguous(),
          ((own - before) * in.dt * share * (1 - share)).contiguous()};
}

// ---- the dispatcher's side: its schema is flat ----

#define PB_ROTARY_ARGUMENTS                                                                    \
  const Tensor &q, const Tensor &k, const Tensor &q_bias, const Tensor &k_bias,                \
      const Tensor &angles, const Tensor &angles_cumsum, const Tensor &dt, const Tensor &trap, \
      const Tensor &grad_q_rotated, const Tensor &grad_k_scaled, const Tensor &grad_qk_dot

#ifdef PATCHBENCH_CUDA
void launch(const RotaryInputs& in, const RotaryGradOutputs& grad, const Gradients& to) {
  RotaryBackward problem = extents_of(in);
  problem.block_tokens = rotary_block_tokens(problem, gpu_of(in.q).num_processors);
  problem.num_blocks = (problem.seqlen + problem.block_tokens - 1) / problem.block_tokens;
  const Tensor grad_cumsum = empty(in.angles.shape(), in.dt);
  const Tensor grad_scale = empty_like(in.dt), grad_gamma = empty_like(in.dt);
  const Tensor sums = empty({problem.batch, problem.num_blocks, problem.num_heads,
                             2 * problem.head_dim_qk + problem.num_angles},
                            in.dt);
  problem.q = in.q.data();
  problem.k = in.k.data();
  problem.q_bias = in.q_bias.data<float>();
  problem.k_bias = in.k_bias.data<float>();
  problem.angles = in.angles.data();
  problem.angles_cumsum = in.angles_cumsum.data();
  problem.dt = in.dt.data<float>();
  problem.trap = in.trap.data<float>();
  problem.grad_q_rotated = grad.q_rotated.data();
  problem.grad_k_scaled = grad.k_scaled.data();
  problem.grad_qk_dot = grad.qk_dot.data<float>();
  problem.grad_q = std::get<0>(to).mutable_data();
  problem.grad_k = std::get<1>(to).mutable_data();
  problem.grad_q_bias = std::get<2>(to).mutable_data<float>();
  problem.grad_k_bias = std::get<3>(to).mutable_data<float>();
  problem.grad_angles = std::get<4>(to).mutable_data();
  problem.grad_dt = std::get<5>(to).mutable_data<float>();
  problem.grad_trap = std::get<6>(to).mutable_data<float>();
  problem.grad_cumsum = grad_cumsum.mutable_data<float>();
  problem.grad_scale = grad_scale.mutable_data<float>();
  problem.grad_gamma = grad_gamma.mutable_data<float>();
  problem.sums = sums.mutable_data<float>();
  check_cuda(kOp, launch_rotary_backward(problem, current_stream(in.q)));
}
#endif

Gradients backward(PB_ROTARY_ARGUMENTS) {
  const RotaryInputs in{q, k, q_bias, k_bias, angles, angles_cumsum, dt, trap};
  const RotaryGradOutputs grad{grad_q_rotated, grad_k_scaled, grad_qk_dot};
  check(in, grad);
  const DeviceScope device(q);
#ifdef PATCHBENCH_CUDA
  if (has_kernel(in) && grad_q_rotated.numel() > 0) {
    const Gradients gradients = {empty_like(q),      empty_like(k),      empty_like(q_bias),
                                 empty_like(k_bias), empty_like(angles), empty_like(dt),
                                 empty_like(trap)};
    launch({in_words(q), in_words(k), in_words(q_bias), in_words(k_bias), in_words(angles),
            in_words(angles_cumsum), in_words(dt), in_words(trap)},
           {in_words(grad_q_rotated), in_words(grad_k_scaled), in_words(grad_qk_dot)}, gradients);
    return gradients;
  }
#endif
  warn_of_plain_form(kSlug, kOp, q, kNeeds);
  return backward_plain(in, grad);
}

std::string path_of(const Tensor& q, const Tensor& q_bias, const Tensor& angles) {
  RotaryInputs in;
  in.q = q;
  in.q_bias = q_bias;
  in.angles = angles;
  return has_kernel(in) ? "cuda" : "plain";
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "mamba3_siso_rotary_bwd(Tensor q, Tensor k, Tensor q_bias, Tensor k_bias, Tensor angles, "
      "Tensor angles_cumsum, Tensor dt, Tensor trap, Tensor grad_q_rotated, Tensor grad_k_scaled, "
      "Tensor grad_qk_dot) -> (Tensor grad_q, Tensor grad_k, Tensor grad_q_bias, Tensor "
      "grad_k_bias, Tensor grad_angles, Tensor grad_dt, Tensor grad_trap)");
  m.def("mamba3_siso_rotary_bwd_path(Tensor q, Tensor q_bias, Tensor angles) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("mamba3_siso_rotary_bwd_path", &boxed<path_of>);
}
STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("mamba3_siso_rotary_bwd", &boxed<backward>);
}
STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("mamba3_siso_rotary_bwd", &boxed<backward>);
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
