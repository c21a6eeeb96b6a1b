// Pack sparse_mla_dims: which path sparse attention takes at a shape, what it computes, says and
// holds there, and which of the real kernels lower.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "harness/attention.h"
#include "harness/axes.h"
#include "harness/program.h"
#include "sparse_mla_dims/op.h"

namespace patchbench::sparse_mla_dims {
namespace {

namespace ops = patchbench::ops::sparse_mla_dims;
using at::Tensor;
using at::indexing::Slice;
using harness::choice;
using harness::Draw;
using harness::extent;
using harness::flag;
using harness::Judgement;
using harness::refuse;
using harness::Tensors;

constexpr int64_t kNativeDim = 576, kNativeDimV = 512;
/// The default of no width here, so that a scale taken from a width shows.
constexpr double kSoftmaxScale = 0.05;
constexpr int64_t kRowsAtOnce = 256;

const std::vector<std::string> kShapeAxes = {"batch",       "seqlen_q",   "seqlen_k", "num_heads",
                                             "head_dim_qk", "head_dim_v", "topk"};
/// What a site has besides the shape.
const std::map<std::string, std::vector<std::string>> kSites = {
    {"admission", {"is_computable"}},
    {"attention", {"has_duplicates"}},
    {"dispatch", {"is_computable", "has_duplicates"}},
    {"fits", {"peak_bytes_max"}},
    {"interface", {}},
    {"memory", {"dense_units", "dense_growth"}},
    {"lowering", {"kernel"}},
    {"shape", {"is_computable", "has_duplicates"}}};

std::string site_of(const Case& item) {
  std::vector<std::string> sites;
  for (const auto& [site, axes] : kSites) sites.push_back(site);
  return choice(item, "site", sites);
}
bool is_backward(const Case& item) {
  return choice(item, "kernel", {"forward", "backward"}) == "backward";
}

/// Whether the wrapper of the backward is called after that of the forward.
bool has_backward(const Case& item) {
  return item.axes.contains("has_backward") && flag(item, "has_backward");
}

bool has_duplicates(const Case& item) {
  return item.axes.contains("has_duplicates") && flag(item, "has_duplicates");
}

/// What the indices name; "" is the usual.
std::string pattern_of(const Case& item) {
  return item.axes.contains("pattern")
             ? choice(item, "pattern", {"all_negative", "beyond", "full", "one_key"})
             : "";
}

/// The functions of the release around its kernels, and their builders.
constexpr std::array kWrappers = {"sparse_mla_fwd_interface", "sparse_mla_fwd", "sparse_mla_bwd",
                                  "_sparse_mla_delta_batched", "bwd"};

// ---- inputs ----

/// Values that bf16 holds, so that a copy into it changes nothing.
Tensor normal(const Case& item, const char* name, const std::vector<int64_t>& shape,
              uint64_t seed) {
  return Draw(seed, item.name + "/" + name).normal(shape).to(at::kBFloat16).to(at::kFloat);
}

/// int32 [batch, seqlen_q, topk], a tenth of it -1 and the first of several rows all -1. The dense
/// path counts a repeated index once and the kernels twice: there are repeats only where a case
/// says so. By the axis `pattern`: "full": no -1; "beyond": what is -1 is any other index that
/// names no key; "one_key": every third row names one key in all its slots; "all_negative": no row
/// names a key.
Tensor topk_indices(const Case& item, int64_t num_keys, uint64_t seed) {
  const int64_t batch = extent(item, "batch"), rows = extent(item, "seqlen_q"),
                topk = extent(item, "topk");
  const std::string pattern = pattern_of(item);
  const Draw draw(seed, item.name + "/topk_indices");
  const Tensor drawn =
      has_duplicates(item)
          ? draw.integers({batch, rows, topk}, 0, num_keys)
          : draw.uniform({batch, rows, num_keys}, 0, 1).argsort(int64_t{-1}).narrow(-1, 0, topk);
  const Tensor indices = drawn.to(at::kInt).contiguous();
  if (pattern == "full") return indices;
  if (pattern == "all_negative") return indices.fill_(-1);
  if (pattern == "one_key") {
    const Tensor third = indices.slice(1, 2, c10::nullopt, 3);
    third.copy_(third.narrow(-1, 0, 1).clone().expand_as(third));
  }
  Tensor closed = Draw(seed, item.name + "/closed").mask({batch, rows, topk}, 0.1);
  if (batch * rows > 1) closed[0][0].fill_(true);
  if (pattern != "beyond") return indices.masked_fill(closed, -1);
  const Tensor others = torch::tensor(
      {-1, -2, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
       static_cast<int32_t>(num_keys), static_cast<int32_t>(num_keys) + 1},
      at::kInt);
  const Tensor which = Draw(seed, item.name + "/beyond").integers(indices.sizes().vec(), 0, 6);
  return at::where(closed, others.index({which}), indices);
}

// ---- the right values ----

/// What is rounded to bf16 besides the output and the gradients: nothing; with the fused kernels P
/// before its division by the sum, and dS; on the dense path P after it, dP = <grad_out, v_j>, the
/// part of grad_kv from V of each head, the sum of these, and the part from K, before the two are
/// added.
enum class Rounding { kNone, kAsFused, kAsDense };

/// Sparse attention over the keys that the indices name, a repeated index counted as often
/// as it occurs, and its gradients. With z_j = scale <q, k_j>, P = softmax(z) and V the first
/// head_dim_v columns of K:
///   out = sum_j P_j v_j               dS_j = scale P_j (<grad_out, v_j> - <grad_out, out>)
///   grad_query = sum_j dS_j k_j       grad_kv[t_j] += dS_j q, its first columns += P_j grad_out
///   lse = log2 sum_j exp(z_j)
/// A query without a key gives 0 and has no gradient. query [seqlen_q, batch, num_heads, d], kv
/// [seqlen_k, batch, 1, d], in `type`, which the sums run in.
Tensors attend(const Tensors& inputs, at::ScalarType type, Rounding rounding) {
  const auto rounded_if = [&](bool is_rounded, const Tensor& t) {
    return is_rounded ? t.to(at::kBFloat16).to(type) : t;
  };
  const bool is_fused = rounding == Rounding::kAsFused, is_dense = rounding == Rounding::kAsDense;
  const auto rounded = [&](const Tensor& t) { return rounded_if(is_fused || is_dense, t); };
  const Tensor query = inputs.at("query").to(type), kv = inputs.at("kv").to(type),
               grad_out = inputs.at("grad_out").to(type), indices = inputs.at("topk_indices");
  const double scale = inputs.at("softmax_scale").item<double>();
  const int64_t width = grad_out.size(-1), num_parts = is_dense ? query.size(2) : 1;
  Tensor out = torch::zeros_like(grad_out), grad_query = torch::zeros_like(query),
         grad_k = torch::zeros_like(kv),
         grad_v = kv.new_zeros({num_parts, kv.size(0), kv.size(1), 1, width}),
         lse = torch::zeros_like(query.select(-1, 0));
  for (int64_t b = 0; b < query.size(1); ++b) {
    for (int64_t first = 0; first < query.size(0); first += kRowsAtOnce) {
      const Slice rows(first, std::min(first + kRowsAtOnce, query.size(0)));
      const Tensor index = indices.index({b, rows}).to(at::kLong);
      const Tensor is_key = index.ge(0).logical_and(index.lt(kv.size(0)));
      const Tensor closed = is_key.logical_not().unsqueeze(1);
      const Tensor q = query.index({rows, b}), d_out = grad_out.index({rows, b});
      const Tensor k = at::embedding(kv.select(1, b).squeeze(1), index.clamp(0, kv.size(0) - 1));
      const Tensor v = k.narrow(-1, 0, width);
      const Tensor z = at::einsum("shd,skd->shk", {q, k}).mul(scale).masked_fill(closed, -1e30);
      const Tensor top = z.amax(-1, true), weight = (z - top).exp().masked_fill(closed, 0);
      const Tensor total = weight.sum(-1, true), has_key = total.gt(0);
      const Tensor sum = at::where(has_key, total, 1.0);
      const Tensor p = weight / sum, used = rounded_if(is_dense, p);
      const Tensor o = rounded(is_dense ? at::einsum("shk,skd->shd", {used, v})
                                        : at::einsum("shk,skd->shd", {rounded(weight), v}) / sum);
      const Tensor dp = rounded_if(is_dense, at::einsum("shd,skd->shk", {d_out, v}));
      const Tensor delta = is_dense ? (p * dp).sum(-1, true) : (o * d_out).sum(-1, true);
      const Tensor ds = rounded_if(is_fused, p * (dp - delta) * scale);
      const auto add = [&](const Tensor& to, const Tensor& all) {
        to.select(1, b).squeeze(1).index_add_(0, index.masked_select(is_key), all.index({is_key}));
      };
      add(grad_k, at::einsum("shk,shd->skd", {ds, q}));
      const auto ps = rounded(p).chunk(num_parts, 1), d_outs = d_out.chunk(num_parts, 1);
      for (size_t i = 0; i < ps.size(); ++i)
        add(grad_v[static_cast<int64_t>(i)], at::einsum("shk,shd->skd", {ps[i], d_outs[i]}));
      out.index_put_({rows, b}, o);
      const Tensor log_sum = at::where(has_key, (sum.log() + top) / std::log(2.0), 0.0);
      lse.index_put_({rows, b}, log_sum.squeeze(-1));
      grad_query.index_put_({rows, b}, rounded(at::einsum("shk,skd->shd", {ds, k})));
    }
  }
  Tensor grad_kv = rounded_if(is_dense, grad_k);
  grad_kv.narrow(-1, 0, width) += rounded_if(is_dense, rounded_if(is_dense, grad_v).sum(0));
  return {{"out", out}, {"grad_query", grad_query}, {"grad_kv", rounded(grad_kv)}, {"lse", lse}};
}

/// Bytes of one score tensor of the dense path, [batch, num_heads, seqlen_q, seqlen_k] in fp32.
double score_bytes(const Case& item) {
  return 4.0 * static_cast<double>(extent(item, "batch") * extent(item, "num_heads") *
                                   extent(item, "seqlen_q") * extent(item, "seqlen_k"));
}

/// The right outputs: values and gradients, the kernels where they can be, and a word where not.
Tensors right_values(const Case& item, const Tensors& inputs, at::ScalarType type,
                     Rounding rounding) {
  const std::string site = site_of(item);
  const auto number = [&](double value) { return torch::full({}, value, type); };
  if (site == "lowering") return {{"lowers", number(1)}};
  if (site == "fits") return {{"is_small", number(1)}};
  if (site == "admission") return {{"is_fused", number(flag(item, "is_computable"))}};
  if (site == "memory") return {{"holds_scores", number(0)}, {"is_quadratic", number(0)}};
  Tensors values = attend(inputs, type, rounding);
  if (site == "attention") return values;
  values.erase("lse");
  if (site == "interface" && has_backward(item)) return values;
  if (site == "interface") return {{"out", values.at("out")}};
  const bool is_computable = flag(item, "is_computable");
  values["is_fused"] = number(is_computable);
  if (site == "dispatch") values["said_bytes"] = number(is_computable ? 0 : score_bytes(item));
  return values;
}

// ---- subjects of this process ----

/// The release's own test of a shape.
bool is_native(int64_t, int64_t head_dim_qk, int64_t head_dim_v) {
  return head_dim_qk == kNativeDim && head_dim_v == kNativeDimV;
}

/// Whether both kernels lower at a shape: tiles of the operands are shared out among the warps in
/// steps that the number of heads decides, and shared memory holds rows of 576 values.
bool is_lowerable(int64_t num_heads, int64_t head_dim_qk, int64_t head_dim_v) {
  const bool is_narrow = std::max<int64_t>(num_heads, 16) < 32;
  const int64_t tail = head_dim_qk - head_dim_v;
  return head_dim_v <= kNativeDimV && head_dim_qk <= kNativeDim &&
         head_dim_v % (is_narrow ? 64 : 32) == 0 && tail % (is_narrow ? 32 : 16) == 0;
}

/// The predicate, and the values as padding gives them: rows with zeros appended up to the native
/// widths, the scale as it was, the first columns kept.
harness::InProcessSubject model_subject(bool (*is_fused)(int64_t, int64_t, int64_t)) {
  return [is_fused](const Case& item, const Tensors& inputs) -> Tensors {
    const int64_t width = extent(item, "head_dim_qk"), width_v = extent(item, "head_dim_v");
    const auto padded = [](const Tensor& t, int64_t wanted) {
      return at::constant_pad_nd(t, {0, wanted - t.size(-1)});
    };
    Tensors native = inputs;
    for (const char* name : {"query", "kv"}) native[name] = padded(native.at(name), kNativeDim);
    native["grad_out"] = padded(native.at("grad_out"), kNativeDimV);
    Tensors values = attend(native, at::kDouble, Rounding::kNone);
    values["out"] = values.at("out").narrow(-1, 0, width_v);
    for (const char* name : {"grad_query", "grad_kv"})
      values[name] = values.at(name).narrow(-1, 0, width);
    values.erase("lse");
    values["is_fused"] =
        torch::full({}, is_fused(extent(item, "num_heads"), width, width_v), at::kDouble);
    return values;
  };
}

/// What the op is given in place of the right index, scale and width.
struct Spoilt {
  Tensor indices;
  double scale = 0;
  int64_t head_dim_v = 0;
};
using Spoil = std::function<void(const Case&, Spoilt&)>;

/// The values in bf16, in the storage order, with the gaps and the offset that they have.
Tensor in_bf16(const Tensor& tensor) {
  const auto num_stored = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  return tensor.as_strided({num_stored}, {1}, 0)
      .to(at::kBFloat16)
      .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

/// The op on bf16 operands as views, forward and backward; a narrower output is filled with zeros.
harness::InProcessSubject op_subject(Spoil spoil) {
  return [spoil = std::move(spoil)](const Case& item, const Tensors& inputs) -> Tensors {
    const auto operand = [&](const char* name) { return in_bf16(inputs.at(name)).transpose(0, 1); };
    const int64_t width = extent(item, "head_dim_v");
    Spoilt given{inputs.at("topk_indices").unsqueeze(2), kSoftmaxScale, width};
    if (spoil) spoil(item, given);
    const Tensor query = operand("query"), kv = operand("kv"),
                 grad_out = operand("grad_out").narrow(-1, 0, given.head_dim_v);
    const auto [out, lse, remainder] =
        ops::sparse_mla_forward(query, kv, given.indices, given.scale, given.head_dim_v);
    Tensor grad_query, grad_kv;
    for (int64_t i = 0; i < harness::backwards(item); ++i)
      std::tie(grad_query, grad_kv) = ops::sparse_mla_backward(grad_out, out, remainder, lse, query,
                                                               kv, given.indices, given.scale);
    const Tensor whole = at::constant_pad_nd(out, {0, width - given.head_dim_v});
    return {{"out", whole.transpose(0, 1)},
            {"lse", lse.transpose(0, 1)},
            {"grad_query", grad_query.transpose(0, 1)},
            {"grad_kv", grad_kv.transpose(0, 1)}};
  };
}

// ---- tolerances ----

constexpr const char* kCount = "a count, or yes or no";
const harness::Tolerances kExact = {{0, 0, kCount}, {0, 0, kCount}, {0, 0, kCount}, {0, 0, kCount}};
constexpr const char* kFused =
    "twice the error of the same sums in fp32 with the roundings to bf16 of the fused kernels, or "
    "of the dense path where a shape may take it and is farther off, and 4e-4";
const harness::Tolerances kValues = {
    {2, 0.25,
     "twice plain's and one rounding of the largest to bf16, 2^-9, which plain's may happen not to "
     "have: of 1024 elements of grad_query 2.26 times plain's (1 of 200 drawn cases)"},
    {2, 0.2,
     "twice plain's and 1.6e-3: a kernel may take another base of the exponential than the row's "
     "largest logit, and then rounds other weights than plain does: need 0.11 (out of 64 heads and "
     "18 keys) and 0.18 (one head and 4 keys) in 3000 draws of these roundings alone"},
    {2, 0.001, kFused},
    {2, 0.1,
     "twice plain's and 8e-4: where grad_out is one value, the rounding of dP of a key is the same "
     "in every query, and grad_query was off by a factor of 5.1e-4 on the dense path"}};
constexpr const char* kLse = "1e-3 of the largest: sums in fp32";
const harness::Tolerances kLogSum = {
    {0, 0.128, kLse}, {0, 0.128, kLse}, {0, 0.001, kLse}, {0, 0.128, kLse}};
constexpr const char* kIdentity =
    "1e-12: appended zeros add nothing to any sum, so that only the order of the sums in fp64 "
    "differs; measured 4e-16";
const harness::Tolerances kPadding = {
    {0, 4504, kIdentity}, {0, 4504, kIdentity}, {0, 4504, kIdentity}, {0, 4504, kIdentity}};

/// `is_computable` is what was measured of the kernels, and repeats are there where the kernels
/// alone are right.
void check_dispatch(const Case& item) {
  const int64_t heads = extent(item, "num_heads"), topk = extent(item, "topk"),
                width = extent(item, "head_dim_qk"), width_v = extent(item, "head_dim_v");
  const bool is_power_of_two = (heads & (heads - 1)) == 0;
  const bool is_computable =
      is_power_of_two && topk % 64 == 0 && is_lowerable(heads, width, width_v);
  if (flag(item, "is_computable") != is_computable)
    refuse(item, is_computable ? "both kernels lower" : "no kernel lowers");
  if (has_duplicates(item) && !is_native(heads, width, width_v))
    refuse(item, "the dense path counts a repeated index once");
  if (!has_duplicates(item) && topk > extent(item, "seqlen_k"))
    refuse(item, "topk is larger than the number of keys");
}

class DimsPack : public harness::Pack {
 public:
  std::string slug() const override { return "sparse_mla_dims"; }

  void check(const Case& item) const override {
    const std::string site = site_of(item);
    std::vector<std::string> known = kShapeAxes, more = kSites.at(site);
    if (site == "lowering") {
      known = {"num_heads", "head_dim_qk", "head_dim_v", "topk"};
      if (is_backward(item)) known.emplace_back("max_block_heads");
    }
    for (const std::string& name : known) extent(item, name);
    if (extent(item, "head_dim_v") > extent(item, "head_dim_qk"))
      refuse(item,
             "axis 'head_dim_v': the values are columns of the key; wants at most head_dim_qk");
    known.insert(known.end(), more.begin(), more.end());
    known.emplace_back("site");
    for (const char* name : {"has_backward", "is_forward_plain"}) {
      if (site == "interface" && item.axes.contains(name)) known.emplace_back(name);
    }
    if (item.axes.contains("pattern")) known.emplace_back("pattern");
    pattern_of(item);
    harness::check_axes(item, harness::with_optional(item, known, "logits_times"));
    if (site == "dispatch") check_dispatch(item);
    if (site == "attention" && extent(item, "head_dim_v") > kNativeDimV)
      refuse(item, fmt::format("axis 'head_dim_v': the op takes at most {}", kNativeDimV));
    for (const char* name :
         {"is_computable", "has_duplicates", "has_backward", "is_forward_plain"}) {
      if (item.axes.contains(name)) flag(item, name);
    }
    for (const char* name : {"dense_units", "dense_growth", "peak_bytes_max"}) {
      if (item.axes.contains(name)) harness::amount(item, name);
    }
  }

  at::ScalarType dtype(const Case& item) const override {
    return site_of(item) == "shape" ? at::kDouble : at::kBFloat16;
  }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    const std::string site = site_of(item);
    if (site == "lowering") return {};
    if (site == "fits")  // values decide nothing: the subject draws them where they are used
      return {{"softmax_scale", torch::full({}, kSoftmaxScale, at::kDouble)}};
    const int64_t batch = extent(item, "batch"), rows = extent(item, "seqlen_q"),
                  keys = extent(item, "seqlen_k"), heads = extent(item, "num_heads"),
                  width = extent(item, "head_dim_qk"), width_v = extent(item, "head_dim_v");
    // Memory is measured at half the length too: what is named must lie in the first half.
    const int64_t num_named = site == "memory" ? keys / 2 : keys;
    const Tensor query = normal(item, "query", {rows, batch, heads, width}, seed);
    return {{"query", query * harness::factor(item, "logits_times")},
            {"kv", normal(item, "kv", {keys, batch, 1, width}, seed)},
            {"grad_out", normal(item, "grad_out", {rows, batch, heads, width_v}, seed)},
            {"topk_indices", topk_indices(item, num_named, seed)},
            {"softmax_scale", torch::full({}, kSoftmaxScale, at::kDouble)}};
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return right_values(item, inputs, at::kDouble, Rounding::kNone);
  }

  /// fp32 with the roundings that no bf16 kernel avoids; where a shape may take the fused or the
  /// dense path, both right, the one that comes out farther from the oracle, row by row, since
  /// errors are judged by rows. Of the padding identity the oracle itself.
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    if (site_of(item) == "shape") return oracle(item, inputs);
    Tensors values = right_values(item, inputs, at::kFloat, Rounding::kAsFused);
    if (site_of(item) == "dispatch") {
      const Tensors exact = oracle(item, inputs);
      for (const auto& [name, other] : right_values(item, inputs, at::kFloat, Rounding::kAsDense)) {
        if (other.dim() == 0) continue;  // the path and the bytes, the same for both
        const auto error = [&](const Tensor& t) { return (t - exact.at(name)).norm(2, -1, true); };
        Tensor& value = values.at(name);
        value = at::where(error(other) > error(value), other, value);
      }
    }
    for (auto& [name, tensor] : values) {
      if (site_of(item) == "attention" && name != "lse") tensor = tensor.to(at::kBFloat16);
    }
    return values;
  }

