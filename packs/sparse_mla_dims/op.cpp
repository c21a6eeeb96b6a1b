#include "op.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <limits>

#include "../op_fallback.h"
#include "kernel.cuh"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::ops::sparse_mla_dims {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Mask = std::array<bool, 2>;  // of the gradients that are wanted
using Triple = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "sparse_mla_dims";
constexpr const char* kNeeds =
    "bfloat16, staging bf16, and compute capability 9.x with 226 KiB of shared memory a CTA";
constexpr double kLog2e = 1.4426950408889634;
constexpr int64_t kMaxHeadDim = 576, kMaxHeadDimV = 512, kHeadDimStep = 16;

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

/// Of sums and of lse.
at::ScalarType sum_type(at::ScalarType type) { return type == at::kDouble ? type : at::kFloat; }

bool has_kernel(const Tensor& q, int64_t head_dim_v, const std::string& staging) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (q.is_cuda() && q.scalar_type() == at::kBFloat16 && staging == "bf16") {
    const auto* device = at::cuda::getDeviceProperties(q.get_device());
    // The instructions are sm_90a's: no later architecture has them.
    return device->major == 9 && fits_grid(q.size(0), q.size(1), q.size(2)) &&
           static_cast<int64_t>(device->sharedMemPerBlockOptin) >=
               shared_bytes(q.size(3), head_dim_v);
  }
#else
  static_cast<void>(q);
  static_cast<void>(head_dim_v);
  static_cast<void>(staging);
#endif
  return false;
}

// ---- checks: on symbolic sizes, so that Meta and the real devices share them ----

using Shape = std::vector<c10::SymInt>;

void check_tensor(const char* op, const char* name, const Tensor& tensor, const Shape& shape,
                  at::ScalarType type, const Tensor& q) {
  TORCH_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), op, ": ", name, " must have shape ",
              c10::SymIntArrayRef(shape), ", got ", tensor.sym_sizes());
  TORCH_CHECK(tensor.device() == q.device(), op, ": ", name, " must be on ", q.device(), ", got ",
              tensor.device());
  TORCH_CHECK(tensor.scalar_type() == type, op, ": ", name, " must have dtype ", dtype_name(type),
              ", got ", dtype_name(tensor.scalar_type()));
}

void check_problem(const char* op, const Tensor& q, const Tensor& kv, const Tensor& indices,
                   const c10::SymInt& head_dim_v) {
  TORCH_CHECK(q.dim() == 4, op,
              ": q must have 4 axes [batch, seqlen_q, num_heads, head_dim_qk], got ", q.dim());
  TORCH_CHECK(kv.dim() == 4, op, ": kv must have 4 axes [batch, seqlen_k, 1, head_dim_qk], got ",
              kv.dim());
  TORCH_CHECK(indices.dim() == 4, op,
              ": topk_indices must have 4 axes [batch, seqlen_q, 1, topk], got ", indices.dim());
  const auto b = q.sym_size(0), head_dim = q.sym_size(3);
  TORCH_CHECK(head_dim >= kHeadDimStep && head_dim <= kMaxHeadDim && head_dim % kHeadDimStep == 0,
              op, ": head_dim_qk must be a multiple of 16 from 16 to 576, got ", head_dim);
  const auto most = head_dim.min(kMaxHeadDimV);
  TORCH_CHECK(head_dim_v >= kHeadDimStep && head_dim_v <= most && head_dim_v % kHeadDimStep == 0,
              op, ": head_dim_v must be a multiple of 16 from 16 to min(512, head_dim_qk) = ", most,
              ", got ", head_dim_v);
  const auto type = q.scalar_type();
  TORCH_CHECK(
      type == at::kBFloat16 || type == at::kHalf || type == at::kFloat || type == at::kDouble, op,
      ": q must have dtype bfloat16, float16, float32 or float64, got ", dtype_name(type));
  check_tensor(op, "kv", kv, {b, kv.sym_size(1), 1, head_dim}, type, q);
  check_tensor(op, "topk_indices", indices, {b, q.sym_size(1), 1, indices.sym_size(3)}, at::kInt,
               q);
  TORCH_CHECK(kv.sym_size(1) <= std::numeric_limits<int32_t>::max(), op,
              ": seqlen_k must be below 2^31, got ", kv.sym_size(1));
}

