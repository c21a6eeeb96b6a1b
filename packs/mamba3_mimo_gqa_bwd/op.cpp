#include "op.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "../op_fallback.h"
#include "kernel.cuh"
#include "mimo_backward.cuh"
#include "mimo_plain.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::ops::mamba3_mimo_gqa_bwd {
namespace {

using at::Tensor;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_mimo_gqa_bwd";
constexpr const char* kReduceNeeds =
    "a head_dim that is a multiple of 8, at most 256 heads a group, and compute capability 8.0";
constexpr const char* kNeeds =
    "bfloat16, 1, 2, 4 or 8 ranks, head dims of 64 or 128, at most 256 heads a group, and compute "
    "capability 8.0 with 184 KiB of shared memory a CTA";

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

#ifdef PATCHBENCH_CUDA
void launch_reduce(const Tensor& dq, const Tensor& dk, int64_t num_groups,
                   const Gradients& gradients) {
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
}
#endif

Gradients reduce_real(const Tensor& dq_any, const Tensor& dk_any, int64_t num_groups) {
  check_inputs(dq_any, dk_any, num_groups);
  const Tensor dq = in_words(dq_any), dk = in_words(dk_any);
  const c10::OptionalDeviceGuard guard(dq.device());
#ifdef PATCHBENCH_CUDA
  if (has_kernel(dq, num_groups)) {
    const Gradients gradients = reduce_meta(dq, dk, num_groups);
    launch_reduce(dq, dk, num_groups, gradients);
    return gradients;
  }
#endif
  warn_of_plain_form(kSlug, "group_reduce_bwd", dq, kReduceNeeds);
  return {grouped(dq, num_groups), grouped(dk, num_groups), bias_of(dq), bias_of(dk)};
}

// ---- the whole backward ----

using OptionalTensor = std::optional<Tensor>;
using Shape = std::vector<c10::SymInt>;
using MimoTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                             Tensor, Tensor, Tensor, Tensor, Tensor>;

void check_shape(const char* name, const Tensor& tensor, const Shape& shape, const Tensor& q) {
  TORCH_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), "mamba3_mimo_bwd: ", name,
              " must have shape ", c10::SymIntArrayRef(shape), ", got ", tensor.sym_sizes());
  TORCH_CHECK(tensor.device() == q.device(), "mamba3_mimo_bwd: ", name, " must be on ", q.device(),
              ", got ", tensor.device());
}

void check_tensor(const char* name, const Tensor& tensor, const Shape& shape, at::ScalarType type,
                  const Tensor& q) {
  check_shape(name, tensor, shape, q);
  TORCH_CHECK(tensor.scalar_type() == type, "mamba3_mimo_bwd: ", name, " must have dtype ",
              dtype_name(type), ", got ", dtype_name(tensor.scalar_type()));
}

void check_axes(const MimoInputs& in) {
  const auto type = in.q.scalar_type();
  TORCH_CHECK(in.q.dim() == 5,
              "mamba3_mimo_bwd: q must have 5 axes [batch, seqlen, num_ranks, num_groups, "
              "head_dim_qk], got ",
              in.q.dim());
  TORCH_CHECK(
      type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble,
      "mamba3_mimo_bwd: q must have dtype float32, bfloat16, float16 or float64, got ",
      dtype_name(type));
  TORCH_CHECK(in.q.sym_size(2) >= 1, "mamba3_mimo_bwd: q must have at least one rank, got 0");
  TORCH_CHECK(in.q.sym_size(4) % 2 == 0, "mamba3_mimo_bwd: head_dim_qk must be even, got ",
              in.q.sym_size(4));
  TORCH_CHECK(in.v.dim() == 4,
              "mamba3_mimo_bwd: v must have 4 axes [batch, seqlen, num_heads, head_dim_v], got ",
              in.v.dim());
  TORCH_CHECK(in.q.sym_size(3) >= 1 && in.v.sym_size(2) % in.q.sym_size(3) == 0,
              "mamba3_mimo_bwd: num_groups must divide num_heads = ", in.v.sym_size(2), ", got ",
              in.q.sym_size(3));
  TORCH_CHECK(in.angles.dim() == 4 && in.angles.sym_size(3) * 2 <= in.q.sym_size(4),
              "mamba3_mimo_bwd: angles must have 4 axes, the last at most ", in.q.sym_size(4) / 2,
              ", got shape ", in.angles.sym_sizes());
}

