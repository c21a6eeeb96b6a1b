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

namespace patchbench::ops::fp8_storage_dispatch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;

constexpr const char* kSlug = "fp8_storage_dispatch";
constexpr const char* kNeeds = "compute capability 9.0";
constexpr double kMaxE4m3 = 448;
constexpr double kLog2e = 1.4426950408889634;
constexpr int64_t kRopeDim = kHeadDim - kHeadDimV;
constexpr int64_t kScaleBytes = 4 * kHeadDimV / kScaleBlock;
constexpr int64_t kGatheredRows = 65536;  // that the plain form holds dequantised at a time

bool has_kernel(const Tensor& tensor) {
  if (is_fallback_forced(kSlug)) return false;
#ifdef PATCHBENCH_CUDA
  if (tensor.is_cuda()) {
    const auto* device = at::cuda::getDeviceProperties(tensor.get_device());
    return device->major == 9 && device->minor == 0;
  }
#else
  static_cast<void>(tensor);
#endif
  return false;
}

std::string dtype_name(at::ScalarType type) { return c10::getDtypeNames(type).first; }

// ---- checks: on symbolic sizes, so that Meta and the real devices share them ----

bool is_block(const Tensor& kv) { return kv.scalar_type() == at::kByte; }

void check_layout(const std::string& layout) {
  TORCH_CHECK(layout == "tensor" || layout == "token" || layout == "block",
              "sparse_mla_fp8: layout must be tensor, token or block, got ", layout);
}

/// One operand with its scale: e4m3 with one scale or one a row.
void check_stored(const char* name, const Tensor& payload, const OptionalTensor& scale) {
  TORCH_CHECK(payload.scalar_type() == at::kFloat8_e4m3fn, "sparse_mla_fp8: ", name,
              " must be stored as float8_e4m3fn, got ", dtype_name(payload.scalar_type()),
              " (both operands stored, or a bfloat16 query beside a block kv)");
  TORCH_CHECK(scale, "sparse_mla_fp8: ", name, " is float8_e4m3fn and needs ", name, "_scale");
  TORCH_CHECK(scale->scalar_type() == at::kFloat && scale->device() == payload.device(),
              "sparse_mla_fp8: ", name, "_scale must be float32 on ", payload.device(), ", got ",
              dtype_name(scale->scalar_type()), " on ", scale->device());
  TORCH_CHECK(scale->sym_numel() == 1 || scale->sym_numel() * kHeadDim == payload.sym_numel(),
              "sparse_mla_fp8: ", name, "_scale must hold 1 value or one for each of ",
              payload.sym_numel() / kHeadDim, " rows, got ", scale->sym_numel());
  TORCH_CHECK(scale->is_contiguous(), "sparse_mla_fp8: ", name, "_scale must be contiguous");
}

void check_problem(const Tensor& q, const OptionalTensor& q_scale, const Tensor& kv,
                   const OptionalTensor& kv_scale, const Tensor& indices) {
  TORCH_CHECK(q.dim() == 4 && q.sym_size(3) == kHeadDim,
              "sparse_mla_fp8: q must have shape [batch, seqlen_q, num_heads, 576], got ",
              q.sym_sizes());
  TORCH_CHECK(kv.dim() == 4 && kv.sym_size(2) == 1 && kv.sym_size(0) == q.sym_size(0) &&
                  kv.sym_size(3) == (is_block(kv) ? kBlockRowBytes : kHeadDim),
              "sparse_mla_fp8: kv must have shape [", q.sym_size(0),
              ", seqlen_k, 1, 576 of float8_e4m3fn or 656 of uint8], got ", kv.sym_sizes(), " of ",
              dtype_name(kv.scalar_type()));
  TORCH_CHECK(indices.dim() == 4 && indices.sym_size(0) == q.sym_size(0) &&
                  indices.sym_size(1) == q.sym_size(1) && indices.sym_size(2) == 1,
              "sparse_mla_fp8: topk_indices must have shape [", q.sym_size(0), ", ", q.sym_size(1),
              ", 1, topk], got ", indices.sym_sizes());
  TORCH_CHECK(indices.scalar_type() == at::kInt,
              "sparse_mla_fp8: topk_indices must have dtype int32, got ",
              dtype_name(indices.scalar_type()));
  TORCH_CHECK(kv.device() == q.device() && indices.device() == q.device(),
              "sparse_mla_fp8: q, kv and topk_indices must be on one device, got ", q.device(),
              ", ", kv.device(), " and ", indices.device());
  TORCH_CHECK(q.is_contiguous() && kv.is_contiguous() && indices.is_contiguous(),
              "sparse_mla_fp8: q, kv and topk_indices must be contiguous");
  if (is_block(kv)) {
    TORCH_CHECK(!kv_scale, "sparse_mla_fp8: a block kv holds its scales; kv_scale must be None");
  } else {
    check_stored("kv", kv, kv_scale);
  }
  if (is_block(kv) && q.scalar_type() == at::kBFloat16) {
    TORCH_CHECK(!q_scale, "sparse_mla_fp8: a bfloat16 q takes no q_scale");
  } else {
    check_stored("q", q, q_scale);
  }
  constexpr int64_t kGrid = 65535;
  TORCH_CHECK(q.sym_size(0) <= kGrid && q.sym_size(2) <= kGrid * 64 &&
                  q.sym_size(1) < std::numeric_limits<int32_t>::max() &&
                  kv.sym_size(1) < std::numeric_limits<int32_t>::max(),
              "sparse_mla_fp8: batch must be at most ", kGrid, ", sequences below 2^31");
  const c10::SymInt num_ctas = q.sym_size(0) * q.sym_size(1) * ((q.sym_size(2) + 63) / 64);
  TORCH_CHECK(
      num_ctas <= std::numeric_limits<int32_t>::max(),
      "sparse_mla_fp8: q must have batch * seqlen_q * ceil(num_heads / 64) below 2^31, got ",
      num_ctas);
}