void check_modes(const char* op, const std::string& delta, const std::string& staging) {
  TORCH_CHECK(delta == "exact" || delta == "rounded", op, ": delta must be exact or rounded, got ",
              delta);
  TORCH_CHECK(staging == "bf16" || staging == "split", op, ": staging must be bf16 or split, got ",
              staging);
}

bool keeps_remainder(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

// ---- the plain form ----

struct Operands {
  const Tensor &q, &kv, &indices;
  double softmax_scale;
  int64_t head_dim_v;
};

/// Some queries of one batch entry, in the type of sums.
struct Gathered {
  Tensor q;              // [queries, num_heads, head_dim_qk]
  Tensor k, v;           // [queries, topk, head_dim_qk or head_dim_v]; v is a view of k
  Tensor logits;         // [queries, num_heads, topk], in units of log2, -inf where there is no key
  Tensor index, is_key;  // [queries, topk]
};

Gathered gather(const Operands& o, int64_t batch, int64_t first, int64_t count) {
  Gathered g;
  const auto type = sum_type(o.q.scalar_type());
  const Tensor index = o.indices[batch].narrow(0, first, count).squeeze(1).to(at::kLong);
  g.is_key = index.ge(0).logical_and(index.lt(o.kv.size(1)));
  const Tensor is_none = g.is_key.logical_not();
  g.index = index.masked_fill(is_none, 0);
  g.q = o.q[batch].narrow(0, first, count).to(type);
  const Tensor rows = o.kv[batch].squeeze(1).index_select(0, g.index.view(-1)).to(type);
  g.k = rows.view({count, index.size(1), rows.size(1)});
  // Key 0 stands in where there is none: times zero it would still pass on an infinity.
  g.k.masked_fill_(is_none.unsqueeze(-1), 0);
  g.v = g.k.narrow(-1, 0, o.head_dim_v);
  g.logits = at::einsum("shd,skd->shk", {g.q, g.k}).mul_(o.softmax_scale * kLog2e);
  g.logits.masked_fill_(is_none.unsqueeze(1), -std::numeric_limits<double>::infinity());
  return g;
}

/// Calls `body` for each (batch entry, first query, number of queries); never where there is no
/// key at all.
template <typename Body>
void for_queries(const Operands& o, const Body& body) {
  const int64_t heads = o.q.size(2), head_dim = o.q.size(3), topk = o.indices.size(3);
  if (o.kv.size(1) == 0 || topk == 0 || heads == 0) return;
  // Of one query: the keys with their gradient, the logits with what the backward makes of them,
  // and the query with grad_out.
  const int64_t elements = 4 * topk * head_dim + 7 * topk * heads + 6 * heads * head_dim;
  const auto bytes = static_cast<int64_t>(c10::elementSize(sum_type(o.q.scalar_type())));
  const int64_t step = std::max<int64_t>(1, kScratchBytes / (elements * bytes));
  for (int64_t b = 0; b < o.q.size(0); ++b) {
    for (int64_t first = 0; first < o.q.size(1); first += step)
      body(b, first, std::min(step, o.q.size(1) - first));
  }
}

void forward_plain(const Operands& o, const Triple& results) {
  const auto& [out, lse, remainder] = results;
  for (const Tensor& tensor : {out, lse, remainder}) tensor.zero_();
  for_queries(o, [&](int64_t b, int64_t first, int64_t count) {
    const Gathered g = gather(o, b, first, count);
    // A query without a key has the maximum -inf, and -inf - -inf is no number.
    const Tensor top = g.logits.amax(-1, true).clamp_min(std::numeric_limits<float>::lowest());
    const Tensor p = (g.logits - top).exp2_();
    const Tensor sum = p.sum(-1, true);
    const Tensor value = at::einsum("shk,skd->shd", {p, g.v});
    value.div_(sum.clamp_min(std::numeric_limits<float>::min()));
    const Tensor rounded = out[b].narrow(0, first, count).copy_(value);
    lse[b].narrow(0, first, count).copy_(at::where(sum.gt(0), sum.log2() + top, 0.0).squeeze(-1));
    if (remainder.dim() > 1) remainder[b].narrow(0, first, count).copy_(value.sub_(rounded));
  });
}

/// P or dS as the products take it.
Tensor staged(const Tensor& value, at::ScalarType type, const std::string& staging) {
  if (type != at::kBFloat16) return value;
  const Tensor high = value.to(type).to(value.scalar_type());
  if (staging == "bf16") return high;
  return high + (value - high).to(type);
}

struct Saved {
  const Tensor &grad_out, &out, &out_remainder, &lse;
};

/// grad_kv [batch, seqlen_k, head_dim_qk] is zero before, in the type of sums. Either may be
/// undefined: it is not wanted.
void backward_plain(const Operands& o, const Saved& saved, const std::string& delta,
                    const std::string& staging, const Pair& grads) {
  const auto& [grad_q, grad_kv] = grads;
  const auto type = o.q.scalar_type();
  if (grad_q.defined()) grad_q.zero_();
  for_queries(o, [&](int64_t b, int64_t first, int64_t count) {
    const Gathered g = gather(o, b, first, count);
    const auto part = [&](const Tensor& t) {
      return t[b].narrow(0, first, count).to(sum_type(type));
    };
    const Tensor gradient = part(saved.grad_out);
    Tensor out = part(saved.out);
    if (delta == "exact" && keeps_remainder(type)) out = out + part(saved.out_remainder);
    const Tensor row = (gradient * out).sum(-1, true);
    const Tensor p = g.logits.sub_(part(saved.lse).unsqueeze(-1)).exp2_();
    Tensor ds = at::einsum("shd,skd->shk", {gradient, g.v}).sub_(row);
    ds = staged(ds.mul_(p).mul_(o.softmax_scale), type, staging);
    if (grad_q.defined())
      grad_q[b].narrow(0, first, count).copy_(at::einsum("shk,skd->shd", {ds, g.k}));
    if (!grad_kv.defined()) return;
    Tensor grad_k = at::einsum("shk,shd->skd", {ds, g.q});
    grad_k.narrow(-1, 0, o.head_dim_v)
        .add_(at::einsum("shk,shd->skd", {staged(p, type, staging), gradient}));
    grad_k.masked_fill_(g.is_key.logical_not().unsqueeze(-1), 0);
    grad_kv[b].index_add_(0, g.index.view(-1), grad_k.view({-1, grad_k.size(-1)}));
  });
}

// ---- the kernels ----

#ifdef PATCHBENCH_CUDA
const uint16_t* bits_of(const Tensor& tensor) {
  return static_cast<const uint16_t*>(tensor.const_data_ptr());
}

/// The tensor, or a copy where rows do not start at multiples of 16 bytes.
Tensor with_aligned_rows(const Tensor& tensor) {
  bool is_aligned = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  for (int64_t axis = 0; axis < 4; ++axis) {
    const int64_t step = axis == 3 ? tensor.stride(3) - 1 : tensor.stride(axis) % 8;
    is_aligned = is_aligned && (step == 0 || tensor.size(axis) == 1);
  }
  return is_aligned ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

SparseMla problem_of(const Operands& o) {
  return {.q = bits_of(o.q),
          .q_stride_batch = o.q.stride(0),
          .q_stride_query = o.q.stride(1),
          .q_stride_head = o.q.stride(2),
          .kv = bits_of(o.kv),
          .kv_stride_batch = o.kv.stride(0),
          .kv_stride_key = o.kv.stride(1),
          .indices = o.indices.const_data_ptr<int32_t>(),
          .batch = o.q.size(0),
          .seqlen_q = o.q.size(1),
          .seqlen_k = o.kv.size(1),
          .num_heads = o.q.size(2),
          .topk = o.indices.size(3),
          .head_dim_qk = static_cast<int>(o.q.size(3)),
          .head_dim_v = static_cast<int>(o.head_dim_v),
          .softmax_scale = static_cast<float>(o.softmax_scale)};
}

void forward_cuda(const Operands& o, const Triple& results) {
  const Tensor q = with_aligned_rows(o.q), kv = with_aligned_rows(o.kv);
  const Tensor indices = o.indices.contiguous();
  const auto& [out, lse, remainder] = results;
  C10_CUDA_CHECK(
      launch_forward(problem_of({q, kv, indices, o.softmax_scale, o.head_dim_v}),
                     {.out = static_cast<uint16_t*>(out.mutable_data_ptr()),
                      .out_remainder = static_cast<uint16_t*>(remainder.mutable_data_ptr()),
                      .lse = lse.mutable_data_ptr<float>()},
                     at::cuda::getCurrentCUDAStream()));
}

void backward_cuda(const Operands& o, const Saved& saved, const std::string& delta,
                   const Pair& grads) {
  const Tensor q = with_aligned_rows(o.q), kv = with_aligned_rows(o.kv);
  const Tensor indices = o.indices.contiguous(), lse = saved.lse.contiguous();
  const auto dense = [](const Tensor& tensor) { return with_aligned_rows(tensor.contiguous()); };
  const Tensor grad_out = dense(saved.grad_out), out = dense(saved.out);
  const bool is_exact = delta == "exact";
  const Tensor remainder = is_exact ? dense(saved.out_remainder) : saved.out_remainder;
  const auto& [grad_q, grad_kv] = grads;
  C10_CUDA_CHECK(launch_backward(problem_of({q, kv, indices, o.softmax_scale, o.head_dim_v}),
                                 {.grad_out = bits_of(grad_out),
                                  .out = bits_of(out),
                                  .out_remainder = is_exact ? bits_of(remainder) : nullptr,
                                  .lse = lse.const_data_ptr<float>(),
                                  .grad_q = static_cast<uint16_t*>(grad_q.mutable_data_ptr()),
                                  .grad_kv = grad_kv.mutable_data_ptr<float>()},
                                 at::cuda::getCurrentCUDAStream()));
}
#endif

// ---- the dispatcher's side ----

#define PB_MLA_OPERANDS \
  const Tensor &q, const Tensor &kv, const Tensor &topk_indices, double softmax_scale

Triple forward_meta(PB_MLA_OPERANDS, int64_t head_dim_v) {
  static_cast<void>(softmax_scale);
  check_problem("sparse_mla", q, kv, topk_indices, head_dim_v);
  const auto rows = q.sym_sizes().slice(0, 3);
  Shape shape(rows.begin(), rows.end());
  const Tensor lse = at::empty_symint(shape, q.options().dtype(sum_type(q.scalar_type())));
  shape.push_back(head_dim_v);
  const Shape kept = keeps_remainder(q.scalar_type()) ? shape : Shape{0};
  return {at::empty_symint(shape, q.options()), lse, at::empty_symint(kept, q.options())};
}

Triple forward_real(PB_MLA_OPERANDS, int64_t head_dim_v) {
  const Triple results = forward_meta(q, kv, topk_indices, softmax_scale, head_dim_v);
  const c10::OptionalDeviceGuard guard(q.device());
  const Operands operands{q, kv, topk_indices, softmax_scale, head_dim_v};
#ifdef PATCHBENCH_CUDA
  if (has_kernel(q, head_dim_v, "bf16")) {
    forward_cuda(operands, results);
    return results;
  }
#endif
  warn_of_plain_form(kSlug, "sparse_mla_forward", q, kNeeds);
  forward_plain(operands, results);
  return results;
}

#define PB_MLA_SAVED \
  const Tensor &grad_out, const Tensor &out, const Tensor &out_remainder, const Tensor &lse

Pair backward_meta(PB_MLA_SAVED, PB_MLA_OPERANDS, const std::string& delta,
                   const std::string& staging, Mask output_mask) {
  static_cast<void>(softmax_scale);
  const char* op = "sparse_mla_backward";
  TORCH_CHECK(out.dim() == 4, op,
              ": out must have 4 axes [batch, seqlen_q, num_heads, head_dim_v], got ", out.dim());
  check_problem(op, q, kv, topk_indices, out.sym_size(3));
  check_modes(op, delta, staging);
  const auto rows = q.sym_sizes().slice(0, 3);
  Shape shape(rows.begin(), rows.end());
  check_tensor(op, "lse", lse, shape, sum_type(q.scalar_type()), q);
  shape.push_back(out.sym_size(3));
  check_tensor(op, "out", out, shape, q.scalar_type(), q);
  check_tensor(op, "grad_out", grad_out, shape, q.scalar_type(), q);
  if (delta == "exact" && keeps_remainder(q.scalar_type()))
    check_tensor(op, "out_remainder", out_remainder, shape, q.scalar_type(), q);
  const auto like = [](const Tensor& t, bool is_wanted) {
    return is_wanted ? at::empty_symint(t.sym_sizes(), t.options()) : Tensor();
  };
  return {like(q, output_mask[0]), like(kv, output_mask[1])};
}

Pair backward_real(PB_MLA_SAVED, PB_MLA_OPERANDS, const std::string& delta,
                   const std::string& staging, Mask output_mask) {
  const Pair grads = backward_meta(grad_out, out, out_remainder, lse, q, kv, topk_indices,
                                   softmax_scale, delta, staging, output_mask);
  if (!output_mask[0] && !output_mask[1]) return grads;
  const c10::OptionalDeviceGuard guard(q.device());
  const Operands operands{q, kv, topk_indices, softmax_scale, out.size(3)};
  const Saved saved{grad_out, out, out_remainder, lse};
  const auto& [grad_q, grad_kv] = grads;
  const auto sum_of_keys = [&] {
    return at::zeros({kv.size(0), kv.size(1), kv.size(3)},
                     q.options().dtype(sum_type(q.scalar_type())));
  };
#ifdef PATCHBENCH_CUDA
  if (has_kernel(q, out.size(3), staging)) {
    at::globalContext().alertNotDeterministic("sparse_mla_backward");
    // The kernel makes both gradients in one walk over the keys.
    const Tensor sum = sum_of_keys();
    backward_cuda(operands, saved, delta, {output_mask[0] ? grad_q : at::empty_like(q), sum});
    if (output_mask[1]) grad_kv.copy_(sum.unsqueeze(2));
    return grads;
  }
#endif
  warn_of_plain_form(kSlug, "sparse_mla_backward", q, kNeeds);
  const Tensor sum = output_mask[1] ? sum_of_keys() : Tensor();
  backward_plain(operands, saved, delta, staging, {grad_q, sum});
  if (output_mask[1]) grad_kv.copy_(sum.unsqueeze(2));
  return grads;
}

Triple call_forward(PB_MLA_OPERANDS, int64_t head_dim_v) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_forward", "")
                             .typed<decltype(forward_real)>();
  return op.call(q, kv, topk_indices, softmax_scale, head_dim_v);
}

Pair call_backward(PB_MLA_SAVED, PB_MLA_OPERANDS, const std::string& delta,
                   const std::string& staging, Mask output_mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_backward", "")
                             .typed<decltype(backward_real)>();
  return op.call(grad_out, out, out_remainder, lse, q, kv, topk_indices, softmax_scale, delta,
                 staging, output_mask);
}

Pair attend_without_grad(PB_MLA_OPERANDS, int64_t head_dim_v, const std::string& delta,
                         const std::string& staging) {
  check_modes("sparse_mla", delta, staging);
  const Triple results = call_forward(q, kv, topk_indices, softmax_scale, head_dim_v);
  return {std::get<0>(results), std::get<1>(results)};
}

class SparseMla : public torch::autograd::Function<SparseMla> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                PB_MLA_OPERANDS, int64_t head_dim_v,
                                                const std::string& delta,
                                                const std::string& staging) {
    check_modes("sparse_mla", delta, staging);
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [out, lse, remainder] = call_forward(q, kv, topk_indices, softmax_scale, head_dim_v);
    const Tensor kept = delta == "exact" ? remainder : at::empty({0}, out.options());
    ctx->save_for_backward({out, kept, lse, q, kv, topk_indices});
    ctx->saved_data["softmax_scale"] = softmax_scale;
    ctx->saved_data["delta"] = delta;
    ctx->saved_data["staging"] = staging;
    ctx->mark_non_differentiable({lse});
    return {out, lse};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto [grad_q, grad_kv] = call_backward(
        grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5],
        ctx->saved_data["softmax_scale"].toDouble(), ctx->saved_data["delta"].toStringRef(),
        ctx->saved_data["staging"].toStringRef(),
        {ctx->needs_input_grad(0), ctx->needs_input_grad(1)});
    return {grad_q, grad_kv, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Pair attend_with_grad(PB_MLA_OPERANDS, int64_t head_dim_v, const std::string& delta,
                      const std::string& staging) {
  const auto results =
      SparseMla::apply(q, kv, topk_indices, softmax_scale, head_dim_v, delta, staging);
  return {results[0], results[1]};
}

}  // namespace

