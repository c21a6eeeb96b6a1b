// patchbench::sparse_mla on torch's stable ABI. What its functions do: op.h.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <tuple>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "kernel.cuh"
#include "problem.h"

namespace patchbench::ops::sparse_mla_dims {
namespace {

using Pair = std::tuple<Tensor, Tensor>;
using Mask = std::array<bool, 2>;  // of the gradients that are wanted
using Triple = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kSlug = "sparse_mla_dims";
constexpr const char* kNeeds =
    "bfloat16, staging bf16, and compute capability 9.x with 227 KiB of shared memory a CTA";
constexpr double kLog2e = 1.4426950408889634;
constexpr int64_t kScratchBytes = 256 << 20;  // that op.h promises
constexpr int64_t kMaxHeadDim = 576, kMaxHeadDimV = 512, kHeadDimStep = 16;

/// Of sums and of lse.
ScalarType sum_type(ScalarType type) { return type == kDouble ? type : kFloat; }

bool has_kernel(const Tensor& q, int64_t head_dim_v, const std::string& staging) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (q.is_cuda() && q.scalar_type() == kBFloat16 && staging == "bf16") {
    const Gpu gpu = gpu_of(q);
    // The instructions are sm_90a's: no later architecture has them.
    return gpu.major == 9 && is_launchable(q.size(0), q.size(1), q.size(2)) &&
           gpu.shared_bytes >= shared_bytes(q.size(3), head_dim_v);
  }
#else
  static_cast<void>(q);
  static_cast<void>(head_dim_v);
  static_cast<void>(staging);
#endif
  return false;
}

// ---- checks ----

void check_problem(const char* op, const Tensor& q, const Tensor& kv, const Tensor& indices,
                   int64_t head_dim_v) {
  check_axes(op, "q", q, 4, "[batch, seqlen_q, num_heads, head_dim_qk]");
  check_axes(op, "kv", kv, 4, "[batch, seqlen_k, 1, head_dim_qk]");
  check_axes(op, "topk_indices", indices, 4, "[batch, seqlen_q, 1, topk]");
  const int64_t batch = q.size(0), head_dim = q.size(3);
  PB_CHECK(head_dim >= kHeadDimStep && head_dim <= kMaxHeadDim && head_dim % kHeadDimStep == 0, op,
           ": head_dim_qk must be a multiple of 16 from 16 to 576, got ", head_dim);
  const int64_t most = std::min(head_dim, kMaxHeadDimV);
  PB_CHECK(head_dim_v >= kHeadDimStep && head_dim_v <= most && head_dim_v % kHeadDimStep == 0, op,
           ": head_dim_v must be a multiple of 16 from 16 to min(512, head_dim_qk) = ", most,
           ", got ", head_dim_v);
  const ScalarType type = q.scalar_type();
  PB_CHECK(type == kBFloat16 || type == kHalf || type == kFloat || type == kDouble, op,
           ": q must have dtype bfloat16, float16, float32 or float64, got ", text_of(type));
  check_tensor(op, "kv", kv, {batch, kv.size(1), 1, head_dim}, type, q);
  check_tensor(op, "topk_indices", indices, {batch, q.size(1), 1, indices.size(3)}, kInt, q);
  PB_CHECK(kv.size(1) <= std::numeric_limits<int32_t>::max(), op,
           ": seqlen_k must be below 2^31, got ", kv.size(1));
}

void check_modes(const char* op, const std::string& delta, const std::string& staging) {
  PB_CHECK(delta == "exact" || delta == "rounded", op, ": delta must be exact or rounded, got ",
           delta);
  PB_CHECK(staging == "bf16" || staging == "split", op, ": staging must be bf16 or split, got ",
           staging);
}

/// Only the exact Delta reads it.
bool keeps_remainder(ScalarType type, const std::string& delta) {
  return delta == "exact" && (type == kBFloat16 || type == kHalf);
}

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
  Tensor logits;         // [queries, num_heads, topk], in units of log2, -inf for an invalid index
  Tensor index, is_key;  // [queries, topk]
};