void check_backward(const Tensor& grad_out, const Tensor& out, const Tensor& lse, const Tensor& q) {
  const auto wanted = {q.sym_size(0), q.sym_size(1), q.sym_size(2), c10::SymInt(kHeadDimV)};
  for (const auto& [name, tensor] : {std::pair{"grad_out", grad_out}, std::pair{"out", out}}) {
    TORCH_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(wanted) &&
                    tensor.scalar_type() == at::kBFloat16 && tensor.device() == q.device(),
                "sparse_mla_fp8_backward: ", name, " must be bfloat16 ",
                c10::SymIntArrayRef(wanted), " on ", q.device(), ", got ",
                dtype_name(tensor.scalar_type()), " ", tensor.sym_sizes());
  }
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.sym_sizes() == q.sym_sizes().slice(0, 3) &&
                  lse.device() == q.device(),
              "sparse_mla_fp8_backward: lse must be float32 ", q.sym_sizes().slice(0, 3), " on ",
              q.device(), ", got ", dtype_name(lse.scalar_type()), " ", lse.sym_sizes(), " on ",
              lse.device());
}

/// The kernels load 16 bytes at a time. For real tensors alone: a Meta tensor lies nowhere.
void check_alignment(const char* name, const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  TORCH_CHECK(address % 16 == 0, "sparse_mla_fp8: ", name,
              " must start at a multiple of 16 bytes, got one at ", address % 16,
              " bytes behind; pass ", name, ".clone()");
}

/// Contiguous and at a multiple of 16 bytes: a gradient may be a view that starts anywhere.
Tensor in_words(const Tensor& tensor) {
  const Tensor packed = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(packed.const_data_ptr()) % 16 == 0 ? packed : packed.clone();
}

// ---- quantise and dequantise ----

Tensor to_e4m3(const Tensor& scaled) {
  // The cast alone turns what lies beyond 448 into nan.
  return scaled.clamp(-kMaxE4m3, kMaxE4m3).to(at::kFloat8_e4m3fn);
}

Tensor quantize_block(const Tensor& x) {
  auto shape = x.sizes().vec();
  shape.back() = kHeadDimV / kScaleBlock;
  shape.push_back(kScaleBlock);
  const Tensor latent = x.narrow(-1, 0, kHeadDimV).reshape(shape);
  const Tensor amax = latent.abs().amax(-1, true) / kMaxE4m3;
  const Tensor scale = amax.clamp_min(1e-4).log2().ceil().exp2();
  const Tensor bytes = to_e4m3(latent / scale).view(at::kByte).flatten(-2);
  const Tensor rope = x.narrow(-1, kHeadDimV, kRopeDim).to(at::kBFloat16).contiguous();
  return at::cat({bytes, scale.squeeze(-1).contiguous().view(at::kByte), rope.view(at::kByte)}, -1);
}