void check_mimo(const MimoInputs& in, const Tensor& grad_out) {
  check_axes(in);
  const Tensor& q = in.q;
  const auto low = q.scalar_type(), wide = low == at::kDouble ? at::kDouble : at::kFloat;
  const auto b = q.sym_size(0), s = q.sym_size(1), r = q.sym_size(2), n = q.sym_size(4),
             h = in.v.sym_size(2), p = in.v.sym_size(3);
  const Shape steps = {b, h, s}, of_v = {b, s, h, p}, projection = {h, r, p};
  check_tensor("k", in.k, {b, s, r, q.sym_size(3), n}, low, q);
  check_tensor("v", in.v, of_v, low, q);
  check_tensor("adt", in.adt, steps, wide, q);
  check_tensor("dt", in.dt, steps, wide, q);
  check_shape("trap", in.trap, steps, q);
  TORCH_CHECK(in.trap.scalar_type() == low || in.trap.scalar_type() == wide,
              "mamba3_mimo_bwd: trap must have dtype ", dtype_name(low), " or ", dtype_name(wide),
              ", got ", dtype_name(in.trap.scalar_type()));
  check_tensor("q_bias", in.q_bias, {h, r, n}, wide, q);
  check_tensor("k_bias", in.k_bias, {h, r, n}, wide, q);
  check_tensor("mimo_v", in.mimo_v, projection, wide, q);
  if (in.mimo_z) check_tensor("mimo_z", *in.mimo_z, projection, wide, q);
  if (in.mimo_o) check_tensor("mimo_o", *in.mimo_o, projection, wide, q);
  check_tensor("angles", in.angles, {b, s, h, in.angles.sym_size(3)}, wide, q);
  if (in.d) check_tensor("d", *in.d, {h}, wide, q);
  if (in.z) check_tensor("z", *in.z, of_v, low, q);
  TORCH_CHECK(in.z.has_value() == in.mimo_z.has_value(),
              "mamba3_mimo_bwd: z and mimo_z must be given together");
  if (in.cu_seqlens) {
    TORCH_CHECK(in.cu_seqlens->dim() == 1 && in.cu_seqlens->sym_size(0) >= 1,
                "mamba3_mimo_bwd: cu_seqlens must have shape [num_sequences + 1], got ",
                in.cu_seqlens->sym_sizes());
    check_tensor("cu_seqlens", *in.cu_seqlens, {in.cu_seqlens->sym_size(0)}, at::kInt, q);
    TORCH_CHECK(b == 1, "mamba3_mimo_bwd: cu_seqlens needs batch 1, got ", b);
  }
  check_tensor("grad_out", grad_out, in.mimo_o ? of_v : Shape{b, s, r, h, p}, low, q);
}

/// Contiguous, and aligned to what the kernels copy at a time: a view may start anywhere.
OptionalTensor in_words(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(in_words(*tensor)) : std::nullopt;
}

MimoInputs in_words(const MimoInputs& in) {
  return {in_words(in.q),      in_words(in.k),      in_words(in.v),         in_words(in.adt),
          in_words(in.dt),     in_words(in.trap),   in_words(in.q_bias),    in_words(in.k_bias),
          in_words(in.mimo_v), in_words(in.mimo_z), in_words(in.mimo_o),    in_words(in.angles),
          in_words(in.d),      in_words(in.z),      in_words(in.cu_seqlens)};
}

#define PB_MIMO_INPUTS                                                                      \
  const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &adt, const Tensor &dt,   \
      const Tensor &trap, const Tensor &q_bias, const Tensor &k_bias, const Tensor &mimo_v, \
      const OptionalTensor &mimo_z, const OptionalTensor &mimo_o, const Tensor &angles,     \
      const OptionalTensor &d, const OptionalTensor &z, const OptionalTensor &cu_seqlens,   \
      const Tensor &grad_out
#define PB_MIMO_STRUCT                                                                       \
  MimoInputs {                                                                               \
    q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z, cu_seqlens \
  }

MimoTuple mimo_meta(PB_MIMO_INPUTS) {
  check_mimo(PB_MIMO_STRUCT, grad_out);
  const auto like = [&](const OptionalTensor& t) {
    return t ? at::empty_symint(t->sym_sizes(), t->options())
             : at::empty_symint({c10::SymInt(0)}, adt.options());
  };
  return {like(q),      like(k),      like(v),      like(adt),    like(dt),
          like(trap),   like(q_bias), like(k_bias), like(mimo_v), like(mimo_z),
          like(mimo_o), like(angles), like(d),      like(z)};
}

MimoGradients named(const MimoTuple& all) {
  return std::apply([](const auto&... each) { return MimoGradients{each...}; }, all);
}