  double least_size(const Case& item, const Tensors& inputs, const Tensors& oracle,
                    const std::string& tensor) const override {
    static_cast<void>(oracle);
    if (site_of(item) == "shape" || !tensor.starts_with("grad_")) return 0;
    const harness::TermSizes sizes = harness::term_sizes(
        {inputs.at("query").transpose(0, 1), inputs.at("kv").squeeze(2).transpose(0, 1),
         inputs.at("topk_indices"), inputs.at("grad_out").transpose(0, 1),
         inputs.at("softmax_scale").item<double>()});
    return tensor == "grad_query" ? sizes.grad_q : sizes.grad_kv;
  }

  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    if (tensor == "lse") return kLogSum;
    if (tensor != "out" && !tensor.starts_with("grad_")) return kExact;
    return site_of(item) == "shape" ? kPadding : kValues;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    return {{"model", model_subject(is_native)},
            {"model_fixed", model_subject(is_lowerable)},
            {"op", op_subject({})},
            {"op_mutant:sentinel_is_key_zero", op_subject([](const Case&, Spoilt& given) {
               given.indices = given.indices.clamp_min(0);
             })},
            {"op_mutant:scale_of_the_width", op_subject([](const Case& item, Spoilt& given) {
               given.scale = 1 / std::sqrt(static_cast<double>(extent(item, "head_dim_qk")));
             })},
            {"op_mutant:last_columns_lost",
             op_subject([](const Case&, Spoilt& given) { given.head_dim_v -= 16; })}};
  }

