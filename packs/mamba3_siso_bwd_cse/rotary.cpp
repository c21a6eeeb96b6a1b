#include "rotary.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cmath>

#include "../op_fallback.h"
#include "rotary.cuh"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::ops::mamba3_siso_bwd_cse {
namespace {

using at::Tensor;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using Shape = std::vector<c10::SymInt>;

constexpr const char* kSlug = "mamba3_siso_bwd_cse";
constexpr const char* kOp = "mamba3_siso_rotary_bwd";
constexpr const char* kNeeds =
    "bfloat16, head_dim_qk 64 or 128, num_angles a quarter or a half of it, at most 64 heads a "
    "group, "
    "and compute capability 8.0 with 156 KiB of shared memory a CTA";

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

at::ScalarType wide_of(const Tensor& q) {
  return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

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
  if (in.q.is_cuda() && in.q.scalar_type() == at::kBFloat16) {
    const RotaryBackward problem = extents_of(in);
    const auto* device = at::cuda::getDeviceProperties(in.q.get_device());
    return is_rotary_served(problem) && device->major >= 8 &&
           static_cast<int64_t>(device->sharedMemPerBlockOptin) >= rotary_shared_bytes(problem);
  }
#else
  static_cast<void>(in);
#endif
  return false;
}

// ---- checks: on symbolic sizes, so that Meta and the real devices share them ----

/// One tensor against its shape, dtype and q's device.
void check_tensor(const char* name, const Tensor& tensor, const Shape& shape, at::ScalarType type,
                  const Tensor& q) {
  TORCH_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), kOp, ": ", name,
              " must have shape ", c10::SymIntArrayRef(shape), ", got ", tensor.sym_sizes());
  TORCH_CHECK(tensor.scalar_type() == type, kOp, ": ", name, " must have dtype ", dtype_name(type),
              ", got ", dtype_name(tensor.scalar_type()));
  TORCH_CHECK(tensor.device() == q.device(), kOp, ": ", name, " must be on ", q.device(), ", got ",
              tensor.device());
}

void check(const RotaryInputs& in, const RotaryGradOutputs& grad) {
  const Tensor& q = in.q;
  TORCH_CHECK(q.dim() == 4, kOp,
              ": q must have 4 axes [batch, seqlen, num_groups, head_dim_qk], got ", q.dim());
  const auto low = q.scalar_type(), wide = wide_of(q);
  TORCH_CHECK(low == at::kFloat || low == at::kBFloat16 || low == at::kHalf || low == at::kDouble,
              kOp, ": q must have dtype float32, bfloat16, float16 or float64, got ",
              dtype_name(low));
  const auto b = q.sym_size(0), s = q.sym_size(1), g = q.sym_size(2), n = q.sym_size(3);
  check_tensor("k", in.k, {b, s, g, n}, low, q);
  TORCH_CHECK(in.q_bias.dim() == 2, kOp, ": q_bias must have shape [num_heads, ", n, "], got ",
              in.q_bias.sym_sizes());
  const auto h = in.q_bias.sym_size(0);
  check_tensor("q_bias", in.q_bias, {h, n}, wide, q);
  check_tensor("k_bias", in.k_bias, {h, n}, wide, q);
  TORCH_CHECK(g > 0 && h % g == 0, kOp, ": num_groups must divide num_heads = ", h, ", got ", g);
  TORCH_CHECK(in.angles.dim() == 4 && 2 * in.angles.sym_size(3) <= n, kOp,
              ": angles must have 4 axes [batch, seqlen, num_heads, num_angles], 2 num_angles <= ",
              n, ", got ", in.angles.sym_sizes());
  const auto r = in.angles.sym_size(3);
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
  return at::cat(
      {at::stack({first, second}, 4).flatten(3), row.narrow(3, turned, row.size(3) - turned)}, 3);
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
    return rows.unflatten(2, {groups, heads / groups}).sum(3).to(low);
  };
  const auto none = [](const Tensor& scalars) { return at::zeros_like(scalars.slice(2, 0, 1)); };
  const Tensor q = of_heads(in.q, in.q_bias), k = of_heads(in.k, in.k_bias);
  const Tensor share = in.trap.sigmoid(), gamma = in.dt * share;
  const Tensor rest = in.dt * (1 - share);
  const Tensor scale = gamma + at::cat({rest.slice(2, 1), none(rest)}, 2);
  const Tensor theta = in.angles_cumsum.to(wide), sine = theta.sin(), cosine = theta.cos();
  const Tensor u = turned_back(grad.q_rotated.to(wide), sine, cosine);
  const Tensor w = turned_back(grad.k_scaled.to(wide), sine, cosine);
  const Tensor mixed = by_row(gamma * grad.qk_dot), scales = by_row(scale);
  const Tensor grad_q = u + mixed * k, grad_k = scales * w + mixed * q;
  const Tensor grad_theta = cross(q, u, num_angles) + scales * cross(k, w, num_angles);
  const Tensor after = grad_theta.flip(1).cumsum(1).flip(1) * M_PI;
  const Tensor turn = in.angles.to(wide).tanh();
  const Tensor grad_scale = (k * w).sum(3).transpose(1, 2);
  const Tensor own = grad_scale + grad.qk_dot * (q * k).sum(3).transpose(1, 2);
  const Tensor before = at::cat({none(grad_scale), grad_scale.slice(2, 0, -1)}, 2);
  return {of_groups(grad_q),
          of_groups(grad_k),
          grad_q.sum(at::IntArrayRef{0, 1}),
          grad_k.sum(at::IntArrayRef{0, 1}),
          (after * by_row(in.dt) * (1 - turn * turn)).to(low),
          own * share + before * (1 - share) + (after * turn).sum(3).transpose(1, 2),
          (own - before) * in.dt * share * (1 - share)};
}

