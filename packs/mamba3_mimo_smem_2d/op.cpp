#include "op.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "../op_fallback.h"
#include "kernel.cuh"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::ops::mamba3_mimo_smem_2d {
namespace {

using at::Tensor;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_mimo_smem_2d";
constexpr const char* kNeeds =
    "float32 or bfloat16, 2, 4 or 8 ranks, a head_dim of 64 or 128, and compute capability 8.0";
constexpr const char* kForward = "mamba3_mimo_qk_dot";
constexpr const char* kBackward = "mamba3_mimo_qk_dot_bwd";

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

/// Of sums, of the biases and of their gradients.
at::ScalarType sum_type(at::ScalarType type) { return type == at::kDouble ? type : at::kFloat; }

#ifdef PATCHBENCH_CUDA
ElementType element_type(const Tensor& q) {
  return q.scalar_type() == at::kFloat ? ElementType::kFloat32 : ElementType::kBFloat16;
}

/// The extents alone; heads do not choose the path.
QkDot extents_of(const Tensor& q, int64_t num_heads) {
  QkDot problem;
  problem.batch = q.size(0);
  problem.seqlen = q.size(1);
  problem.num_ranks = q.size(2);
  problem.num_groups = q.size(3);
  problem.head_dim = q.size(4);
  problem.num_heads = num_heads;
  return problem;
}

Plan plan_for(const QkDot& problem, const Tensor& q, const QkDotStaging& staging) {
  const Staging wanted{staging.layout == "flat" ? Layout::kFlat : Layout::kRank3,
                       staging.copy == "tma" ? Copy::kTma : Copy::kCpAsync};
  return plan_of(problem, element_type(q), wanted,
                 at::cuda::getDeviceProperties(q.get_device())->major);
}
#endif

bool has_kernel(const Tensor& q, int64_t num_heads) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (q.is_cuda() && (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16)) {
    const QkDot problem = extents_of(q, num_heads);
    const auto* device = at::cuda::getDeviceProperties(q.get_device());
    return is_served(problem) && device->major >= 8 &&
           static_cast<int64_t>(device->sharedMemPerBlockOptin) >=
               shared_bytes(problem, element_type(q));
  }
#else
  static_cast<void>(q);
  static_cast<void>(num_heads);
#endif
  return false;
}

// ---- checks: on symbolic sizes, so that Meta and the real devices share them ----

using Shape = std::vector<c10::SymInt>;

/// One tensor against its shape, dtype and q's device.
void check_tensor(const char* op, const char* name, const Tensor& tensor, const Shape& shape,
                  at::ScalarType type, const Tensor& q) {
  TORCH_CHECK(tensor.device() == q.device(), op, ": ", name, " must be on ", q.device(), ", got ",
              tensor.device());
  TORCH_CHECK(tensor.scalar_type() == type, op, ": ", name, " must have dtype ", dtype_name(type),
              ", got ", dtype_name(tensor.scalar_type()));
  TORCH_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), op, ": ", name, " must have shape ",
              c10::SymIntArrayRef(shape), ", got ", tensor.sym_sizes());
}

void check_staging(const char* op, const QkDotStaging& staging) {
  TORCH_CHECK(staging.layout == "flat" || staging.layout == "rank3", op,
              ": layout must be flat or rank3, got ", staging.layout);
  TORCH_CHECK(staging.copy == "tma" || staging.copy == "cp_async", op,
              ": copy must be tma or cp_async, got ", staging.copy);
}

void check_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& q_bias,
                  const Tensor& k_bias, const QkDotStaging& staging) {
  TORCH_CHECK(q.dim() == 5, op,
              ": q must have 5 axes [batch, seqlen, num_ranks, num_groups, head_dim], got ",
              q.dim());
  TORCH_CHECK(q_bias.dim() == 3, op,
              ": q_bias must have 3 axes [num_heads, num_ranks, head_dim], got ", q_bias.dim());
  const auto type = q.scalar_type(), sums = sum_type(type);
  TORCH_CHECK(
      type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble, op,
      ": q must have dtype float32, bfloat16, float16 or float64, got ", dtype_name(type));
  check_tensor(op, "k", k, Shape(q.sym_sizes().begin(), q.sym_sizes().end()), type, q);
  const Shape bias = {q_bias.sym_size(0), q.sym_size(2), q.sym_size(4)};
  check_tensor(op, "q_bias", q_bias, bias, sums, q);
  check_tensor(op, "k_bias", k_bias, bias, sums, q);
  TORCH_CHECK(q.sym_size(3) >= 1 && q_bias.sym_size(0) % q.sym_size(3) == 0, op,
              ": num_groups must divide num_heads = ", q_bias.sym_size(0), ", got ", q.sym_size(3));
  check_staging(op, staging);
}

Shape products_shape(const Tensor& q, const Tensor& q_bias) {
  return {q.sym_size(0), q_bias.sym_size(0), q.sym_size(1), q.sym_size(2), q.sym_size(2)};
}

// ---- the plain form ----