Gathered gather(const Operands& o, int64_t batch, int64_t first, int64_t count) {
  Gathered g;
  const auto type = sum_type(o.q.scalar_type());
  const Tensor index = o.indices[batch].narrow(0, first, count).squeeze(1).to(kLong);
  g.is_key = index.ge(0).logical_and(index.lt(o.kv.size(1)));
  const Tensor is_none = g.is_key.logical_not();
  g.index = index.masked_fill(is_none, 0);
  g.q = o.q[batch].narrow(0, first, count).to(type);
  const Tensor rows = o.kv[batch].squeeze(1).index_select(0, g.index.view({-1})).to(type);
  g.k = rows.view({count, index.size(1), rows.size(1)});
  // Key 0 replaces an invalid one. Its product with zero would still pass on an infinity.
  g.k.masked_fill_(is_none.unsqueeze(-1), 0);
  g.v = g.k.narrow(-1, 0, o.head_dim_v);
  g.logits = g.q.matmul(g.k.mT()).mul_(o.softmax_scale * kLog2e);
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
  const int64_t elements = 5 * topk * head_dim + 8 * topk * heads + 6 * heads * head_dim;
  const auto bytes = int64_t{sum_type(o.q.scalar_type()) == kDouble ? 8 : 4};
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
    // A query without a valid index has row_max -inf, and -inf - -inf is NaN.
    const Tensor row_max =
        g.logits.amax({-1}, true).maximum(double{std::numeric_limits<float>::lowest()});
    const Tensor p = g.logits.sub_(row_max).exp2_();
    const Tensor sum = p.sum({-1}, true);
    const Tensor value = p.matmul(g.v);
    value.div_(sum.maximum(double{std::numeric_limits<float>::min()}));
    const Tensor rounded = out[b].narrow(0, first, count).copy_(value);
    lse[b].narrow(0, first, count).copy_(where(sum.gt(0), sum.log2() + row_max, 0.0).squeeze(-1));
    if (remainder.dim() > 1) remainder[b].narrow(0, first, count).copy_(value.sub_(rounded));
  });
}

/// P or dS as the products take it.
Tensor staged(const Tensor& value, ScalarType type, const std::string& staging) {
  if (type != kBFloat16) return value;
  const Tensor high = value.to(type).to(value.scalar_type());
  if (staging == "bf16") return high;
  return high + (value - high).to(type).to(value.scalar_type());
}

/// sum_j P_j dP_j over the keys of a query, of which none is missing here: Delta fits this P. The
/// out of a kernel is a mean with P rounded to bfloat16, which does not. 0 without a key.
Tensor exact_delta(const Tensor& grad_p, const Tensor& p) {
  const Tensor sum = p.sum({-1}, true).maximum(double{std::numeric_limits<float>::min()});
  return (grad_p * p).sum({-1}, true).div_(sum);
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
    const Tensor p = g.logits.sub_(part(saved.lse).unsqueeze(-1)).exp2_();
    Tensor ds = gradient.matmul(g.v.mT());
    ds.sub_(delta == "exact" ? exact_delta(ds, p) : (gradient * part(saved.out)).sum({-1}, true));
    ds = staged(ds.mul_(p).mul_(o.softmax_scale), type, staging);
    if (grad_q.defined()) grad_q[b].narrow(0, first, count).copy_(ds.matmul(g.k));
    if (!grad_kv.defined()) return;
    Tensor grad_k = ds.mT().matmul(g.q);
    grad_k.narrow(-1, 0, o.head_dim_v).add_(staged(p, type, staging).mT().matmul(gradient));
    grad_k.masked_fill_(g.is_key.logical_not().unsqueeze(-1), 0);
    grad_kv[b].add_rows_(g.index.view({-1}), grad_k.view({-1, grad_k.size(-1)}));
  });
}