Triple sparse_mla_forward(PB_MLA_OPERANDS, int64_t head_dim_v) {
  return call_forward(q, kv, topk_indices, softmax_scale, head_dim_v);
}

Pair sparse_mla_backward(PB_MLA_SAVED, PB_MLA_OPERANDS, const std::string& delta,
                         const std::string& staging, std::array<bool, 2> output_mask) {
  return call_backward(grad_out, out, out_remainder, lse, q, kv, topk_indices, softmax_scale, delta,
                       staging, output_mask);
}

Pair sparse_mla(PB_MLA_OPERANDS, int64_t head_dim_v, const std::string& delta,
                const std::string& staging) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla", "")
                             .typed<decltype(attend_without_grad)>();
  return op.call(q, kv, topk_indices, softmax_scale, head_dim_v, delta, staging);
}

std::string sparse_mla_path(const Tensor& q, int64_t head_dim_v, const std::string& staging) {
  return has_kernel(q, head_dim_v, staging) ? "cuda" : "plain";
}

#define PB_MLA_SCHEMA "Tensor q, Tensor kv, Tensor topk_indices, *, float softmax_scale"
#define PB_MLA_MODES "str delta=\"exact\", str staging=\"bf16\""

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("sparse_mla_forward(" PB_MLA_SCHEMA
        ", int head_dim_v) -> (Tensor out, Tensor lse, Tensor out_remainder)",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "sparse_mla_backward(Tensor grad_out, Tensor out, Tensor out_remainder, Tensor "
      "lse, " PB_MLA_SCHEMA ", " PB_MLA_MODES
      ", bool[2] output_mask=[True, True]) -> (Tensor grad_q, Tensor grad_kv)",
      {at::Tag::pt2_compliant_tag});
  m.def("sparse_mla(" PB_MLA_SCHEMA ", int head_dim_v, " PB_MLA_MODES
        ") -> (Tensor out, Tensor lse)",
        {at::Tag::pt2_compliant_tag});
  m.def("sparse_mla_path(Tensor q, int head_dim_v, str staging=\"bf16\") -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("sparse_mla", attend_without_grad);
  m.impl("sparse_mla_path", sparse_mla_path);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("sparse_mla_forward", forward_real);
  m.impl("sparse_mla_backward", backward_real);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("sparse_mla_forward", forward_real);
  m.impl("sparse_mla_backward", backward_real);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("sparse_mla_forward", forward_meta);
  m.impl("sparse_mla_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("sparse_mla", attend_with_grad);
  m.impl("sparse_mla_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("sparse_mla_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::sparse_mla_dims
