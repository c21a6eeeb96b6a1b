// patchbench::mamba3_mimo_qk_dot on torch's stable ABI. What it does: op.h.
#include <string>
#include <tuple>
#include <utility>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "kernel.cuh"

namespace patchbench::ops::mamba3_mimo_smem_2d {
namespace {

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_mimo_smem_2d";
constexpr const char* kNeeds =
    "float32 or bfloat16, 2, 4 or 8 ranks, a head_dim of 64 or 128, and compute capability 8.0";
constexpr const char* kForward = "mamba3_mimo_qk_dot";
constexpr const char* kBackward = "mamba3_mimo_qk_dot_bwd";

/// How tiles are staged: op.h.
struct QkDotStaging {
  std::string layout = "flat", copy = "tma";
};

/// Of sums, of the biases and of their gradients.
ScalarType sum_type(ScalarType type) { return type == kDouble ? type : kFloat; }

#ifdef PATCHBENCH_CUDA
ElementType element_type(const Tensor& q) {
  return q.scalar_type() == kFloat ? ElementType::kFloat32 : ElementType::kBFloat16;
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
  return plan_of(problem, element_type(q), wanted, gpu_of(q).major);
}
#endif

bool has_kernel(const Tensor& q, int64_t num_heads) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (q.is_cuda() && (q.scalar_type() == kFloat || q.scalar_type() == kBFloat16)) {
    const QkDot problem = extents_of(q, num_heads);
    const Gpu gpu = gpu_of(q);
    return is_served(problem) && gpu.major >= 8 &&
           gpu.shared_bytes >= shared_bytes(problem, element_type(q));
  }
#else
  static_cast<void>(q);
  static_cast<void>(num_heads);
#endif
  return false;
}

// ---- checks ----

void check_staging(const char* op, const QkDotStaging& staging) {
  PB_CHECK(staging.layout == "flat" || staging.layout == "rank3", op,
           ": layout must be flat or rank3, got ", staging.layout);
  PB_CHECK(staging.copy == "tma" || staging.copy == "cp_async", op,
           ": copy must be tma or cp_async, got ", staging.copy);
}

void check_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& q_bias,
                  const Tensor& k_bias, const QkDotStaging& staging) {
  check_axes(op, "q", q, 5, "[batch, seqlen, num_ranks, num_groups, head_dim]");
  check_axes(op, "q_bias", q_bias, 3, "[num_heads, num_ranks, head_dim]");
  const auto type = q.scalar_type(), sums = sum_type(type);
  PB_CHECK(type == kFloat || type == kBFloat16 || type == kHalf || type == kDouble, op,
           ": q must have dtype float32, bfloat16, float16 or float64, got ", text_of(type));
  check_tensor(op, "k", k, q.shape(), type, q);
  const Ints bias = {q_bias.size(0), q.size(2), q.size(4)};
  check_tensor(op, "q_bias", q_bias, bias, sums, q);
  check_tensor(op, "k_bias", k_bias, bias, sums, q);
  PB_CHECK(q.size(3) >= 1 && q_bias.size(0) % q.size(3) == 0, op,
           ": num_groups must divide num_heads = ", q_bias.size(0), ", got ", q.size(3));
  check_staging(op, staging);
}

Ints products_shape(const Tensor& q, const Tensor& q_bias) {
  return {q.size(0), q_bias.size(0), q.size(1), q.size(2), q.size(2)};
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
  const Tensor of_groups = raw.unflatten(1, {groups, raw.size(1) / groups}).sum(Ints{2});
  return {of_groups.permute({0, 2, 3, 1, 4}).to(rows.scalar_type()).contiguous(),
          raw.sum(Ints{0, 2}).contiguous()};
}

// ---- the dispatcher's side ----

#define PB_QK_DOT_INPUTS                                                        \
  const Tensor &q, const Tensor &k, const Tensor &q_bias, const Tensor &k_bias, \
      const std::string &layout, const std::string &copy

#ifdef PATCHBENCH_CUDA
/// The inputs as the kernels take them, kept while the launch is prepared.
struct Dense {
  Tensor q, k, q_bias, k_bias;
  QkDot problem;
  Dense(const Tensor& any_q, const Tensor& any_k, const Tensor& any_q_bias,
        const Tensor& any_k_bias)
      : q(in_words(any_q)),
        k(in_words(any_k)),
        q_bias(in_words(any_q_bias)),
        k_bias(in_words(any_k_bias)),
        problem(extents_of(q, q_bias.size(0))) {
    problem.q = q.data();
    problem.k = k.data();
    problem.q_bias = q_bias.data<float>();
    problem.k_bias = k_bias.data<float>();
  }
};

