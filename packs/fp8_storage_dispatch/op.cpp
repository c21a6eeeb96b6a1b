// patchbench::sparse_mla_fp8 on torch's stable ABI. What its functions do: op.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "../kernel/checks.h"
#include "../kernel/fallback.h"
#include "../kernel/launch.h"
#include "../kernel/library.h"
#include "../sparse_mla_dims/problem.h"
#include "kernel.cuh"

namespace patchbench::ops::fp8_storage_dispatch {
namespace {

using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;

constexpr const char* kSlug = "fp8_storage_dispatch";
constexpr const char* kNeeds = "compute capability 9.0";
constexpr double kMaxE4m3 = 448;
constexpr double kLog2e = 1.4426950408889634;
constexpr int64_t kRopeDim = kHeadDim - kHeadDimV;
constexpr int64_t kScaleBytes = 4 * kHeadDimV / kScaleBlock;
constexpr int64_t kGatheredRows = 65536;  // that the plain form holds dequantised at a time
constexpr int64_t kManyUses = 8;          // of a key of 656 bytes, that pay for its conversion

bool has_kernel(const Tensor& tensor) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (tensor.is_cuda()) {
    const Gpu gpu = gpu_of(tensor);
    return gpu.major == 9 && gpu.minor == 0;
  }
#else
  static_cast<void>(tensor);
#endif
  return false;
}

// ---- checks ----

bool is_block(const Tensor& kv) { return kv.scalar_type() == kByte; }

void check_layout(const std::string& layout) {
  PB_CHECK(layout == "tensor" || layout == "token" || layout == "block",
           "sparse_mla_fp8: layout must be tensor, token or block, got ", layout);
}

/// One operand with its scale: e4m3 with one scale or one a row.
void check_stored(const char* name, const Tensor& payload, const OptionalTensor& scale) {
  PB_CHECK(payload.scalar_type() == kFloat8, "sparse_mla_fp8: ", name,
           " must be stored as float8_e4m3fn, got ", text_of(payload.scalar_type()),
           " (both operands stored, or a bfloat16 query beside a block kv)");
  PB_CHECK(scale, "sparse_mla_fp8: ", name, " is float8_e4m3fn and needs ", name, "_scale");
  PB_CHECK(scale->scalar_type() == kFloat && is_on_one_device(*scale, payload),
           "sparse_mla_fp8: ", name, "_scale must be float32 on ", device_of(payload), ", got ",
           text_of(scale->scalar_type()), " on ", device_of(*scale));
  PB_CHECK(scale->numel() == 1 || scale->numel() * kHeadDim == payload.numel(),
           "sparse_mla_fp8: ", name, "_scale must hold 1 value or one for each of ",
           payload.numel() / kHeadDim, " rows, got ", scale->numel());
  PB_CHECK(scale->is_contiguous(), "sparse_mla_fp8: ", name, "_scale must be contiguous");
}

void check_problem(const Tensor& q, const OptionalTensor& q_scale, const Tensor& kv,
                   const OptionalTensor& kv_scale, const Tensor& indices) {
  PB_CHECK(q.dim() == 4 && q.size(3) == kHeadDim,
           "sparse_mla_fp8: q must have shape [batch, seqlen_q, num_heads, 576], got ",
           text_of(q.shape()));
  PB_CHECK(kv.dim() == 4 && kv.size(2) == 1 && kv.size(0) == q.size(0) &&
               kv.size(3) == (is_block(kv) ? kBlockRowBytes : kHeadDim),
           "sparse_mla_fp8: kv must have shape [", q.size(0),
           ", seqlen_k, 1, 576 of float8_e4m3fn or 656 of uint8], got ", text_of(kv.shape()),
           " of ", text_of(kv.scalar_type()));
  PB_CHECK(indices.dim() == 4 && indices.size(0) == q.size(0) && indices.size(1) == q.size(1) &&
               indices.size(2) == 1,
           "sparse_mla_fp8: topk_indices must have shape [", q.size(0), ", ", q.size(1),
           ", 1, topk], got ", text_of(indices.shape()));
  PB_CHECK(indices.scalar_type() == kInt,
           "sparse_mla_fp8: topk_indices must have dtype int32, got ",
           text_of(indices.scalar_type()));
  PB_CHECK(is_on_one_device(kv, q) && is_on_one_device(indices, q),
           "sparse_mla_fp8: q, kv and topk_indices must be on one device, got ", device_of(q), ", ",
           device_of(kv), " and ", device_of(indices));
  PB_CHECK(q.is_contiguous() && kv.is_contiguous() && indices.is_contiguous(),
           "sparse_mla_fp8: q, kv and topk_indices must be contiguous");
  if (is_block(kv)) {
    PB_CHECK(!kv_scale, "sparse_mla_fp8: a block kv holds its scales; kv_scale must be None");
  } else {
    check_stored("kv", kv, kv_scale);
  }
  if (is_block(kv) && q.scalar_type() == kBFloat16) {
    PB_CHECK(!q_scale, "sparse_mla_fp8: a bfloat16 q takes no q_scale");
  } else {
    check_stored("q", q, q_scale);
  }
  constexpr int64_t kGrid = 65535;
  PB_CHECK(q.size(0) <= kGrid && q.size(2) <= kGrid * 64 &&
               q.size(1) < std::numeric_limits<int32_t>::max() &&
               kv.size(1) < std::numeric_limits<int32_t>::max(),
           "sparse_mla_fp8: batch must be at most ", kGrid, ", sequences below 2^31");
  const int64_t num_ctas = q.size(0) * q.size(1) * ((q.size(2) + 63) / 64);
  PB_CHECK(num_ctas <= std::numeric_limits<int32_t>::max(),
           "sparse_mla_fp8: q must have batch * seqlen_q * ceil(num_heads / 64) below 2^31, got ",
           num_ctas);
}

void check_backward(const Tensor& grad_out, const Tensor& out, const Tensor& lse, const Tensor& q) {
  const Ints rows = {q.size(0), q.size(1), q.size(2)};
  const Ints wanted = {q.size(0), q.size(1), q.size(2), kHeadDimV};
  const auto is_wanted = [&](const Tensor& tensor) {
    return tensor.shape() == wanted && tensor.scalar_type() == kBFloat16 &&
           is_on_one_device(tensor, q);
  };
  const auto text = [&](const Tensor& tensor) {
    return join(text_of(tensor.scalar_type()), " ", text_of(tensor.shape()));
  };
  PB_CHECK(is_wanted(grad_out), "sparse_mla_fp8_backward: grad_out must be bfloat16 ",
           text_of(wanted), " on ", device_of(q), ", got ", text(grad_out));
  PB_CHECK(is_wanted(out), "sparse_mla_fp8_backward: out must be bfloat16 ", text_of(wanted),
           " on ", device_of(q), ", got ", text(out));
  PB_CHECK(lse.scalar_type() == kFloat && lse.shape() == rows && is_on_one_device(lse, q),
           "sparse_mla_fp8_backward: lse must be float32 ", text_of(rows), " on ", device_of(q),
           ", got ", text(lse), " on ", device_of(lse));
}

// ---- quantise and dequantise ----

Tensor to_e4m3(const Tensor& scaled) {
  // The cast alone turns what lies beyond 448 into nan.
  return scaled.clamp(-kMaxE4m3, kMaxE4m3).to(kFloat8);
}

Tensor quantize_block(const Tensor& x) {
  Ints shape = x.shape();
  shape.back() = kHeadDimV / kScaleBlock;
  shape.push_back(kScaleBlock);
  const Tensor latent = x.narrow(-1, 0, kHeadDimV).reshape(shape);
  const Tensor amax = latent.abs().amax({-1}, true) / kMaxE4m3;
  const Tensor scale = amax.maximum(1e-4).log2().ceil().exp2();
  const Tensor bytes = to_e4m3(latent / scale).view(kByte).flatten(-2);
  const Tensor rope = x.narrow(-1, kHeadDimV, kRopeDim).to(kBFloat16).contiguous();
  return cat({bytes, scale.squeeze(-1).contiguous().view(kByte), rope.view(kByte)}, -1);
}

std::tuple<Tensor, OptionalTensor> quantize(const Tensor& x_any, const std::string& layout) {
  check_layout(layout);
  PB_CHECK(x_any.dim() >= 1 && x_any.size(-1) == kHeadDim,
           "quantize_mla: the last axis must be 576, got ", text_of(x_any.shape()));
  const Tensor x = x_any.to(kFloat);
  if (layout == "block") return {quantize_block(x), std::nullopt};
  const bool is_per_row = layout == "token";
  const Tensor size = x.abs();
  const Tensor amax = is_per_row       ? size.amax({-1})
                      : x.numel() == 0 ? zeros({1}, x)
                                       : size.amax({}).view({1});
  const Tensor scale = amax.maximum(std::ldexp(1.0, -14)) / kMaxE4m3;
  return {to_e4m3(x / (is_per_row ? scale.unsqueeze(-1) : scale)), scale};
}

/// The axes before the last one.
Ints rows_of(const Tensor& values) {
  Ints rows = values.shape();
  rows.pop_back();
  return rows;
}

/// float32 [..., 576] of stored rows; `scale` is one value or one a row.
Tensor dequantize(const Tensor& payload, const OptionalTensor& scale) {
  if (payload.scalar_type() == kBFloat16) return payload.to(kFloat);
  if (!is_block(payload)) {
    const Tensor values = payload.to(kFloat);
    if (scale->numel() == 1) return values * scale->reshape({});
    return values * scale->view(rows_of(values)).unsqueeze(-1);
  }
  const auto bytes = [&](int64_t first, int64_t count) {
    return payload.narrow(-1, first, count).contiguous();
  };
  Tensor latent = bytes(0, kHeadDimV).view(kFloat8).to(kFloat);
  const Tensor scales = bytes(kHeadDimV, kScaleBytes).view(kFloat);
  latent = latent * scales.repeat_interleave(kScaleBlock, -1);
  const Tensor rope = bytes(kHeadDimV + kScaleBytes, 2 * kRopeDim).view(kBFloat16);
  return cat({latent, rope.to(kFloat)}, -1);
}

// ---- the plain form: dequantises the gathered rows of some queries at a time ----

/// Some queries of one batch entry: their operands in float32.
struct Gathered {
  Tensor q;              // [rows, num_heads, 576]
  Tensor k;              // [rows, topk, 576]
  Tensor logits;         // [rows, num_heads, topk], in units of log2, -inf for an invalid index
  Tensor index, is_key;  // [rows, topk]
};

struct Operands {
  const Tensor& q;
  const OptionalTensor& q_scale;
  const Tensor& kv;
  const OptionalTensor& kv_scale;
  const Tensor& indices;
  double softmax_scale;
};

OptionalTensor scales_of(const OptionalTensor& scale, const Ints& shape, int64_t batch) {
  if (!scale || scale->numel() == 1) return scale;
  return scale->view(shape)[batch];
}

Gathered gather(const Operands& o, int64_t batch, int64_t first, int64_t rows) {
  Gathered g;
  const int64_t seqlen_k = o.kv.size(1);
  const Tensor index = o.indices[batch].narrow(0, first, rows).squeeze(1).to(kLong);
  g.is_key = index.ge(0).logical_and(index.lt(seqlen_k));
  g.index = index.masked_fill(g.is_key.logical_not(), 0);
  OptionalTensor q_scale = scales_of(o.q_scale, rows_of(o.q), batch);
  if (q_scale && q_scale->numel() > 1) q_scale = q_scale->narrow(0, first, rows);
  g.q = dequantize(o.q[batch].narrow(0, first, rows), q_scale);
  OptionalTensor k_scale = scales_of(o.kv_scale, {o.kv.size(0), o.kv.size(1)}, batch);
  if (k_scale && k_scale->numel() > 1) k_scale = k_scale->index_select(0, g.index.view({-1}));
  // As bytes: an index into float8 has no kernel.
  const Tensor stored = o.kv[batch].squeeze(1).view(kByte);
  const Tensor picked = stored.index_select(0, g.index.view({-1})).view(o.kv.scalar_type());
  g.k = dequantize(picked, k_scale).view({rows, index.size(1), kHeadDim});
  g.logits = g.q.matmul(g.k.mT()) * (o.softmax_scale * kLog2e);
  g.logits.masked_fill_(g.is_key.logical_not().unsqueeze(1),
                        -std::numeric_limits<double>::infinity());
  return g;
}

/// Calls `body` for each (batch entry, first query, number of queries); nothing where there is no
/// key at all.
template <typename Body>
void for_queries(const Operands& o, const Body& body) {
  if (o.kv.size(1) == 0 || o.indices.size(3) == 0) return;
  const int64_t step = std::max<int64_t>(1, kGatheredRows / o.indices.size(3));
  for (int64_t b = 0; b < o.q.size(0); ++b) {
    for (int64_t first = 0; first < o.q.size(1); first += step)
      body(b, first, std::min(step, o.q.size(1) - first));
  }
}

void forward_plain(const Operands& o, const Tensor& out, const Tensor& lse) {
  out.zero_();
  lse.zero_();
  for_queries(o, [&](int64_t b, int64_t first, int64_t rows) {
    const Gathered g = gather(o, b, first, rows);
    const Tensor row_max =
        g.logits.amax({-1}, true).maximum(double{std::numeric_limits<float>::lowest()});
    const Tensor p = (g.logits - row_max).exp2();
    const Tensor sum = p.sum({-1}, true);
    const Tensor value = p.matmul(g.k.narrow(-1, 0, kHeadDimV));
    out[b]
        .narrow(0, first, rows)
        .copy_(value / sum.maximum(double{std::numeric_limits<float>::min()}));
    lse[b].narrow(0, first, rows).copy_(where(sum.gt(0), sum.log2() + row_max, 0.0).squeeze(-1));
  });
}

void backward_plain(const Operands& o, const Tensor& grad_out, const Tensor& out, const Tensor& lse,
                    const Tensor& grad_q, const Tensor& grad_kv) {
  grad_q.zero_();
  for_queries(o, [&](int64_t b, int64_t first, int64_t rows) {
    const Gathered g = gather(o, b, first, rows);
    const auto part = [&](const Tensor& t) { return t[b].narrow(0, first, rows).to(kFloat); };
    const Tensor gradient = part(grad_out);
    const Tensor delta = (gradient * part(out)).sum({-1}, true);
    const Tensor p = (g.logits - part(lse).unsqueeze(-1)).exp2();
    const Tensor value = g.k.narrow(-1, 0, kHeadDimV);
    const Tensor grad_p = gradient.matmul(value.mT());
    const Tensor ds = p * (grad_p - delta) * o.softmax_scale;
    grad_q[b].narrow(0, first, rows).copy_(ds.matmul(g.k));
    Tensor grad_k = ds.mT().matmul(g.q);
    grad_k.narrow(-1, 0, kHeadDimV).add_(p.mT().matmul(gradient));
    grad_k.masked_fill_(g.is_key.logical_not().unsqueeze(-1), 0);
    grad_kv[b].add_rows_(g.index.view({-1}), grad_k.view({-1, kHeadDim}));
  });
}

#ifdef PATCHBENCH_CUDA
SparseMla problem_of(const Operands& o) {
  const auto stride = [](const OptionalTensor& scale) {
    return scale && scale->numel() > 1 ? int64_t{1} : int64_t{0};
  };
  const auto pointer = [](const OptionalTensor& scale) {
    return scale ? scale->data<float>() : nullptr;
  };
  return {.q = o.q.data(),
          .q_scale = pointer(o.q_scale),
          .q_scale_stride = stride(o.q_scale),
          .kv = static_cast<const uint8_t*>(o.kv.data()),
          .kv_scale = pointer(o.kv_scale),
          .kv_scale_stride = stride(o.kv_scale),
          .indices = o.indices.data<int32_t>(),
          .batch = o.q.size(0),
          .seqlen_q = o.q.size(1),
          .seqlen_k = o.kv.size(1),
          .num_heads = o.q.size(2),
          .topk = o.indices.size(3),
          .softmax_scale = static_cast<float>(o.softmax_scale)};
}

/// Whether the forward takes keys of 656 bytes from memory of their own, for the kernels of
/// sparse_mla, which take half of the time of those that convert a key each time that a query names
/// it.
bool widens_in_forward(const Operands& o) {
  return is_block(o.kv) && o.kv.size(1) > 0 &&
         o.q.size(1) * o.indices.size(3) >= kManyUses * o.kv.size(1);
}

/// Writes rows of e4m3, or of 656 bytes, to bfloat16 [..., 576].
void widen(const Tensor& stored, const Tensor& to) {
  check_cuda("sparse_mla_fp8",
             launch_widen(static_cast<const uint8_t*>(stored.data()), to.numel() / kHeadDim,
                          is_block(stored), to.mutable_data<uint16_t>(), current_stream(to)));
}

/// bfloat16 [batch, seqlen_k, 576]: without kv_scale where there is one.
Tensor widened_keys(const Operands& o) {
  const Tensor keys = empty({o.kv.size(0), o.kv.size(1), kHeadDim}, o.q, kBFloat16);
  widen(o.kv, keys);
  return keys;
}

sparse_mla_dims::SparseMla wide_problem_of(const Operands& o, const Tensor& q, const Tensor& keys) {
  return sparse_mla_dims::problem_of(q, keys, o.indices, o.softmax_scale, kHeadDimV);
}

void forward_cuda(const Operands& o, const Tensor& out, const Tensor& lse) {
  auto* const values = out.mutable_data<uint16_t>();
  auto* const sums = lse.mutable_data<float>();
  const auto stream = current_stream(o.q);
  const SparseMla stored = problem_of(o);
  if (!widens_in_forward(o)) {
    check_cuda("sparse_mla_fp8_forward", launch_forward(stored, values, sums, stream));
    return;
  }
  const Tensor keys = widened_keys(o);
  const auto problem = wide_problem_of(o, o.q, keys);
  const sparse_mla_dims::SparseMlaResults results{.out = values, .lse = sums};
  check_cuda("sparse_mla_fp8_forward",
             o.q_scale ? launch_stored_query_forward(problem, results, stored.q_scale,
                                                     stored.q_scale_stride, stream)
                       : sparse_mla_dims::launch_forward(problem, results, stream));
}

/// Both gradients. A stored query is converted in the place of grad_q: the kernel reads the query
/// of some heads before it writes their gradient.
Pair backward_cuda(const Operands& o, const Tensor& grad_out, const Tensor& out,
                   const Tensor& lse) {
  const Tensor grad_q = empty(o.q.shape(), o.q, kBFloat16);
  const Ints keys_shape = {o.kv.size(0), o.kv.size(1), 1, kHeadDim};
  const Tensor sum = zeros(keys_shape, o.q, kFloat), grad_kv = empty(keys_shape, o.q, kBFloat16);
  const Tensor keys = widened_keys(o), choice = empty({1}, o.q, kInt);
  if (o.q_scale) widen(o.q, grad_q);
  const SparseMla stored = problem_of(o);
  check_cuda("sparse_mla_fp8_backward",
             sparse_mla_dims::launch_backward(
                 wide_problem_of(o, o.q_scale ? grad_q : o.q, keys),
                 {.grad_out = grad_out.data<uint16_t>(),
                  .out = out.data<uint16_t>(),
                  .lse = lse.data<float>(),
                  .grad_q = grad_q.mutable_data<uint16_t>(),
                  .grad_kv_sum = sum.mutable_data<float>(),
                  .grad_kv = grad_kv.mutable_data<uint16_t>(),
                  .choice = choice.mutable_data<int32_t>()},
                 {stored.q_scale, stored.q_scale_stride, stored.kv_scale, stored.kv_scale_stride},
                 current_stream(o.q)));
  return {grad_q, grad_kv};
}
#endif

// ---- the dispatcher's side ----

#define PB_MLA_OPERANDS                                             \
  const Tensor &q, const OptionalTensor &q_scale, const Tensor &kv, \
      const OptionalTensor &kv_scale, const Tensor &topk_indices, double softmax_scale

Pair forward(PB_MLA_OPERANDS) {
  check_problem(q, q_scale, kv, kv_scale, topk_indices);
  check_alignment("sparse_mla_fp8", "q", q);
  check_alignment("sparse_mla_fp8", "kv", kv);
  const Ints rows = rows_of(q);
  const Tensor out = empty({rows[0], rows[1], rows[2], kHeadDimV}, q, kBFloat16);
  const Tensor lse = empty(rows, q, kFloat);
  const DeviceScope device(q);
  const Operands operands{q, q_scale, kv, kv_scale, topk_indices, softmax_scale};
#ifdef PATCHBENCH_CUDA
  if (has_kernel(kv)) {
    forward_cuda(operands, out, lse);
    return {out, lse};
  }
#endif
  warn_of_plain_form(kSlug, "sparse_mla_fp8_forward", q, kNeeds);
  forward_plain(operands, out, lse);
  return {out, lse};
}

Pair backward(const Tensor& grad_out, const Tensor& out, const Tensor& lse, PB_MLA_OPERANDS) {
  check_problem(q, q_scale, kv, kv_scale, topk_indices);
  check_backward(grad_out, out, lse, q);
  check_alignment("sparse_mla_fp8", "q", q);
  check_alignment("sparse_mla_fp8", "kv", kv);
  const DeviceScope device(q);
  const Operands operands{q, q_scale, kv, kv_scale, topk_indices, softmax_scale};
  const Tensor gradient = in_words(grad_out), value = in_words(out), sums = lse.contiguous();
#ifdef PATCHBENCH_CUDA
  if (has_kernel(kv)) return backward_cuda(operands, gradient, value, sums);
#endif
  warn_of_plain_form(kSlug, "sparse_mla_fp8_backward", q, kNeeds);
  const Tensor grad_q = empty(q.shape(), q, kBFloat16);
  const Tensor sum = zeros({kv.size(0), kv.size(1), kHeadDim}, q, kFloat);
  backward_plain(operands, gradient, value, sums, grad_q, sum);
  return {grad_q, sum.to(kBFloat16).unsqueeze(2)};
}

using Attended = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

/// out and lse of dense operands, and how they were stored: q, q_scale, kv, kv_scale, [0] where
/// there is none, e4m3 as bytes. q is [0] too where the query itself is what is stored.
Attended attend(const Tensor& query, const Tensor& kv, const Tensor& topk_indices,
                const std::string& layout, double softmax_scale) {
  const auto [kv_stored, kv_scale] = quantize(kv, layout);
  const bool is_dense = layout == "block";
  const bool is_kept = is_dense && query.scalar_type() == kBFloat16 && query.is_contiguous();
  const auto [q_stored, q_scale] =
      is_dense ? std::tuple(query.to(kBFloat16).contiguous(), OptionalTensor())
               : quantize(query, layout);
  const auto [out, lse] =
      forward(q_stored, q_scale, kv_stored, kv_scale, topk_indices, softmax_scale);
  return {out,
          lse,
          is_kept    ? empty({0}, query)
          : is_dense ? q_stored
                     : q_stored.view(kByte),
          q_scale.value_or(empty({0}, query, kFloat)),
          kv_stored.view(kByte),
          kv_scale.value_or(empty({0}, query, kFloat))};
}

std::string path(const Tensor& kv) { return has_kernel(kv) ? "cuda" : "plain"; }

}  // namespace

