// patchbench::group_reduce_bwd and mamba3_mimo_bwd on torch's stable ABI. What they do: op.h.
#include <algorithm>
#include <string>
#include <tuple>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "kernel.cuh"
#include "mimo_backward.cuh"
#include "mimo_plain.h"

namespace patchbench::ops::mamba3_mimo_gqa_bwd {
namespace {

using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "mamba3_mimo_gqa_bwd";
constexpr const char* kReduceNeeds =
    "a head_dim that is a multiple of 8, at most 256 heads a group, and compute capability 8.0";
constexpr const char* kNeeds =
    "bfloat16, 1, 2, 4 or 8 ranks, head dims of 64 or 128, at most 256 heads a group, and compute "
    "capability 8.0 with 184 KiB of shared memory a CTA";

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
  if (dq.is_cuda()) return gpu_of(dq).major >= 8 && is_served(problem_of(dq, num_groups));
#else
  static_cast<void>(dq);
  static_cast<void>(num_groups);
#endif
  return false;
}

void check_inputs(const Tensor& dq, const Tensor& dk, int64_t num_groups) {
  const char* op = "group_reduce_bwd";
  check_axes(op, "dq", dq, 5, "[batch, seqlen, num_ranks, num_heads, head_dim]");
  PB_CHECK(
      dk.shape() == dq.shape() && dk.scalar_type() == dq.scalar_type() && is_on_one_device(dk, dq),
      op, ": dk must be as dq, ", text_of(dq.scalar_type()), " ", text_of(dq.shape()), " on ",
      device_of(dq), ", got ", text_of(dk.scalar_type()), " ", text_of(dk.shape()), " on ",
      device_of(dk));
  const ScalarType type = dq.scalar_type();
  PB_CHECK(type == kFloat || type == kBFloat16 || type == kHalf, op,
           ": dq must have dtype float32, bfloat16 or float16, got ", text_of(type));
  PB_CHECK(num_groups >= 1 && dq.size(3) % num_groups == 0, op,
           ": num_groups must divide num_heads = ", dq.size(3), ", got ", num_groups);
}

Tensor grouped(const Tensor& raw, int64_t num_groups) {
  const Ints s = raw.shape();
  const Tensor view = raw.reshape({s[0], s[1], s[2], num_groups, s[3] / num_groups, s[4]});
  return view.sum({4}, false, kFloat).to(raw.scalar_type());
}

Tensor bias_of(const Tensor& raw) {
  return raw.sum({0, 1}, false, kFloat).transpose(0, 1).contiguous();
}

#ifdef PATCHBENCH_CUDA
Gradients empty_sums(const Tensor& dq, int64_t num_groups) {
  const Ints grad = {dq.size(0), dq.size(1), dq.size(2), num_groups, dq.size(4)};
  const Ints bias = {dq.size(3), dq.size(2), dq.size(4)};
  return {empty(grad, dq), empty(grad, dq), empty(bias, dq, kFloat), empty(bias, dq, kFloat)};
}

void launch_reduce(const Tensor& dq, const Tensor& dk, int64_t num_groups,
                   const Gradients& gradients) {
  const auto& [grad_q, grad_k, bias_q, bias_k] = gradients;
  GroupReduce problem = problem_of(dq, num_groups);
  const int num_processors = gpu_of(dq).num_processors;
  const Tensor partial = empty({2, num_row_blocks(problem, num_processors), problem.num_heads,
                                problem.num_ranks, problem.head_dim},
                               dq, kFloat);
  problem.raw[0] = dq.data();
  problem.raw[1] = dk.data();
  problem.grad[0] = grad_q.mutable_data();
  problem.grad[1] = grad_k.mutable_data();
  problem.grad_bias[0] = bias_q.mutable_data<float>();
  problem.grad_bias[1] = bias_k.mutable_data<float>();
  problem.partial = partial.mutable_data<float>();
  const ElementType type = dq.scalar_type() == kFloat      ? ElementType::kFloat32
                           : dq.scalar_type() == kBFloat16 ? ElementType::kBFloat16
                                                           : ElementType::kFloat16;
  check_cuda("group_reduce_bwd",
             launch_group_reduce(problem, type, num_processors, current_stream(dq)));
}
#endif

Gradients reduce(const Tensor& dq_any, const Tensor& dk_any, int64_t num_groups) {
  check_inputs(dq_any, dk_any, num_groups);
  const Tensor dq = in_words(dq_any), dk = in_words(dk_any);
  const DeviceScope device(dq);
#ifdef PATCHBENCH_CUDA
  if (has_kernel(dq, num_groups)) {
    const Gradients gradients = empty_sums(dq, num_groups);
    launch_reduce(dq, dk, num_groups, gradients);
    return gradients;
  }
#endif
  warn_of_plain_form(kSlug, "group_reduce_bwd", dq, kReduceNeeds);
  return {grouped(dq, num_groups), grouped(dk, num_groups), bias_of(dq), bias_of(dk)};
}

// ---- the whole backward ----

using MimoTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                             Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr const char* kMimo = "mamba3_mimo_bwd";

void check_low(const char* name, const Tensor& tensor, const Ints& shape, ScalarType type,
               const Tensor& q) {
  check_tensor(kMimo, name, tensor, shape, type, q);
}

void check_extents(const MimoOperands& in) {
  const auto type = in.q.scalar_type();
  PB_CHECK(in.q.dim() == 5,
           "mamba3_mimo_bwd: q must have 5 axes [batch, seqlen, num_ranks, num_groups, "
           "head_dim_qk], got ",
           in.q.dim());
  PB_CHECK(type == kFloat || type == kBFloat16 || type == kHalf || type == kDouble,
           "mamba3_mimo_bwd: q must have dtype float32, bfloat16, float16 or float64, got ",
           text_of(type));
  PB_CHECK(in.q.size(2) >= 1, "mamba3_mimo_bwd: q must have at least one rank, got 0");
  PB_CHECK(in.q.size(4) % 2 == 0, "mamba3_mimo_bwd: head_dim_qk must be even, got ", in.q.size(4));
  PB_CHECK(in.v.dim() == 4,
           "mamba3_mimo_bwd: v must have 4 axes [batch, seqlen, num_heads, head_dim_v], got ",
           in.v.dim());
  PB_CHECK(in.q.size(3) >= 1 && in.v.size(2) % in.q.size(3) == 0,
           "mamba3_mimo_bwd: num_groups must divide num_heads = ", in.v.size(2), ", got ",
           in.q.size(3));
  PB_CHECK(in.angles.dim() == 4 && in.angles.size(3) * 2 <= in.q.size(4),
           "mamba3_mimo_bwd: angles must have 4 axes, the last at most ", in.q.size(4) / 2,
           ", got shape ", text_of(in.angles.shape()));
}

void check_mimo(const MimoOperands& in, const Tensor& grad_out) {
  check_extents(in);
  const Tensor& q = in.q;
  const auto low = q.scalar_type(), wide = low == kDouble ? kDouble : kFloat;
  const auto b = q.size(0), s = q.size(1), r = q.size(2), n = q.size(4), h = in.v.size(2),
             p = in.v.size(3);
  const Ints steps = {b, h, s}, of_v = {b, s, h, p}, projection = {h, r, p};
  check_low("k", in.k, {b, s, r, q.size(3), n}, low, q);
  check_low("v", in.v, of_v, low, q);
  check_low("adt", in.adt, steps, wide, q);
  check_low("dt", in.dt, steps, wide, q);
  check_device(kMimo, "trap", in.trap, q);
  check_shape(kMimo, "trap", in.trap, steps);
  PB_CHECK(in.trap.scalar_type() == low || in.trap.scalar_type() == wide,
           "mamba3_mimo_bwd: trap must have dtype ", text_of(low), " or ", text_of(wide), ", got ",
           text_of(in.trap.scalar_type()));
  check_low("q_bias", in.q_bias, {h, r, n}, wide, q);
  check_low("k_bias", in.k_bias, {h, r, n}, wide, q);
  check_low("mimo_v", in.mimo_v, projection, wide, q);
  if (in.mimo_z) check_low("mimo_z", *in.mimo_z, projection, wide, q);
  if (in.mimo_o) check_low("mimo_o", *in.mimo_o, projection, wide, q);
  check_low("angles", in.angles, {b, s, h, in.angles.size(3)}, wide, q);
  if (in.d) check_low("d", *in.d, {h}, wide, q);
  if (in.z) check_low("z", *in.z, of_v, low, q);
  PB_CHECK(in.z.has_value() == in.mimo_z.has_value(),
           "mamba3_mimo_bwd: z and mimo_z must be given together");
  if (in.cu_seqlens) {
    PB_CHECK(in.cu_seqlens->dim() == 1 && in.cu_seqlens->size(0) >= 1,
             "mamba3_mimo_bwd: cu_seqlens must have shape [num_sequences + 1], got ",
             text_of(in.cu_seqlens->shape()));
    check_low("cu_seqlens", *in.cu_seqlens, {in.cu_seqlens->size(0)}, kInt, q);
    PB_CHECK(b == 1, "mamba3_mimo_bwd: cu_seqlens needs batch 1, got ", b);
  }
  check_low("grad_out", grad_out, in.mimo_o ? of_v : Ints{b, s, r, h, p}, low, q);
}

/// Each contiguous and at a multiple of 16 bytes.
MimoOperands in_words(const MimoOperands& in) {
  using ops::in_words;
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
  MimoOperands {                                                                             \
    q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z, cu_seqlens \
  }

MimoTuple empty_gradients(const MimoOperands& in) {
  const auto like = [&](const OptionalTensor& t) {
    return t ? empty_like(*t) : empty({0}, in.adt);
  };
  return {like(in.q),      like(in.k),      like(in.v),      like(in.adt),    like(in.dt),
          like(in.trap),   like(in.q_bias), like(in.k_bias), like(in.mimo_v), like(in.mimo_z),
          like(in.mimo_o), like(in.angles), like(in.d),      like(in.z)};
}

MimoResults named(const MimoTuple& all) {
  return std::apply([](const auto&... each) { return MimoResults{each...}; }, all);
}

#ifdef PATCHBENCH_CUDA
/// The extents alone.
MimoBackward extents_of(const MimoOperands& in) {
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

bool has_mimo_kernel(const MimoOperands& in) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (in.q.is_cuda() && in.q.scalar_type() == kBFloat16) {
    const MimoBackward problem = extents_of(in);
    const Gpu gpu = gpu_of(in.q);
    return gpu.major >= 8 && is_served(problem) &&
           problem.num_heads / problem.num_groups <= kMaxGroupHeads &&
           gpu.shared_bytes >= shared_bytes(problem);
  }
#else
  static_cast<void>(in);
#endif
  return false;
}

#ifdef PATCHBENCH_CUDA
void point_to(MimoBackward& problem, const MimoOperands& in, const Tensor& grad_out,
              const MimoResults& to) {
  const auto low = [](const OptionalTensor& t) { return t ? t->data() : nullptr; };
  const auto wide = [](const OptionalTensor& t) { return t ? t->data<float>() : nullptr; };
  const auto sum = [](const Tensor& t) {
    return t.numel() > 0 ? t.mutable_data<float>() : nullptr;
  };
  problem.q = low(in.q);
  problem.k = low(in.k);
  problem.v = low(in.v);
  problem.z = low(in.z);
  problem.grad_out = low(grad_out);
  problem.trap = low(in.trap);
  problem.has_wide_trap = in.trap.scalar_type() == kFloat;
  problem.adt = wide(in.adt);
  problem.dt = wide(in.dt);
  problem.q_bias = wide(in.q_bias);
  problem.k_bias = wide(in.k_bias);
  problem.mimo_v = wide(in.mimo_v);
  problem.mimo_z = wide(in.mimo_z);
  problem.mimo_o = wide(in.mimo_o);
  problem.angles = wide(in.angles);
  problem.d = wide(in.d);
  if (in.cu_seqlens) problem.cu_seqlens = in.cu_seqlens->data<int32_t>();
  problem.grad_v = to.v.mutable_data();
  problem.grad_z = in.z ? to.z.mutable_data() : nullptr;
  problem.grad_trap = to.trap.mutable_data();
  problem.grad_adt = sum(to.adt);
  problem.grad_dt = sum(to.dt);
  problem.grad_mimo_v = sum(to.mimo_v);
  problem.grad_mimo_z = sum(to.mimo_z);
  problem.grad_mimo_o = sum(to.mimo_o);
  problem.grad_angles = sum(to.angles);
  problem.grad_d = sum(to.d);
}

void launch_mimo(const MimoOperands& in, const Tensor& grad_out, const MimoResults& to) {
  MimoBackward problem = extents_of(in);
  point_to(problem, in, grad_out, to);
  const int64_t chunks = problem.num_chunks, heads = problem.num_heads;
  const Tensor raw = empty(
      {2, problem.batch, problem.seqlen, problem.num_ranks, heads, problem.head_dim_qk}, in.q);
  const Tensor states = empty({2, chunks, heads, problem.head_dim_v, problem.head_dim_qk}, in.q);
  const Tensor decays = empty({chunks, heads}, in.adt);
  const Tensor partials = empty({chunks, heads, problem.num_partials()}, in.adt);
  const Tensor steps = empty({2, problem.batch, heads, problem.seqlen}, in.adt);
  Tensor spans, first_chunks;
  problem.raw_q = raw[0].mutable_data();
  problem.raw_k = raw[1].mutable_data();
  problem.states = states[0].mutable_data();
  problem.grad_states = states[1].mutable_data();
  problem.decays = decays.mutable_data<float>();
  problem.partials = partials.mutable_data<float>();
  problem.grad_steps = steps[0].mutable_data<float>();
  problem.grad_own = steps[1].mutable_data<float>();
  if (in.cu_seqlens) {
    spans = empty({chunks, 4}, *in.cu_seqlens);
    first_chunks = empty({problem.num_sequences + 1}, *in.cu_seqlens);
    problem.spans = spans.mutable_data<int32_t>();
    problem.first_chunks = first_chunks.mutable_data<int32_t>();
  }
  check_cuda(kMimo, launch_mimo_backward(problem, current_stream(in.q)));
  launch_reduce(raw[0], raw[1], problem.num_groups, {to.q, to.k, to.q_bias, to.k_bias});
}
#endif

MimoTuple backward(PB_MIMO_INPUTS) {
  check_mimo(PB_MIMO_STRUCT, grad_out);
  const DeviceScope device(q);
  const MimoOperands in = in_words(PB_MIMO_STRUCT);
  const Tensor grad = ops::in_words(grad_out);
  const MimoTuple gradients = empty_gradients(in);
  const MimoResults to = named(gradients);
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
  MimoOperands in;
  in.q = q;
  in.v = v;
  in.angles = angles;
  in.cu_seqlens = cu_seqlens;
  return has_mimo_kernel(in) ? "cuda" : "plain";
}

std::string reduce_path(const Tensor& dq, int64_t num_groups) {
  return has_kernel(dq, num_groups) ? "cuda" : "plain";
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def(
      "mamba3_mimo_bwd(Tensor q, Tensor k, Tensor v, Tensor adt, Tensor dt, Tensor trap, Tensor "
      "q_bias, Tensor k_bias, Tensor mimo_v, Tensor? mimo_z, Tensor? mimo_o, Tensor angles, "
      "Tensor? d, Tensor? z, Tensor? cu_seqlens, Tensor grad_out) -> (Tensor grad_q, Tensor "
      "grad_k, Tensor grad_v, Tensor grad_adt, Tensor grad_dt, Tensor grad_trap, Tensor "
      "grad_q_bias, Tensor grad_k_bias, Tensor grad_mimo_v, Tensor grad_mimo_z, Tensor "
      "grad_mimo_o, Tensor grad_angles, Tensor grad_d, Tensor grad_z)");
  m.def(
      "group_reduce_bwd(Tensor dq, Tensor dk, int num_groups) -> (Tensor grad_q, Tensor grad_k, "
      "Tensor grad_q_bias, Tensor grad_k_bias)");
  m.def("group_reduce_bwd_path(Tensor dq, int num_groups) -> str");
  m.def("mamba3_mimo_bwd_path(Tensor q, Tensor v, Tensor angles, Tensor? cu_seqlens) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("group_reduce_bwd_path", &boxed<reduce_path>);
  m.impl("mamba3_mimo_bwd_path", &boxed<mimo_path>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("group_reduce_bwd", &boxed<reduce>);
  m.impl("mamba3_mimo_bwd", &boxed<backward>);
}
STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("group_reduce_bwd", &boxed<reduce>);
  m.impl("mamba3_mimo_bwd", &boxed<backward>);
}

}  // namespace patchbench::ops::mamba3_mimo_gqa_bwd