// ---- the dispatcher's side: its schema is flat ----

#define PB_ROTARY_ARGUMENTS                                                                    \
  const Tensor &q, const Tensor &k, const Tensor &q_bias, const Tensor &k_bias,                \
      const Tensor &angles, const Tensor &angles_cumsum, const Tensor &dt, const Tensor &trap, \
      const Tensor &grad_q_rotated, const Tensor &grad_k_scaled, const Tensor &grad_qk_dot

Gradients backward_meta(PB_ROTARY_ARGUMENTS) {
  check({q, k, q_bias, k_bias, angles, angles_cumsum, dt, trap},
        {grad_q_rotated, grad_k_scaled, grad_qk_dot});
  const auto like = [](const Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); };
  return {like(q), like(k), like(q_bias), like(k_bias), like(angles), like(dt), like(trap)};
}

#ifdef PATCHBENCH_CUDA
/// Contiguous and 16-byte aligned.
Tensor dense(const Tensor& tensor) {
  const Tensor packed = tensor.contiguous();
  const bool is_aligned = reinterpret_cast<uintptr_t>(packed.const_data_ptr()) % 16 == 0;
  return is_aligned ? packed : packed.clone();
}

void launch(const RotaryInputs& in, const RotaryGradOutputs& grad, const Gradients& to) {
  RotaryBackward problem = extents_of(in);
  problem.block_tokens = rotary_block_tokens(
      problem, at::cuda::getDeviceProperties(in.q.get_device())->multiProcessorCount);
  problem.num_blocks = (problem.seqlen + problem.block_tokens - 1) / problem.block_tokens;
  const Tensor grad_cumsum = at::empty(in.angles.sizes(), in.dt.options());
  const Tensor grad_scale = at::empty_like(in.dt), grad_gamma = at::empty_like(in.dt);
  const Tensor sums = at::empty({problem.batch, problem.num_blocks, problem.num_heads,
                                 2 * problem.head_dim_qk + problem.num_angles},
                                in.dt.options());
  problem.q = in.q.const_data_ptr();
  problem.k = in.k.const_data_ptr();
  problem.q_bias = in.q_bias.const_data_ptr<float>();
  problem.k_bias = in.k_bias.const_data_ptr<float>();
  problem.angles = in.angles.const_data_ptr();
  problem.angles_cumsum = in.angles_cumsum.const_data_ptr();
  problem.dt = in.dt.const_data_ptr<float>();
  problem.trap = in.trap.const_data_ptr<float>();
  problem.grad_q_rotated = grad.q_rotated.const_data_ptr();
  problem.grad_k_scaled = grad.k_scaled.const_data_ptr();
  problem.grad_qk_dot = grad.qk_dot.const_data_ptr<float>();
  problem.grad_q = std::get<0>(to).mutable_data_ptr();
  problem.grad_k = std::get<1>(to).mutable_data_ptr();
  problem.grad_q_bias = std::get<2>(to).mutable_data_ptr<float>();
  problem.grad_k_bias = std::get<3>(to).mutable_data_ptr<float>();
  problem.grad_angles = std::get<4>(to).mutable_data_ptr();
  problem.grad_dt = std::get<5>(to).mutable_data_ptr<float>();
  problem.grad_trap = std::get<6>(to).mutable_data_ptr<float>();
  problem.grad_cumsum = grad_cumsum.mutable_data_ptr<float>();
  problem.grad_scale = grad_scale.mutable_data_ptr<float>();
  problem.grad_gamma = grad_gamma.mutable_data_ptr<float>();
  problem.sums = sums.mutable_data_ptr<float>();
  C10_CUDA_CHECK(launch_rotary_backward(problem, at::cuda::getCurrentCUDAStream()));
}
#endif