void launch_forward(PB_QK_DOT_INPUTS, const Tensor& qk_dot) {
  Dense given(q, k, q_bias, k_bias);
  given.problem.qk_dot = qk_dot.mutable_data();
  check_cuda(kForward,
             launch_qk_dot(given.problem, element_type(q),
                           plan_for(given.problem, q, {layout, copy}), current_stream(q)));
}

void launch_backward(const Tensor& grad_qk_dot, PB_QK_DOT_INPUTS, const Gradients& gradients) {
  Dense given(q, k, q_bias, k_bias);
  QkDot& problem = given.problem;
  const auto& [grad_q, grad_k, grad_q_bias, grad_k_bias] = gradients;
  const Tensor grad = in_words(grad_qk_dot);
  const Tensor partial = empty(
      {num_spans(problem), problem.num_heads, 2, problem.num_ranks, problem.head_dim}, q_bias);
  problem.grad_qk_dot = grad.data();
  problem.grad_q = grad_q.mutable_data();
  problem.grad_k = grad_k.mutable_data();
  problem.grad_q_bias = grad_q_bias.mutable_data<float>();
  problem.grad_k_bias = grad_k_bias.mutable_data<float>();
  problem.partial = partial.mutable_data<float>();
  check_cuda(kBackward,
             launch_qk_dot_backward(problem, element_type(q), plan_for(problem, q, {layout, copy}),
                                    current_stream(q)));
}
#endif

Tensor forward(PB_QK_DOT_INPUTS) {
  check_inputs(kForward, q, k, q_bias, k_bias, {layout, copy});
  const Tensor qk_dot = empty(products_shape(q, q_bias), q);
  const DeviceScope device(q);
#ifdef PATCHBENCH_CUDA
  if (has_kernel(q, q_bias.size(0))) {
    launch_forward(q, k, q_bias, k_bias, layout, copy, qk_dot);
    return qk_dot;
  }
#endif
  warn_of_plain_form(kSlug, kForward, q, kNeeds);
  return biased(q, q_bias).matmul(biased(k, k_bias).mT()).to(q.scalar_type());
}

Gradients backward(const Tensor& grad_qk_dot, PB_QK_DOT_INPUTS) {
  check_inputs(kBackward, q, k, q_bias, k_bias, {layout, copy});
  check_tensor(kBackward, "grad_qk_dot", grad_qk_dot, products_shape(q, q_bias), q.scalar_type(),
               q);
  const Gradients gradients = {empty_like(q), empty_like(k), empty_like(q_bias),
                               empty_like(k_bias)};
  const DeviceScope device(q);
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

std::string path_of(const Tensor& q, const std::string& layout, const std::string& copy) {
  const QkDotStaging staging{layout, copy};
  check_staging("mamba3_mimo_qk_dot_path", staging);
  check_axes("mamba3_mimo_qk_dot_path", "q", q, 5,
             "[batch, seqlen, num_ranks, num_groups, head_dim]");
  if (!has_kernel(q, q.size(3))) return "plain";
#ifdef PATCHBENCH_CUDA
  const Plan plan = plan_for(extents_of(q, q.size(3)), q, staging);
  if (plan.products == Copy::kTma) return "tma";
  if (plan.operands == Copy::kTma) return "tma_operands";
#endif
  return "cp_async";
}

}  // namespace

#define PB_QK_DOT_SCHEMA \
  "Tensor q, Tensor k, Tensor q_bias, Tensor k_bias, str layout=\"flat\", str copy=\"tma\""

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("mamba3_mimo_qk_dot(" PB_QK_DOT_SCHEMA ") -> Tensor");
  m.def("mamba3_mimo_qk_dot_bwd(Tensor grad_qk_dot, " PB_QK_DOT_SCHEMA
        ") -> (Tensor grad_q, Tensor grad_k, Tensor grad_q_bias, Tensor grad_k_bias)");
  m.def("mamba3_mimo_qk_dot_path(Tensor q, str layout=\"flat\", str copy=\"tma\") -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("mamba3_mimo_qk_dot_path", &boxed<path_of>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("mamba3_mimo_qk_dot", &boxed<forward>);
  m.impl("mamba3_mimo_qk_dot_bwd", &boxed<backward>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("mamba3_mimo_qk_dot", &boxed<forward>);
  m.impl("mamba3_mimo_qk_dot_bwd", &boxed<backward>);
}

}  // namespace patchbench::ops::mamba3_mimo_smem_2d