/// q + q_bias, or k's, in the type of sums: [batch, num_heads, seqlen, num_ranks, head_dim].
Tensor biased(const Tensor& rows, const Tensor& bias) {
  const int64_t groups = rows.size(3), heads = bias.size(0);
  const Tensor per_group = rows.to(bias.scalar_type()).permute({0, 3, 1, 2, 4});
  const Tensor sum = per_group.unsqueeze(2) +
                     bias.reshape({groups, heads / groups, 1, bias.size(1), bias.size(2)});
  return sum.flatten(1, 2);
}

/// Gradients of the rows of one operand and of its bias, from those per head.
std::pair<Tensor, Tensor> summed(const Tensor& raw, const Tensor& rows) {
  const int64_t groups = rows.size(3);
  const Tensor of_groups = raw.unflatten(1, {groups, raw.size(1) / groups}).sum(2);
  return {of_groups.permute({0, 2, 3, 1, 4}).to(rows.scalar_type()).contiguous(),
          raw.sum(at::IntArrayRef{0, 2}).contiguous()};
}

// ---- the dispatcher's side ----

#define PB_QK_DOT_INPUTS                                                        \
  const Tensor &q, const Tensor &k, const Tensor &q_bias, const Tensor &k_bias, \
      const std::string &layout, const std::string &copy

Tensor forward_meta(PB_QK_DOT_INPUTS) {
  check_inputs(kForward, q, k, q_bias, k_bias, {layout, copy});
  return at::empty_symint(products_shape(q, q_bias), q.options());
}

Gradients backward_meta(const Tensor& grad_qk_dot, PB_QK_DOT_INPUTS) {
  check_inputs(kBackward, q, k, q_bias, k_bias, {layout, copy});
  check_tensor(kBackward, "grad_qk_dot", grad_qk_dot, products_shape(q, q_bias), q.scalar_type(),
               q);
  const auto like = [](const Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); };
  return {like(q), like(k), like(q_bias), like(k_bias)};
}

#ifdef PATCHBENCH_CUDA
/// Contiguous, and aligned to what the kernels copy at a time: a view may start anywhere.
Tensor dense(const Tensor& tensor) {
  const Tensor packed = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(packed.const_data_ptr()) % 16 == 0 ? packed : packed.clone();
}

/// The inputs as the kernels take them, kept while the launch is prepared.
struct Dense {
  Tensor q, k, q_bias, k_bias;
  QkDot problem;
  Dense(const Tensor& any_q, const Tensor& any_k, const Tensor& any_q_bias,
        const Tensor& any_k_bias)
      : q(dense(any_q)),
        k(dense(any_k)),
        q_bias(dense(any_q_bias)),
        k_bias(dense(any_k_bias)),
        problem(extents_of(q, q_bias.size(0))) {
    problem.q = q.const_data_ptr();
    problem.k = k.const_data_ptr();
    problem.q_bias = q_bias.const_data_ptr<float>();
    problem.k_bias = k_bias.const_data_ptr<float>();
  }
};

void launch_forward(PB_QK_DOT_INPUTS, const Tensor& qk_dot) {
  Dense given(q, k, q_bias, k_bias);
  given.problem.qk_dot = qk_dot.mutable_data_ptr();
  C10_CUDA_CHECK(launch_qk_dot(given.problem, element_type(q),
                               plan_for(given.problem, q, {layout, copy}),
                               at::cuda::getCurrentCUDAStream()));
}

void launch_backward(const Tensor& grad_qk_dot, PB_QK_DOT_INPUTS, const Gradients& gradients) {
  Dense given(q, k, q_bias, k_bias);
  QkDot& problem = given.problem;
  const auto& [grad_q, grad_k, grad_q_bias, grad_k_bias] = gradients;
  const Tensor grad = dense(grad_qk_dot);
  const Tensor partial =
      at::empty({num_spans(problem), problem.num_heads, 2, problem.num_ranks, problem.head_dim},
                q_bias.options());
  problem.grad_qk_dot = grad.const_data_ptr();
  problem.grad_q = grad_q.mutable_data_ptr();
  problem.grad_k = grad_k.mutable_data_ptr();
  problem.grad_q_bias = grad_q_bias.mutable_data_ptr<float>();
  problem.grad_k_bias = grad_k_bias.mutable_data_ptr<float>();
  problem.partial = partial.mutable_data_ptr<float>();
  C10_CUDA_CHECK(launch_qk_dot_backward(problem, element_type(q),
                                        plan_for(problem, q, {layout, copy}),
                                        at::cuda::getCurrentCUDAStream()));
}
#endif

Tensor forward_real(PB_QK_DOT_INPUTS) {
  const Tensor qk_dot = forward_meta(q, k, q_bias, k_bias, layout, copy);
  const c10::OptionalDeviceGuard guard(q.device());
#ifdef PATCHBENCH_CUDA
  if (has_kernel(q, q_bias.size(0))) {
    launch_forward(q, k, q_bias, k_bias, layout, copy, qk_dot);
    return qk_dot;
  }
#endif
  warn_of_plain_form(kSlug, kForward, q, kNeeds);
  return biased(q, q_bias).matmul(biased(k, k_bias).mT()).to(q.scalar_type());
}