#define PB_MLA_SCHEMA                                                                      \
  "Tensor q, Tensor? q_scale, Tensor kv, Tensor? kv_scale, Tensor topk_indices, *, float " \
  "softmax_scale"

STABLE_TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("sparse_mla_fp8_forward(" PB_MLA_SCHEMA ") -> (Tensor out, Tensor lse)");
  m.def("sparse_mla_fp8_backward(Tensor grad_out, Tensor out, Tensor lse, " PB_MLA_SCHEMA
        ") -> (Tensor grad_q, Tensor grad_kv)");
  m.def(
      "sparse_mla_fp8(Tensor query, Tensor kv, Tensor topk_indices, *, str layout, float "
      "softmax_scale) -> (Tensor out, Tensor lse, Tensor q, Tensor q_scale, Tensor kv_stored, "
      "Tensor kv_scale)");
  m.def("quantize_mla(Tensor x, str layout) -> (Tensor payload, Tensor? scale)");
  m.def("dequantize_mla(Tensor payload, Tensor? scale=None) -> Tensor");
  m.def("sparse_mla_fp8_path(Tensor kv) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("quantize_mla", &boxed<quantize>);
  m.impl("dequantize_mla", &boxed<dequantize>);
  m.impl("sparse_mla_fp8_path", &boxed<path>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("sparse_mla_fp8", &boxed<attend>);
  m.impl("sparse_mla_fp8_forward", &boxed<forward>);
  m.impl("sparse_mla_fp8_backward", &boxed<backward>);
}

STABLE_TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("sparse_mla_fp8", &boxed<attend>);
  m.impl("sparse_mla_fp8_forward", &boxed<forward>);
  m.impl("sparse_mla_fp8_backward", &boxed<backward>);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