std::tuple<Tensor, OptionalTensor> quantize(const Tensor& x_any, const std::string& layout) {
  check_layout(layout);
  TORCH_CHECK(x_any.dim() >= 1 && x_any.size(-1) == kHeadDim,
              "quantize_mla: the last axis must be 576, got ", x_any.sizes());
  const Tensor x = x_any.to(at::kFloat);
  if (layout == "block") return {quantize_block(x), std::nullopt};
  const bool is_per_row = layout == "token";
  const Tensor size = x.abs();
  const Tensor amax = is_per_row       ? size.amax(-1)
                      : x.numel() == 0 ? at::zeros({1}, x.options())
                                       : size.amax().view(1);
  const Tensor scale = amax.clamp_min(std::ldexp(1.0, -14)) / kMaxE4m3;
  return {to_e4m3(x / (is_per_row ? scale.unsqueeze(-1) : scale)), scale};
}

/// float32 [..., 576] of stored rows; `scale` is one value or one a row.
Tensor dequantize(const Tensor& payload, const OptionalTensor& scale) {
  if (payload.scalar_type() == at::kBFloat16) return payload.to(at::kFloat);
  if (!is_block(payload)) {
    const Tensor values = payload.to(at::kFloat);
    if (scale->numel() == 1) return values * scale->reshape(at::IntArrayRef());
    return values * scale->view(values.sizes().slice(0, values.dim() - 1)).unsqueeze(-1);
  }
  const auto bytes = [&](int64_t first, int64_t count) {
    return payload.narrow(-1, first, count).contiguous();
  };
  Tensor latent = bytes(0, kHeadDimV).view(at::kFloat8_e4m3fn).to(at::kFloat);
  const Tensor scales = bytes(kHeadDimV, kScaleBytes).view(at::kFloat);
  latent = latent * scales.repeat_interleave(kScaleBlock, -1);
  const Tensor rope = bytes(kHeadDimV + kScaleBytes, 2 * kRopeDim).view(at::kBFloat16);
  return at::cat({latent, rope.to(at::kFloat)}, -1);
}

// ---- the plain form: dequantises the gathered rows of some queries at a time ----

/// Some queries of one batch entry: their operands in float32.
struct Gathered {
  Tensor q;              // [rows, num_heads, 576]
  Tensor k;              // [rows, topk, 576]
  Tensor logits;         // [rows, num_heads, topk], in units of log2, -inf where there is no key
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

OptionalTensor rows_of(const OptionalTensor& scale, at::IntArrayRef shape, int64_t batch) {
  if (!scale || scale->numel() == 1) return scale;
  return scale->view(shape)[batch];
}

Gathered gather(const Operands& o, int64_t batch, int64_t first, int64_t rows) {
  Gathered g;
  const int64_t seqlen_k = o.kv.size(1);
  const Tensor index = o.indices[batch].narrow(0, first, rows).squeeze(1).to(at::kLong);
  g.is_key = index.ge(0).logical_and(index.lt(seqlen_k));
  g.index = index.masked_fill(g.is_key.logical_not(), 0);
  OptionalTensor q_scale = rows_of(o.q_scale, o.q.sizes().slice(0, 3), batch);
  if (q_scale && q_scale->numel() > 1) q_scale = q_scale->narrow(0, first, rows);
  g.q = dequantize(o.q[batch].narrow(0, first, rows), q_scale);
  OptionalTensor k_scale = rows_of(o.kv_scale, o.kv.sizes().slice(0, 2), batch);
  if (k_scale && k_scale->numel() > 1) k_scale = k_scale->index_select(0, g.index.view(-1));
  // As bytes: an index into float8 has no kernel.
  const Tensor stored = o.kv[batch].squeeze(1).view(at::kByte);
  const Tensor picked = stored.index_select(0, g.index.view(-1)).view(o.kv.scalar_type());
  g.k = dequantize(picked, k_scale).view({rows, index.size(1), kHeadDim});
  g.logits = at::einsum("shd,skd->shk", {g.q, g.k}) * (o.softmax_scale * kLog2e);
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
    const Tensor top = g.logits.amax(-1, true).clamp_min(std::numeric_limits<float>::lowest());
    const Tensor p = (g.logits - top).exp2();
    const Tensor sum = p.sum(-1, true);
    const Tensor value = at::einsum("shk,skd->shd", {p, g.k.narrow(-1, 0, kHeadDimV)});
    out[b].narrow(0, first, rows).copy_(value / sum.clamp_min(std::numeric_limits<float>::min()));
    lse[b].narrow(0, first, rows).copy_(at::where(sum.gt(0), sum.log2() + top, 0.0).squeeze(-1));
  });
}