  /// Right values on the wrong path are this pack's; wrong values are not.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    if (site_of(item) == "attention") return "";
    for (const char* name : {"out", "grad_query", "grad_kv"}) {
      if (!judgement.is_right(name)) return "";
    }
    if (!judgement.is_right("holds_scores")) return "dense_fallback";
    if (!judgement.is_right("is_fused")) return flag(item, "is_computable") ? "shape_declined" : "";
    return judgement.is_right("said_bytes") ? "" : "silent_decline";
  }

  /// By type and frames: an assertion of a kernel's wrapper or builder, an attribute of the output
  /// that the backward is not given, the allocator's own error, or what TileLang ends in.
  std::string classify_error(const Case& item, const Json& exception) const override {
    const auto has_frame = [&](const auto& is_it) {
      const Json frames = exception.value("frames", Json::array());
      return std::any_of(frames.begin(), frames.end(), is_it);
    };
    const std::string type = exception.value("type", "");
    const bool is_wrapper = has_frame([](const Json& frame) {
      const std::string function = frame.value("function", "");
      return std::find(kWrappers.begin(), kWrappers.end(), function) != kWrappers.end();
    });
    if (is_wrapper && type == "AssertionError") return "shape_asserted";
    if (is_wrapper && type == "AttributeError") return "backward_raises";
    if (type.ends_with("OutOfMemoryError") && site_of(item) == "fits") return "out_of_memory";
    const bool is_tilelang = has_frame(
        [](const Json& frame) { return frame.value("file", "").starts_with("tilelang/"); });
    // Where the call is the dispatcher's, TileLang's own errors may be of the machine.
    const std::string site = site_of(item);
    const bool is_lowered = site == "lowering" || site == "admission";
    const bool is_lowering =
        type.starts_with("tvm.") ? is_lowered || site == "dispatch" : is_tilelang && is_lowered;
    return is_lowering ? "lowering_fails" : "";
  }
};

}  // namespace
}  // namespace patchbench::sparse_mla_dims

int main(int argc, char** argv) {
  // The products are small: threads that wait for one another cost more than they give.
  at::set_num_threads(1);
  return patchbench::harness::run_reproducer(argc, argv, patchbench::sparse_mla_dims::DimsPack());
}