Gradients backward_real(const Tensor& grad_qk_dot, PB_QK_DOT_INPUTS) {
  const Gradients gradients = backward_meta(grad_qk_dot, q, k, q_bias, k_bias, layout, copy);
  const c10::OptionalDeviceGuard guard(q.device());
#ifdef PATCHBENCH_CUDA
  if (has_kernel(q, q_bias.size(0))) {
    launch_backward(grad_qk_dot, q, k, q_bias, k_bias, layout, copy, gradients);
    return gradients;
  }
#endif
  warn_of_plain_form(kSlug, kBackward, q, kNeeds);
  const Tensor grad = grad_qk_dot.to(q_bias.scalar_type());
  const auto [grad_q, grad_q_bias] = summed(grad.matmul(biased(k, k_bias)), q);
  const auto [grad_k, grad_k_bias] = summed(grad.mT().matmul(biased(q, q_bias)), k);
  return {grad_q, grad_k, grad_q_bias, grad_k_bias};
}

Tensor call_forward(PB_QK_DOT_INPUTS) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_mimo_qk_dot", "")
                             .typed<decltype(forward_real)>();
  return op.call(q, k, q_bias, k_bias, layout, copy);
}

Gradients call_backward(const Tensor& grad_qk_dot, PB_QK_DOT_INPUTS) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_mimo_qk_dot_bwd", "")
                             .typed<decltype(backward_real)>();
  return op.call(grad_qk_dot, q, k, q_bias, k_bias, layout, copy);
}

class QkDotFunction : public torch::autograd::Function<QkDotFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, PB_QK_DOT_INPUTS) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({q, k, q_bias, k_bias});
    ctx->saved_data["layout"] = layout;
    ctx->saved_data["copy"] = copy;
    return call_forward(q, k, q_bias, k_bias, layout, copy);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto [grad_q, grad_k, grad_q_bias, grad_k_bias] = call_backward(
        grads[0], saved[0], saved[1], saved[2], saved[3], ctx->saved_data["layout"].toStringRef(),
        ctx->saved_data["copy"].toStringRef());
    return {grad_q, grad_k, grad_q_bias, grad_k_bias, Tensor(), Tensor()};
  }
};

Tensor forward_with_grad(PB_QK_DOT_INPUTS) {
  return QkDotFunction::apply(q, k, q_bias, k_bias, layout, copy);
}

std::string path_of(const Tensor& q, const std::string& layout, const std::string& copy) {
  const QkDotStaging staging{layout, copy};
  check_staging("mamba3_mimo_qk_dot_path", staging);
  TORCH_CHECK(q.dim() == 5, "mamba3_mimo_qk_dot_path: q must have 5 axes, got ", q.dim());
  if (!has_kernel(q, q.size(3))) return "plain";
#ifdef PATCHBENCH_CUDA
  const Plan plan = plan_for(extents_of(q, q.size(3)), q, staging);
  if (plan.products == Copy::kTma) return "tma";
  if (plan.operands == Copy::kTma) return "tma_operands";
#endif
  return "cp_async";
}

}  // namespace

Tensor mamba3_mimo_qk_dot(const Tensor& q, const Tensor& k, const Tensor& q_bias,
                          const Tensor& k_bias, const QkDotStaging& staging) {
  return call_forward(q, k, q_bias, k_bias, staging.layout, staging.copy);
}

Gradients mamba3_mimo_qk_dot_bwd(const Tensor& grad_qk_dot, const Tensor& q, const Tensor& k,
                                 const Tensor& q_bias, const Tensor& k_bias,
                                 const QkDotStaging& staging) {
  return call_backward(grad_qk_dot, q, k, q_bias, k_bias, staging.layout, staging.copy);
}

std::string mamba3_mimo_qk_dot_path(const Tensor& q, const QkDotStaging& staging) {
  return path_of(q, staging.layout, staging.copy);
}

#define PB_QK_DOT_SCHEMA \
  "Tensor q, Tensor k, Tensor q_bias, Tensor k_bias, str layout=\"flat\", str copy=\"tma\""

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("mamba3_mimo_qk_dot(" PB_QK_DOT_SCHEMA ") -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("mamba3_mimo_qk_dot_bwd(Tensor grad_qk_dot, " PB_QK_DOT_SCHEMA
        ") -> (Tensor grad_q, Tensor grad_k, Tensor grad_q_bias, Tensor grad_k_bias)",
        {at::Tag::pt2_compliant_tag});
  m.def("mamba3_mimo_qk_dot_path(Tensor q, str layout=\"flat\", str copy=\"tma\") -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("mamba3_mimo_qk_dot_path", path_of);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("mamba3_mimo_qk_dot", forward_real);
  m.impl("mamba3_mimo_qk_dot_bwd", backward_real);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("mamba3_mimo_qk_dot", forward_real);
  m.impl("mamba3_mimo_qk_dot_bwd", backward_real);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("mamba3_mimo_qk_dot", forward_meta);
  m.impl("mamba3_mimo_qk_dot_bwd", backward_meta);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("mamba3_mimo_qk_dot", forward_with_grad);
  m.impl("mamba3_mimo_qk_dot_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