void backward_plain(const Operands& o, const Tensor& grad_out, const Tensor& out, const Tensor& lse,
                    const Tensor& grad_q, const Tensor& grad_kv) {
  grad_q.zero_();
  for_queries(o, [&](int64_t b, int64_t first, int64_t rows) {
    const Gathered g = gather(o, b, first, rows);
    const auto part = [&](const Tensor& t) { return t[b].narrow(0, first, rows).to(at::kFloat); };
    const Tensor gradient = part(grad_out);
    const Tensor delta = (gradient * part(out)).sum(-1, true);
    const Tensor p = (g.logits - part(lse).unsqueeze(-1)).exp2();
    const Tensor value = g.k.narrow(-1, 0, kHeadDimV);
    const Tensor grad_p = at::einsum("shd,skd->shk", {gradient, value});
    const Tensor ds = p * (grad_p - delta) * o.softmax_scale;
    grad_q[b].narrow(0, first, rows).copy_(at::einsum("shk,skd->shd", {ds, g.k}));
    Tensor grad_k = at::einsum("shk,shd->skd", {ds, g.q});
    grad_k.narrow(-1, 0, kHeadDimV).add_(at::einsum("shk,shd->skd", {p, gradient}));
    grad_k.masked_fill_(g.is_key.logical_not().unsqueeze(-1), 0);
    grad_kv[b].index_add_(0, g.index.view(-1), grad_k.view({-1, kHeadDim}));
  });
}

#ifdef PATCHBENCH_CUDA
SparseMla problem_of(const Operands& o) {
  const auto stride = [](const OptionalTensor& scale) {
    return scale && scale->numel() > 1 ? int64_t{1} : int64_t{0};
  };
  const auto pointer = [](const OptionalTensor& scale) {
    return scale ? scale->const_data_ptr<float>() : nullptr;
  };
  return {.q = o.q.const_data_ptr(),
          .q_scale = pointer(o.q_scale),
          .q_scale_stride = stride(o.q_scale),
          .kv = static_cast<const uint8_t*>(o.kv.const_data_ptr()),
          .kv_scale = pointer(o.kv_scale),
          .kv_scale_stride = stride(o.kv_scale),
          .indices = o.indices.const_data_ptr<int32_t>(),
          .batch = o.q.size(0),
          .seqlen_q = o.q.size(1),
          .seqlen_k = o.kv.size(1),
          .num_heads = o.q.size(2),
          .topk = o.indices.size(3),
          .softmax_scale = static_cast<float>(o.softmax_scale)};
}
#endif

// ---- the dispatcher's side ----

#define PB_MLA_OPERANDS                                             \
  const Tensor &q, const OptionalTensor &q_scale, const Tensor &kv, \
      const OptionalTensor &kv_scale, const Tensor &topk_indices, double softmax_scale

Pair forward_meta(PB_MLA_OPERANDS) {
  static_cast<void>(softmax_scale);
  check_problem(q, q_scale, kv, kv_scale, topk_indices);
  const auto rows = q.sym_sizes().slice(0, 3);
  std::vector<c10::SymInt> shape(rows.begin(), rows.end());
  const Tensor lse = at::empty_symint(shape, q.options().dtype(at::kFloat));
  shape.push_back(kHeadDimV);
  return {at::empty_symint(shape, q.options().dtype(at::kBFloat16)), lse};
}

Pair forward_real(PB_MLA_OPERANDS) {
  const Pair results = forward_meta(q, q_scale, kv, kv_scale, topk_indices, softmax_scale);
  check_alignment("q", q);
  check_alignment("kv", kv);
  const auto& [out, lse] = results;
  const c10::OptionalDeviceGuard guard(q.device());
  const Operands operands{q, q_scale, kv, kv_scale, topk_indices, softmax_scale};
#ifdef PATCHBENCH_CUDA
  if (has_kernel(kv)) {
    C10_CUDA_CHECK(launch_forward(problem_of(operands),
                                  static_cast<uint16_t*>(out.mutable_data_ptr()),
                                  lse.mutable_data_ptr<float>(), at::cuda::getCurrentCUDAStream()));
    return results;
  }
#endif
  warn_of_plain_form(kSlug, "sparse_mla_fp8_forward", q, kNeeds);
  forward_plain(operands, out, lse);
  return results;
}