#ifdef PATCHBENCH_CUDA
/// The extents alone.
MimoBackward extents_of(const MimoInputs& in) {
  MimoBackward problem;
  problem.batch = in.q.size(0);
  problem.seqlen = in.q.size(1);
  problem.num_ranks = in.q.size(2);
  problem.num_groups = in.q.size(3);
  problem.head_dim_qk = in.q.size(4);
  problem.num_heads = in.v.size(2);
  problem.head_dim_v = in.v.size(3);
  problem.num_angles = in.angles.size(3);
  const int64_t tokens = std::max<int64_t>(problem.chunk_tokens(), 1);
  problem.num_sequences = in.cu_seqlens ? in.cu_seqlens->size(0) - 1 : problem.batch;
  problem.num_chunks = in.cu_seqlens ? problem.num_sequences + problem.seqlen / tokens
                                     : problem.batch * ((problem.seqlen + tokens - 1) / tokens);
  return problem;
}
#endif

bool has_mimo_kernel(const MimoInputs& in) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (in.q.is_cuda() && in.q.scalar_type() == at::kBFloat16) {
    const MimoBackward problem = extents_of(in);
    const auto* device = at::cuda::getDeviceProperties(in.q.get_device());
    return device->major >= 8 && is_served(problem) &&
           problem.num_heads / problem.num_groups <= kMaxGroupHeads &&
           static_cast<int64_t>(device->sharedMemPerBlockOptin) >= shared_bytes(problem);
  }
#else
  static_cast<void>(in);
#endif
  return false;
}

#ifdef PATCHBENCH_CUDA
void point_to(MimoBackward& problem, const MimoInputs& in, const Tensor& grad_out,
              const MimoGradients& to) {
  const auto low = [](const OptionalTensor& t) { return t ? t->const_data_ptr() : nullptr; };
  const auto wide = [](const OptionalTensor& t) {
    return t ? t->const_data_ptr<float>() : nullptr;
  };
  const auto sum = [](const Tensor& t) {
    return t.numel() > 0 ? t.mutable_data_ptr<float>() : nullptr;
  };
  problem.q = low(in.q);
  problem.k = low(in.k);
  problem.v = low(in.v);
  problem.z = low(in.z);
  problem.grad_out = low(grad_out);
  problem.trap = low(in.trap);
  problem.has_wide_trap = in.trap.scalar_type() == at::kFloat;
  problem.adt = wide(in.adt);
  problem.dt = wide(in.dt);
  problem.q_bias = wide(in.q_bias);
  problem.k_bias = wide(in.k_bias);
  problem.mimo_v = wide(in.mimo_v);
  problem.mimo_z = wide(in.mimo_z);
  problem.mimo_o = wide(in.mimo_o);
  problem.angles = wide(in.angles);
  problem.d = wide(in.d);
  if (in.cu_seqlens) problem.cu_seqlens = in.cu_seqlens->const_data_ptr<int32_t>();
  problem.grad_v = to.v.mutable_data_ptr();
  problem.grad_z = in.z ? to.z.mutable_data_ptr() : nullptr;
  problem.grad_trap = to.trap.mutable_data_ptr();
  problem.grad_adt = sum(to.adt);
  problem.grad_dt = sum(to.dt);
  problem.grad_mimo_v = sum(to.mimo_v);
  problem.grad_mimo_z = sum(to.mimo_z);
  problem.grad_mimo_o = sum(to.mimo_o);
  problem.grad_angles = sum(to.angles);
  problem.grad_d = sum(to.d);
}

void launch_mimo(const MimoInputs& in, const Tensor& grad_out, const MimoGradients& to) {
  MimoBackward problem = extents_of(in);
  point_to(problem, in, grad_out, to);
  const int64_t chunks = problem.num_chunks, heads = problem.num_heads;
  const Tensor raw =
      at::empty({2, problem.batch, problem.seqlen, problem.num_ranks, heads, problem.head_dim_qk},
                in.q.options());
  const Tensor states =
      at::empty({2, chunks, heads, problem.head_dim_v, problem.head_dim_qk}, in.q.options());
  const Tensor decays = at::empty({chunks, heads}, in.adt.options());
  const Tensor partials = at::empty({chunks, heads, problem.num_partials()}, in.adt.options());
  const Tensor steps = at::empty({2, problem.batch, heads, problem.seqlen}, in.adt.options());
  Tensor spans, first_chunks;
  problem.raw_q = raw[0].mutable_data_ptr();
  problem.raw_k = raw[1].mutable_data_ptr();
  problem.states = states[0].mutable_data_ptr();
  problem.grad_states = states[1].mutable_data_ptr();
  problem.decays = decays.mutable_data_ptr<float>();
  problem.partials = partials.mutable_data_ptr<float>();
  problem.grad_steps = steps[0].mutable_data_ptr<float>();
  problem.grad_own = steps[1].mutable_data_ptr<float>();
  if (in.cu_seqlens) {
    spans = at::empty({chunks, 4}, in.cu_seqlens->options());
    first_chunks = at::empty({problem.num_sequences + 1}, in.cu_seqlens->options());
    problem.spans = spans.mutable_data_ptr<int32_t>();
    problem.first_chunks = first_chunks.mutable_data_ptr<int32_t>();
  }
  C10_CUDA_CHECK(launch_mimo_backward(problem, at::cuda::getCurrentCUDAStream()));
  launch_reduce(raw[0], raw[1], problem.num_groups, {to.q, to.k, to.q_bias, to.k_bias});
}
#endif