Gradients backward_real(PB_ROTARY_ARGUMENTS) {
  const RotaryInputs in{q, k, q_bias, k_bias, angles, angles_cumsum, dt, trap};
  const RotaryGradOutputs grad{grad_q_rotated, grad_k_scaled, grad_qk_dot};
  check(in, grad);
  const c10::OptionalDeviceGuard guard(q.device());
#ifdef PATCHBENCH_CUDA
  if (has_kernel(in) && grad_q_rotated.numel() > 0) {
    const Gradients gradients = backward_meta(q, k, q_bias, k_bias, angles, angles_cumsum, dt, trap,
                                              grad_q_rotated, grad_k_scaled, grad_qk_dot);
    launch({dense(q), dense(k), dense(q_bias), dense(k_bias), dense(angles), dense(angles_cumsum),
            dense(dt), dense(trap)},
           {dense(grad_q_rotated), dense(grad_k_scaled), dense(grad_qk_dot)}, gradients);
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

RotaryGradients mamba3_siso_rotary_bwd(const RotaryInputs& in, const RotaryGradOutputs& grad) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_siso_rotary_bwd", "")
                             .typed<decltype(backward_real)>();
  const auto [q, k, q_bias, k_bias, angles, dt, trap] =
      op.call(in.q, in.k, in.q_bias, in.k_bias, in.angles, in.angles_cumsum, in.dt, in.trap,
              grad.q_rotated, grad.k_scaled, grad.qk_dot);
  return {q, k, q_bias, k_bias, angles, dt, trap};
}

std::string mamba3_siso_rotary_bwd_path(const RotaryInputs& in) {
  return path_of(in.q, in.q_bias, in.angles);
}

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "mamba3_siso_rotary_bwd(Tensor q, Tensor k, Tensor q_bias, Tensor k_bias, Tensor angles, "
      "Tensor angles_cumsum, Tensor dt, Tensor trap, Tensor grad_q_rotated, Tensor grad_k_scaled, "
      "Tensor grad_qk_dot) -> (Tensor grad_q, Tensor grad_k, Tensor grad_q_bias, Tensor "
      "grad_k_bias, Tensor grad_angles, Tensor grad_dt, Tensor grad_trap)",
      {at::Tag::pt2_compliant_tag});
  m.def("mamba3_siso_rotary_bwd_path(Tensor q, Tensor q_bias, Tensor angles) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("mamba3_siso_rotary_bwd_path", path_of);
}
TORCH_LIBRARY_IMPL(patchbench, CPU, m) { m.impl("mamba3_siso_rotary_bwd", backward_real); }
TORCH_LIBRARY_IMPL(patchbench, CUDA, m) { m.impl("mamba3_siso_rotary_bwd", backward_real); }
TORCH_LIBRARY_IMPL(patchbench, Meta, m) { m.impl("mamba3_siso_rotary_bwd", backward_meta); }
TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("mamba3_siso_rotary_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::mamba3_siso_bwd_cse