// ---- the kernels ----

#ifdef PATCHBENCH_CUDA
const uint16_t* bits_of(const Tensor& tensor) {
  return static_cast<const uint16_t*>(tensor.data());
}

/// The tensor, or a copy where rows do not start at multiples of 16 bytes.
Tensor with_aligned_rows(const Tensor& tensor) {
  bool is_aligned = bytes_behind_word(tensor) == 0;
  for (int64_t axis = 0; axis < 4; ++axis) {
    const int64_t step = axis == 3 ? tensor.stride(3) - 1 : tensor.stride(axis) % 8;
    is_aligned = is_aligned && (step == 0 || tensor.size(axis) == 1);
  }
  return is_aligned ? tensor : in_words(tensor);
}

void forward_cuda(const Operands& o, const Triple& results) {
  const Tensor q = with_aligned_rows(o.q), kv = with_aligned_rows(o.kv);
  const Tensor indices = o.indices.contiguous();
  const auto& [out, lse, remainder] = results;
  check_cuda("sparse_mla_forward",
             launch_forward(problem_of(q, kv, indices, o.softmax_scale, o.head_dim_v),
                            {.out = static_cast<uint16_t*>(out.mutable_data()),
                             .out_remainder = remainder.numel() > 0
                                                  ? static_cast<uint16_t*>(remainder.mutable_data())
                                                  : nullptr,
                             .lse = lse.mutable_data<float>()},
                            current_stream(o.q)));
}

void backward_cuda(const Operands& o, const Saved& saved, const std::string& delta,
                   const Pair& grads, const Tensor& grad_kv_sum) {
  const Tensor q = with_aligned_rows(o.q), kv = with_aligned_rows(o.kv);
  const Tensor indices = o.indices.contiguous(), lse = saved.lse.contiguous();
  const auto dense = [](const Tensor& tensor) { return with_aligned_rows(tensor.contiguous()); };
  const Tensor grad_out = dense(saved.grad_out), out = dense(saved.out);
  const bool is_exact = delta == "exact";
  const Tensor remainder = is_exact ? dense(saved.out_remainder) : saved.out_remainder;
  const auto& [grad_q, grad_kv] = grads;
  const Tensor choice = empty({1}, q, kInt);
  check_cuda(
      "sparse_mla_backward",
      launch_backward(
          problem_of(q, kv, indices, o.softmax_scale, o.head_dim_v),
          {.grad_out = bits_of(grad_out),
           .out = bits_of(out),
           .out_remainder = is_exact ? bits_of(remainder) : nullptr,
           .lse = lse.data<float>(),
           .grad_q = static_cast<uint16_t*>(grad_q.mutable_data()),
           .grad_kv_sum = grad_kv_sum.mutable_data<float>(),
           .grad_kv = grad_kv.defined() ? static_cast<uint16_t*>(grad_kv.mutable_data()) : nullptr,
           .choice = choice.mutable_data<int32_t>()},
          {}, current_stream(o.q)));
}
#endif

// ---- the dispatcher's side ----

#define PB_MLA_OPERANDS \
  const Tensor &q, const Tensor &kv, const Tensor &topk_indices, double softmax_scale