MimoTuple mimo_real(PB_MIMO_INPUTS) {
  const MimoTuple gradients = mimo_meta(q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z,
                                        mimo_o, angles, d, z, cu_seqlens, grad_out);
  const c10::OptionalDeviceGuard guard(q.device());
  const MimoInputs in = in_words(PB_MIMO_STRUCT);
  const Tensor grad = in_words(grad_out);
  const MimoGradients to = named(gradients);
#ifdef PATCHBENCH_CUDA
  if (has_mimo_kernel(in)) {
    launch_mimo(in, grad, to);
    return gradients;
  }
#endif
  warn_of_plain_form(kSlug, "mamba3_mimo_bwd", q, kNeeds);
  // What the plain form adds to.
  for (const Tensor& sum : {to.q_bias, to.k_bias, to.mimo_v, to.mimo_z, to.mimo_o, to.d})
    sum.zero_();
  MimoPlain(in, grad, to).run();
  return gradients;
}

std::string mimo_path(const Tensor& q, const Tensor& v, const Tensor& angles,
                      const OptionalTensor& cu_seqlens) {
  MimoInputs in{.q = q, .v = v, .angles = angles, .cu_seqlens = cu_seqlens};
  return has_mimo_kernel(in) ? "cuda" : "plain";
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

MimoGradients mamba3_mimo_bwd(const MimoInputs& in, const Tensor& grad_out) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::mamba3_mimo_bwd", "")
                             .typed<decltype(mimo_real)>();
  return named(op.call(in.q, in.k, in.v, in.adt, in.dt, in.trap, in.q_bias, in.k_bias, in.mimo_v,
                       in.mimo_z, in.mimo_o, in.angles, in.d, in.z, in.cu_seqlens, grad_out));
}

std::string mamba3_mimo_bwd_path(const MimoInputs& in) {
  return mimo_path(in.q, in.v, in.angles, in.cu_seqlens);
}

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "mamba3_mimo_bwd(Tensor q, Tensor k, Tensor v, Tensor adt, Tensor dt, Tensor trap, Tensor "
      "q_bias, Tensor k_bias, Tensor mimo_v, Tensor? mimo_z, Tensor? mimo_o, Tensor angles, "
      "Tensor? d, Tensor? z, Tensor? cu_seqlens, Tensor grad_out) -> (Tensor grad_q, Tensor "
      "grad_k, Tensor grad_v, Tensor grad_adt, Tensor grad_dt, Tensor grad_trap, Tensor "
      "grad_q_bias, Tensor grad_k_bias, Tensor grad_mimo_v, Tensor grad_mimo_z, Tensor "
      "grad_mimo_o, Tensor grad_angles, Tensor grad_d, Tensor grad_z)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "group_reduce_bwd(Tensor dq, Tensor dk, int num_groups) -> (Tensor grad_q, Tensor grad_k, "
      "Tensor grad_q_bias, Tensor grad_k_bias)",
      {at::Tag::pt2_compliant_tag});
  m.def("group_reduce_bwd_path(Tensor dq, int num_groups) -> str");
  m.def("mamba3_mimo_bwd_path(Tensor q, Tensor v, Tensor angles, Tensor? cu_seqlens) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("group_reduce_bwd_path", group_reduce_bwd_path);
  m.impl("mamba3_mimo_bwd_path", mimo_path);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("group_reduce_bwd", reduce_real);
  m.impl("mamba3_mimo_bwd", mimo_real);
}
TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("group_reduce_bwd", reduce_real);
  m.impl("mamba3_mimo_bwd", mimo_real);
}
TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("group_reduce_bwd", reduce_meta);
  m.impl("mamba3_mimo_bwd", mimo_meta);
}
TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("group_reduce_bwd", torch::autograd::autogradNotImplementedFallback());
  m.impl("mamba3_mimo_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