Pair backward_meta(const Tensor& grad_out, const Tensor& out, const Tensor& lse, PB_MLA_OPERANDS) {
  static_cast<void>(softmax_scale);
  check_problem(q, q_scale, kv, kv_scale, topk_indices);
  check_backward(grad_out, out, lse, q);
  const auto options = q.options().dtype(at::kBFloat16);
  return {at::empty_symint(q.sym_sizes(), options),
          at::empty_symint({kv.sym_size(0), kv.sym_size(1), 1, kHeadDim}, options)};
}

Pair backward_real(const Tensor& grad_out, const Tensor& out, const Tensor& lse, PB_MLA_OPERANDS) {
  check_problem(q, q_scale, kv, kv_scale, topk_indices);
  check_backward(grad_out, out, lse, q);
  check_alignment("q", q);
  check_alignment("kv", kv);
  const c10::OptionalDeviceGuard guard(q.device());
  const Tensor grad_q = at::empty(q.sizes(), q.options().dtype(at::kBFloat16));
  const Tensor sum = at::zeros({kv.size(0), kv.size(1), kHeadDim}, q.options().dtype(at::kFloat));
  const Operands operands{q, q_scale, kv, kv_scale, topk_indices, softmax_scale};
  const Tensor gradient = in_words(grad_out), value = in_words(out), sums = lse.contiguous();
#ifdef PATCHBENCH_CUDA
  if (has_kernel(kv)) {
    at::globalContext().alertNotDeterministic("sparse_mla_fp8_backward");
    C10_CUDA_CHECK(
        launch_backward(problem_of(operands),
                        {.grad_out = static_cast<const uint16_t*>(gradient.const_data_ptr()),
                         .out = static_cast<const uint16_t*>(value.const_data_ptr()),
                         .lse = sums.const_data_ptr<float>(),
                         .grad_q = static_cast<uint16_t*>(grad_q.mutable_data_ptr()),
                         .grad_kv = sum.mutable_data_ptr<float>()},
                        at::cuda::getCurrentCUDAStream()));
    return {grad_q, sum.to(at::kBFloat16).unsqueeze(2)};
  }
#endif
  warn_of_plain_form(kSlug, "sparse_mla_fp8_backward", q, kNeeds);
  backward_plain(operands, gradient, value, sums, grad_q, sum);
  return {grad_q, sum.to(at::kBFloat16).unsqueeze(2)};
}

Pair call_forward(PB_MLA_OPERANDS) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_fp8_forward", "")
                             .typed<decltype(forward_real)>();
  return op.call(q, q_scale, kv, kv_scale, topk_indices, softmax_scale);
}

Pair call_backward(const Tensor& grad_out, const Tensor& out, const Tensor& lse, PB_MLA_OPERANDS) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_fp8_backward", "")
                             .typed<decltype(backward_real)>();
  return op.call(grad_out, out, lse, q, q_scale, kv, kv_scale, topk_indices, softmax_scale);
}

/// The operands as they are stored: the block layout leaves the query in bfloat16.
struct Stored {
  Tensor q, kv;
  OptionalTensor q_scale, kv_scale;
};
Stored store(const Tensor& query, const Tensor& kv, const std::string& layout) {
  check_layout(layout);
  Stored stored;
  std::tie(stored.kv, stored.kv_scale) = quantize(kv, layout);
  if (layout == "block") {
    stored.q = query.to(at::kBFloat16).contiguous();
  } else {
    std::tie(stored.q, stored.q_scale) = quantize(query, layout);
  }
  return stored;
}

Pair attend_without_grad(const Tensor& query, const Tensor& kv, const Tensor& topk_indices,
                         const std::string& layout, double softmax_scale) {
  const Stored s = store(query, kv, layout);
  return call_forward(s.q, s.q_scale, s.kv, s.kv_scale, topk_indices, softmax_scale);
}

class SparseMlaFp8 : public torch::autograd::Function<SparseMlaFp8> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const Tensor& query, const Tensor& kv,
                                                const Tensor& topk_indices,
                                                const std::string& layout, double softmax_scale) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Stored s = store(query, kv, layout);
    const auto [out, lse] =
        call_forward(s.q, s.q_scale, s.kv, s.kv_scale, topk_indices, softmax_scale);
    ctx->save_for_backward({out, lse, s.q, s.q_scale.value_or(Tensor()), s.kv,
                            s.kv_scale.value_or(Tensor()), topk_indices});
    ctx->saved_data["softmax_scale"] = softmax_scale;
    ctx->saved_data["query_dtype"] = static_cast<int64_t>(query.scalar_type());
    ctx->saved_data["kv_dtype"] = static_cast<int64_t>(kv.scalar_type());
    ctx->mark_non_differentiable({lse});
    return {out, lse};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    const auto dtype = [&](const char* name) {
      return static_cast<at::ScalarType>(ctx->saved_data[name].toInt());
    };
    const auto [grad_q, grad_kv] = call_backward(
        grads[0].to(at::kBFloat16), saved[0], saved[1], saved[2], optional(saved[3]), saved[4],
        optional(saved[5]), saved[6], ctx->saved_data["softmax_scale"].toDouble());
    return {grad_q.to(dtype("query_dtype")), grad_kv.to(dtype("kv_dtype")), Tensor(), Tensor(),
            Tensor()};
  }
};