/// out, lse and out_remainder. `delta` and `staging` are what the backward will be called with.
Triple forward(PB_MLA_OPERANDS, int64_t head_dim_v, const std::string& delta,
               const std::string& staging) {
  const char* op = "sparse_mla";
  check_problem(op, q, kv, topk_indices, head_dim_v);
  check_modes(op, delta, staging);
  Ints shape = {q.size(0), q.size(1), q.size(2)};
  const Tensor lse = empty(shape, q, sum_type(q.scalar_type()));
  shape.push_back(head_dim_v);
  const Tensor remainder = empty(keeps_remainder(q.scalar_type(), delta) ? shape : Ints{0}, q);
  const Triple results = {empty(shape, q), lse, remainder};
  const DeviceScope device(q);
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

void check_backward(const char* op, PB_MLA_SAVED, const Tensor& q, const std::string& delta) {
  Ints shape = {q.size(0), q.size(1), q.size(2)};
  check_tensor(op, "lse", lse, shape, sum_type(q.scalar_type()), q);
  shape.push_back(out.size(3));
  check_tensor(op, "out", out, shape, q.scalar_type(), q);
  check_tensor(op, "grad_out", grad_out, shape, q.scalar_type(), q);
  if (keeps_remainder(q.scalar_type(), delta))
    check_tensor(op, "out_remainder", out_remainder, shape, q.scalar_type(), q);
}

Pair backward(PB_MLA_SAVED, PB_MLA_OPERANDS, const std::string& delta, const std::string& staging,
              Mask output_mask) {
  const char* op = "sparse_mla_backward";
  check_axes(op, "out", out, 4, "[batch, seqlen_q, num_heads, head_dim_v]");
  check_problem(op, q, kv, topk_indices, out.size(3));
  check_modes(op, delta, staging);
  check_backward(op, grad_out, out, out_remainder, lse, q, delta);
  const Pair grads = {output_mask[0] ? empty_like(q) : Tensor(),
                      output_mask[1] ? empty_like(kv) : Tensor()};
  if (!output_mask[0] && !output_mask[1]) return grads;
  const DeviceScope device(q);
  const Operands operands{q, kv, topk_indices, softmax_scale, out.size(3)};
  const Saved saved{grad_out, out, out_remainder, lse};
  const auto& [grad_q, grad_kv] = grads;
  const auto sum_of_keys = [&] {
    return zeros({kv.size(0), kv.size(1), kv.size(3)}, q, sum_type(q.scalar_type()));
  };
#ifdef PATCHBENCH_CUDA
  if (has_kernel(q, out.size(3), staging)) {
    // The kernel makes both gradients in one walk over the keys.
    backward_cuda(operands, saved, delta, {output_mask[0] ? grad_q : empty_like(q), grad_kv},
                  sum_of_keys());
    return grads;
  }
#endif
  warn_of_plain_form(kSlug, "sparse_mla_backward", q, kNeeds);
  const Tensor sum = output_mask[1] ? sum_of_keys() : Tensor();
  backward_plain(operands, saved, delta, staging, {grad_q, sum});
  if (output_mask[1]) grad_kv.copy_(sum.unsqueeze(2));
  return grads;
}

std::string path(const Tensor& q, int64_t head_dim_v, const std::string& staging) {
  return has_kernel(q, head_dim_v, staging) ? "cuda" : "plain";
}

}  // namespace

#define PB_MLA_SCHEMA "Tensor q, Tensor kv, Tensor topk_indices, *, float softmax_scale"
#define PB_MLA_MODES "str delta=\"exact\", str staging=\"bf16\""

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("sparse_mla_forward(" PB_MLA_SCHEMA ", int head_dim_v, " PB_MLA_MODES
        ") -> (Tensor out, Tensor lse, Tensor out_remainder)");
  m.def(
      "sparse_mla_backward(Tensor grad_out, Tensor out, Tensor out_remainder, Tensor "
      "lse, " PB_MLA_SCHEMA ", " PB_MLA_MODES
      ", bool[2] output_mask=[True, True]) -> (Tensor grad_q, Tensor grad_kv)");
  m.def("sparse_mla_path(Tensor q, int head_dim_v, str staging=\"bf16\") -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("sparse_mla_path", &boxed<path>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("sparse_mla_forward", &boxed<forward>);
  m.impl("sparse_mla_backward", &boxed<backward>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("sparse_mla_forward", &boxed<forward>);
  m.impl("sparse_mla_backward", &boxed<backward>);
}

}  // namespace patchbench::ops::sparse_mla_dims
