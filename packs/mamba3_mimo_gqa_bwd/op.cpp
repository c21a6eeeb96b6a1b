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

namespace patchbench::ops::mamba3_mimo_gqa_bwd {
namespace {

using at::Tensor;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_mimo_gqa_bwd";

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

#ifdef PATCHBENCH_CUDA
GroupReduce problem_of(const Tensor& dq, int64_t num_groups) {
  GroupReduce problem;
  problem.rows = dq.size(0) * dq.size(1);
  problem.num_ranks = dq.size(2);
  problem.num_heads = dq.size(3);
  problem.num_groups = num_groups;
  problem.head_dim = dq.size(4);
  return problem;
}
#endif

bool has_kernel(const Tensor& dq, int64_t num_groups) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (dq.is_cuda())
    return at::cuda::getDeviceProperties(dq.get_device())->major >= 8 &&
           is_served(problem_of(dq, num_groups));
#else
  static_cast<void>(dq);
  static_cast<void>(num_groups);
#endif
  return false;
}

void check_inputs(const Tensor& dq, const Tensor& dk, int64_t num_groups) {
  TORCH_CHECK(dq.dim() == 5,
              "group_reduce_bwd: dq must have 5 axes [batch, seqlen, num_ranks, num_heads, "
              "head_dim], got ",
              dq.dim());
  TORCH_CHECK(dk.sym_sizes() == dq.sym_sizes() && dk.scalar_type() == dq.scalar_type() &&
                  dk.device() == dq.device(),
              "group_reduce_bwd: dk must be as dq, ", dtype_name(dq.scalar_type()), " ",
              dq.sym_sizes(), " on ", dq.device(), ", got ", dtype_name(dk.scalar_type()), " ",
              dk.sym_sizes(), " on ", dk.device());
  const auto type = dq.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf,
              "group_reduce_bwd: dq must have dtype float32, bfloat16 or float16, got ",
              dtype_name(type));
  TORCH_CHECK(num_groups >= 1 && dq.sym_size(3) % num_groups == 0,
              "group_reduce_bwd: num_groups must divide num_heads = ", dq.sym_size(3), ", got ",
              num_groups);
}

Gradients reduce_meta(const Tensor& dq, const Tensor& dk, int64_t num_groups) {
  check_inputs(dq, dk, num_groups);
  const auto grad = [&] {
    return at::empty_symint(
        {dq.sym_size(0), dq.sym_size(1), dq.sym_size(2), num_groups, dq.sym_size(4)}, dq.options());
  };
  const auto bias = [&] {
    return at::empty_symint({dq.sym_size(3), dq.sym_size(2), dq.sym_size(4)},
                            dq.options().dtype(at::kFloat));
  };
  return {grad(), grad(), bias(), bias()};
}

Tensor grouped(const Tensor& raw, int64_t num_groups) {
  const auto s = raw.sizes();
  const Tensor view = raw.reshape({s[0], s[1], s[2], num_groups, s[3] / num_groups, s[4]});
  return view.sum(4, false, at::kFloat).to(raw.scalar_type());
}

Tensor bias_of(const Tensor& raw) {
  return raw.sum(at::IntArrayRef{0, 1}, false, at::kFloat).transpose(0, 1).contiguous();
}

/// `raw` contiguous and at a 16-byte boundary, copied where it is not: a view may start anywhere.
Tensor in_words(const Tensor& raw) {
  const Tensor rows = raw.contiguous();
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % 16 == 0;
  return is_aligned ? rows : rows.clone();
}

Gradients reduce_real(const Tensor& dq_any, const Tensor& dk_any, int64_t num_groups) {
  check_inputs(dq_any, dk_any, num_groups);
  const Tensor dq = in_words(dq_any), dk = in_words(dk_any);
  const c10::OptionalDeviceGuard guard(dq.device());
#ifdef PATCHBENCH_CUDA
  if (has_kernel(dq, num_groups)) {
    const Gradients gradients = reduce_meta(dq, dk, num_groups);
    const auto& [grad_q, grad_k, bias_q, bias_k] = gradients;
    GroupReduce problem = problem_of(dq, num_groups);
    const int num_processors = at::cuda::getDeviceProperties(dq.get_device())->multiProcessorCount;
    const Tensor partial = at::empty({2, num_row_blocks(problem, num_processors), problem.num_heads,
                                      problem.num_ranks, problem.head_dim},
                                     dq.options().dtype(at::kFloat));
    problem.raw[0] = dq.const_data_ptr();
    problem.raw[1] = dk.const_data_ptr();
    problem.grad[0] = grad_q.mutable_data_ptr();
    problem.grad[1] = grad_k.mutable_data_ptr();
    problem.grad_bias[0] = bias_q.mutable_data_ptr<float>();
    problem.grad_bias[1] = bias_k.mutable_data_ptr<float>();
    problem.partial = partial.mutable_data_ptr<float>();
    const ElementType type = dq.scalar_type() == at::kFloat      ? ElementType::kFloat32
                             : dq.scalar_type() == at::kBFloat16 ? ElementType::kBFloat16
                                                                 : ElementType::kFloat16;
    C10_CUDA_CHECK(
        launch_group_reduce(problem, type, num_processors, at::cuda::getCurrentCUDAStream()));
    return gradients;
  }
#endif
  return {grouped(dq, num_groups), grouped(dk, num_groups), bias_of(dq), bias_of(dk)};
}

}  // namespace

Gradients group_reduce_bwd(const Tensor& dq, const Tensor& dk, int64_t num_groups) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::group_reduce_bwd", "")
                             .typed<decltype(reduce_real)>();
  return op.call(dq, dk, num_groups);
}

std::string group_reduce_bwd_path(const Tensor& dq, int64_t num_groups) {
  return has_kernel(dq, num_groups) ? "cuda" : "plain";
}

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "group_reduce_bwd(Tensor dq, Tensor dk, int num_groups) -> (Tensor grad_q, Tensor grad_k, "
      "Tensor grad_q_bias, Tensor grad_k_bias)",
      {at::Tag::pt2_compliant_tag});
  m.def("group_reduce_bwd_path(Tensor dq, int num_groups) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("group_reduce_bwd_path", group_reduce_bwd_path);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) { m.impl("group_reduce_bwd", reduce_real); }
TORCH_LIBRARY_IMPL(patchbench, CUDA, m) { m.impl("group_reduce_bwd", reduce_real); }
TORCH_LIBRARY_IMPL(patchbench, Meta, m) { m.impl("group_reduce_bwd", reduce_meta); }
TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("group_reduce_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