Pair attend_with_grad(const Tensor& query, const Tensor& kv, const Tensor& topk_indices,
                      const std::string& layout, double softmax_scale) {
  const auto results = SparseMlaFp8::apply(query, kv, topk_indices, layout, softmax_scale);
  return {results[0], results[1]};
}

}  // namespace

Fp8Storage quantize_mla(const Tensor& x, const std::string& layout) {
  auto [payload, scale] = quantize(x, layout);
  return {payload, scale};
}

Tensor dequantize_mla(const Fp8Storage& storage) {
  return dequantize(storage.payload, storage.scale);
}

Pair sparse_mla_fp8_forward(const Fp8Storage& q, const Fp8Storage& kv, const Tensor& topk_indices,
                            double softmax_scale) {
  return call_forward(q.payload, q.scale, kv.payload, kv.scale, topk_indices, softmax_scale);
}

Pair sparse_mla_fp8_backward(const Tensor& grad_out, const Tensor& out, const Tensor& lse,
                             const Fp8Storage& q, const Fp8Storage& kv, const Tensor& topk_indices,
                             double softmax_scale) {
  return call_backward(grad_out, out, lse, q.payload, q.scale, kv.payload, kv.scale, topk_indices,
                       softmax_scale);
}

Pair sparse_mla_fp8(const Tensor& query, const Tensor& kv, const Tensor& topk_indices,
                    const std::string& layout, double softmax_scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_fp8", "")
                             .typed<decltype(attend_without_grad)>();
  return op.call(query, kv, topk_indices, layout, softmax_scale);
}

std::string sparse_mla_fp8_path(const Tensor& kv) { return has_kernel(kv) ? "cuda" : "plain"; }

#define PB_MLA_SCHEMA                                                                      \
  "Tensor q, Tensor? q_scale, Tensor kv, Tensor? kv_scale, Tensor topk_indices, *, float " \
  "softmax_scale"

TORCH_LIBRARY_FRAGMENT(patchbench, m) {
  m.def("sparse_mla_fp8_forward(" PB_MLA_SCHEMA ") -> (Tensor out, Tensor lse)",
        {at::Tag::pt2_compliant_tag});
  m.def("sparse_mla_fp8_backward(Tensor grad_out, Tensor out, Tensor lse, " PB_MLA_SCHEMA
        ") -> (Tensor grad_q, Tensor grad_kv)",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "sparse_mla_fp8(Tensor query, Tensor kv, Tensor topk_indices, *, str layout, float "
      "softmax_scale) -> (Tensor out, Tensor lse)",
      {at::Tag::pt2_compliant_tag});
  m.def("quantize_mla(Tensor x, str layout) -> (Tensor payload, Tensor? scale)");
  m.def("sparse_mla_fp8_path(Tensor kv) -> str");
}

TORCH_LIBRARY_IMPL(patchbench, CompositeExplicitAutograd, m) {
  m.impl("sparse_mla_fp8", attend_without_grad);
  m.impl("quantize_mla", quantize);
  m.impl("sparse_mla_fp8_path", sparse_mla_fp8_path);
}

TORCH_LIBRARY_IMPL(patchbench, CPU, m) {
  m.impl("sparse_mla_fp8_forward", forward_real);
  m.impl("sparse_mla_fp8_backward", backward_real);
}

TORCH_LIBRARY_IMPL(patchbench, CUDA, m) {
  m.impl("sparse_mla_fp8_forward", forward_real);
  m.impl("sparse_mla_fp8_backward", backward_real);
}

TORCH_LIBRARY_IMPL(patchbench, Meta, m) {
  m.impl("sparse_mla_fp8_forward", forward_meta);
  m.impl("sparse_mla_fp8_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(patchbench, Autograd, m) {
  m.impl("sparse_mla_fp8", attend_with_grad);
  m.impl("sparse_mla_fp8_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("sparse_mla_fp8_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace patchbench::ops::fp8_storage_dispatch
