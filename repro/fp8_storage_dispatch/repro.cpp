// Pack fp8_storage_dispatch: what a consumer of FP8 wrapper tensors is handed, at the wrapper's own
// calls, at the sparse-MLA dispatcher, in a model without either package, and the op on the stored
// values. Counts of null pointers and of silent dense copies; the right number is 0.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "fp8_storage_dispatch/attention.h"
#include "fp8_storage_dispatch/op.h"
#include "fp8_storage_dispatch/wrapper.h"
#include "harness/attention.h"
#include "harness/axes.h"
#include "harness/program.h"

namespace patchbench::fp8_storage_dispatch {
namespace {

namespace ops = patchbench::ops::fp8_storage_dispatch;
using at::Tensor;
using harness::choice;
using harness::Draw;
using harness::extent;
using harness::Judgement;
using harness::refuse;

/// Nearer to the dense answer than this nobody has used the stored values (8 bits cost 2.6 %).
constexpr double kLeastDistance = 5e-3;

const std::vector<std::string> kStorages = {"float8", "float8_columnwise_only", "mxfp8", "bf16"};
const std::vector<std::string> kQuantised = {"both", "query", "kv", "none"};
const std::map<std::string, std::vector<std::string>> kAxes = {
    {"call", {"call", "storage"}},
    {"raw_pointer", {"storage"}},
    {"dlpack", {"storage"}},
    {"copies", {"storage"}},
    {"dtype_guard", {"quantised", "storage"}},
    {"fused_absorbed",
     {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"indexer", {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"indexer_loss",
     {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"sparse_mla_4d",
     {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"kernel_launch",
     {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"sparse_mla_3d", {"num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"fp8_variant", {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"no_fp8_variant",
     {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"entry_attention",
     {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"entry_training",
     {"batch", "kv_times", "num_heads", "quantised", "query_times", "seqlen_k", "seqlen_q",
      "storage", "topk"}},
    {"entry_storage",
     {"batch", "num_heads", "quantised", "seqlen_k", "seqlen_q", "storage", "topk"}},
    {"payload_pointer", {"storage"}},
    {"model_pointer", {"quantised"}},
    {"model_dispatch", {"quantised"}},
    {"attention", {"batch", "layout", "num_heads", "seqlen_k", "seqlen_q", "sharpness", "topk"}},
    {"storage", {"batch", "layout", "num_heads", "seqlen_k", "seqlen_q", "topk"}}};

std::string site_of(const Case& item) {
  std::vector<std::string> sites;
  for (const auto& [site, axes] : kAxes) sites.push_back(site);
  return choice(item, "site", sites);
}
bool is_wrapper_site(const std::string& site) {
  const std::set<std::string> all = {"call", "raw_pointer", "dlpack", "copies", "payload_pointer"};
  return all.contains(site);
}
/// What wants the result of the fused absorbed entry on FP8 storage.
bool is_entry_site(const std::string& site) { return site.starts_with("entry_"); }
bool is_indexer_site(const std::string& site) { return site.starts_with("indexer"); }
/// What calls an entry whose operands are [seqlen, batch, heads, head_dim].
bool is_fused_site(const std::string& site) {
  return site == "fused_absorbed" || site.ends_with("fp8_variant") || is_entry_site(site) ||
         is_indexer_site(site);
}
bool is_model_site(const std::string& site) { return site.starts_with("model_"); }
bool is_op_site(const std::string& site) { return site == "attention" || site == "storage"; }
bool is_stored(const Case& item, const std::string& operand) {
  const std::string which = choice(item, "quantised", kQuantised);
  return which == "both" || which == operand;
}

// ---- inputs ----

/// e4m3 bytes of x, whose values are below 6 times `times`, and what they are multiplied by; mxfp8:
/// a power of two of bias 127 for each 32 of a row.
void add_stored(Tensors& inputs, const std::string& prefix, const std::string& storage,
                const Tensor& x, double times = 1) {
  const bool is_mx = storage == "mxfp8";
  const double scale = is_mx ? 0.125 : times * 6.0 / 448;
  inputs[prefix + "payload"] = (x / scale).clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kByte);
  inputs[prefix + "scale_inv"] =
      is_mx ? torch::full({x.numel() / x.size(-1), x.size(-1) / 32}, 127 - 3, at::kByte)
            : torch::full({1}, scale, at::kFloat);
}

Tensor normal(const Case& item, const char* name, const std::vector<int64_t>& shape,
              uint64_t seed) {
  // Values that bfloat16 holds, so that a copy into it changes nothing.
  return Draw(seed, item.name + "/" + name).normal(shape).to(at::kBFloat16).to(at::kFloat);
}

/// What the indices name; "" is the usual.
std::string pattern_of(const Case& item) {
  return item.axes.contains("pattern")
             ? choice(item, "pattern", {"all_negative", "beyond", "full", "one_key"})
             : "";
}

/// int32 [batch, seqlen_q, 1, topk] at the op's sites, with repeats and a tenth of -1. By the axis
/// `pattern`: "full": no -1; "beyond": what is -1 is any other index that names no key; "one_key":
/// every third row names one key in all its slots; "all_negative": no row names a key.
Tensor topk_indices(const Case& item, const std::vector<int64_t>& shape, int64_t keys,
                    uint64_t seed) {
  const std::string pattern = pattern_of(item);
  const Tensor indices =
      Draw(seed, item.name + "/topk_indices").integers(shape, 0, keys).to(at::kInt);
  if (pattern == "full") return indices;
  if (pattern == "all_negative") return indices.fill_(-1);
  if (pattern == "one_key") {
    const Tensor third = indices.slice(1, 2, c10::nullopt, 3);
    third.copy_(third.narrow(-1, 0, 1).clone().expand_as(third));
  }
  const Tensor closed = Draw(seed, item.name + "/none").mask(shape, 0.1);
  if (pattern != "beyond") return indices.masked_fill(closed, -1);
  const Tensor others = torch::tensor(
      {-1, -2, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
       static_cast<int32_t>(keys), static_cast<int32_t>(keys) + 1},
      at::kInt);
  return at::where(closed, others.index({Draw(seed, item.name + "/beyond").integers(shape, 0, 6)}),
                   indices);
}

Tensors dispatcher_inputs(const Case& item, uint64_t seed) {
  const std::string site = site_of(item), storage = choice(item, "storage", kStorages);
  const bool is_guard = site == "dtype_guard";
  const int64_t batch = item.axes.value("batch", int64_t{1});
  const int64_t rows = is_guard ? 4 : extent(item, "seqlen_q"),
                keys = is_guard ? 4 : extent(item, "seqlen_k"),
                heads = is_guard ? 2 : extent(item, "num_heads"),
                topk = is_guard ? 4 : extent(item, "topk");
  std::vector<int64_t> query = {batch, rows, heads, kDim}, kv = {batch, keys, 1, kDim},
                       indices = {batch, rows, 1, topk};
  if (is_fused_site(site)) {
    query = {rows, batch, heads, kDim};
    kv = {keys, batch, 1, kDim};
    indices = {batch, rows, topk};
  }
  if (site == "sparse_mla_3d") {
    query = {rows, heads, kDim};
    kv = {keys, 1, kDim};
    indices = {rows, 1, topk};
  }
  Tensors inputs = {{"topk_indices", topk_indices(item, indices, keys, seed)}};
  for (const auto& [name, prefix, shape] :
       {std::tuple{"query", "q_", query}, std::tuple{"kv", "kv_", kv}}) {
    const std::string axis = std::string(name) + "_times";
    const double times = item.axes.contains(axis) ? harness::amount(item, axis) : 1;
    const Tensor values = normal(item, name, shape, seed) * times;
    if (storage != "bf16" && is_stored(item, name)) {
      add_stored(inputs, prefix, storage, values, times);
    } else {
      inputs[name] = values;
    }
    if (site == "entry_training") inputs[std::string(prefix) + "unquantised"] = values;
  }
  if (site != "entry_training") return inputs;
  if (rows > 1 && pattern_of(item) != "full")
    inputs["topk_indices"][0][0].fill_(-1);  // a query without a key
  inputs["grad_out"] =
      normal(item, "grad_out", {rows, batch, heads, kDimV}, seed).to(at::kBFloat16);
  return inputs;
}

/// The stored form of both operands next to the dense one, which tells how far from it the result
/// is.
Tensors attention_inputs(const Case& item, uint64_t seed) {
  const int64_t batch = extent(item, "batch"), rows = extent(item, "seqlen_q"),
                heads = extent(item, "num_heads"), keys = extent(item, "seqlen_k");
  const std::string layout = choice(item, "layout", {"tensor", "token", "block"});
  const double sharpness = item.axes.contains("sharpness") ? harness::amount(item, "sharpness") : 1;
  const Tensor query =
      (normal(item, "query", {batch, rows, heads, kDim}, seed) * sharpness).to(at::kBFloat16);
  const Tensor kv = normal(item, "kv", {batch, keys, 1, kDim}, seed).to(at::kBFloat16);
  const ops::Fp8Storage k = ops::quantize_mla(kv, layout);
  Tensors inputs = {
      {"kv_payload", k.payload.view(at::kByte)},
      {"topk_indices", topk_indices(item, {batch, rows, 1, extent(item, "topk")}, keys, seed)}};
  if (k.scale) inputs["kv_scale"] = *k.scale;
  if (batch * rows > 1 && pattern_of(item) != "full")
    inputs["topk_indices"][0][0].fill_(-1);  // a query without a key
  if (layout == "block") {
    inputs["q_dense"] = query;
  } else {
    const ops::Fp8Storage q = ops::quantize_mla(query, layout);
    inputs["q_payload"] = q.payload.view(at::kByte);
    inputs["q_scale"] = *q.scale;
  }
  if (site_of(item) == "storage") return inputs;
  inputs["query"] = query;
  inputs["kv"] = kv;
  inputs["grad_out"] =
      normal(item, "grad_out", {batch, rows, heads, kDimV}, seed).to(at::kBFloat16);
  return inputs;
}

Tensors wrapper_inputs(const Case& item, uint64_t seed) {
  const std::string storage = choice(item, "storage", kStorages);
  const Tensor values = normal(item, "values", {4, 2, 64}, seed);
  if (storage == "bf16") return {{"query", values}};
  Tensors inputs;
  add_stored(inputs, "", storage, values);
  return inputs;
}

// ---- the right values ----

/// What is right at the sites of the packages and of the model: nothing is handed over falsely.
Tensors right_counts(const Case& item, const Tensors& inputs, at::ScalarType type) {
  const std::string site = site_of(item);
  const Tensor zero = torch::zeros({}, type);
  if (site == "dtype_guard")
    return {{"guard_passes", torch::full({}, choice(item, "storage", kStorages) == "bf16", type)}};
  if (site == "payload_pointer") return {{"payload_missing", zero}};
  Tensors values = {{"null_pointers", zero}, {"densified", zero}};
  if (site == "fp8_variant") values["variant_missed"] = zero;
  if (site == "entry_attention" || site == "entry_training")
    values.merge(entry_results(inputs, type));
  if (site == "entry_training") values["is_fp8_used"] = torch::ones({}, type);
  if (site == "no_fp8_variant") {
    for (const char* name : {"wrong_at_the_kernel", "miscounted", "storage_kept"})
      values[name] = zero;
  }
  if (site == "entry_storage") values["held_dense"] = zero;
  if (site == "call" || site == "kernel_launch") values["raised"] = zero;
  if (site == "call") values["overstated"] = zero;
  if (site == "copies") values["wrong_facts"] = zero;
  if (is_indexer_site(site)) values["declined_dense"] = zero;
  const bool is_dispatcher =
      !is_wrapper_site(site) && !is_model_site(site) && !is_indexer_site(site);
  if (is_dispatcher && choice(item, "storage", kStorages) == "bf16") {
    for (const char* name : {"query", "kv"})
      values[std::string(name) + "_seen"] = inputs.at(name).to(at::kCPU, type);
  }
  return values;
}

// ---- subjects of this process ----

/// An operator that knows dense tensors alone: its kernel is handed what the dispatcher made.
Tensor consume_dense(const Tensor& query, const Tensor& kv) {
  for (const Tensor& tensor : {query, kv}) take_pointer(tensor);
  return torch::zeros({});
}

/// The same operator's kernel for wrappers: reads what is stored, refuses a mixture.
Tensor consume_stored(const Tensor& query, const Tensor& kv) {
  const WrapperImpl *q = wrapper_of(query), *k = wrapper_of(kv);
  TORCH_CHECK(q != nullptr && k != nullptr,
              "consume_aware: both operands must be FP8 wrappers, or neither; got ",
              q != nullptr ? "a dense kv" : "a dense query");
  for (const WrapperImpl* operand : {q, k}) {
    TORCH_CHECK(operand->payload().const_data_ptr() != nullptr, "consume_aware: no payload");
    handed().payload_bytes += static_cast<int64_t>(operand->payload().nbytes());
  }
  return torch::zeros({});
}

TORCH_LIBRARY(patchbench_fp8_model, m) {
  m.def("consume(Tensor query, Tensor kv) -> Tensor");
  m.def("consume_aware(Tensor query, Tensor kv) -> Tensor");
}
TORCH_LIBRARY_IMPL(patchbench_fp8_model, CPU, m) {
  m.impl("consume", consume_dense);
  m.impl("consume_aware", consume_dense);
}
TORCH_LIBRARY_IMPL(patchbench_fp8_model, TESTING_ONLY_GenericWrapper, m) {
  m.impl("consume_aware", consume_stored);
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dequantize_and_redispatch>());
}

Tensor call_model(const char* name, const Tensor& query, const Tensor& kv) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("patchbench_fp8_model::") + name).c_str(), "")
      .typed<Tensor(const Tensor&, const Tensor&)>()
      .call(query, kv);
}

Tensor model_operand(const Case& item, const Tensors& inputs, const std::string& name,
                     const std::string& prefix) {
  if (!is_stored(item, name)) return inputs.at(name).to(at::kBFloat16);
  return make_wrapper(inputs.at(prefix + "payload").view(at::kFloat8_e4m3fn),
                      inputs.at(prefix + "scale_inv"));
}

enum class Awareness { kNone, kByKey };

/// The defect: a pointer taken past the dispatcher is null; an operator without a kernel for the
/// wrapper is given a dense copy. Aware of the key, a mixture is refused and the payload is read.
harness::InProcessSubject model_subject(Awareness awareness) {
  return [awareness](const Case& item, const Tensors& inputs) -> Tensors {
    const std::string site = site_of(item);
    if (!is_model_site(site)) throw harness::UnsupportedCase("only a model's sites are modelled");
    handed() = {};
    const Tensor query = model_operand(item, inputs, "query", "q_"),
                 kv = model_operand(item, inputs, "kv", "kv_");
    const int64_t num_stored = is_stored(item, "query") + is_stored(item, "kv");
    try {
      if (awareness == Awareness::kByKey) {
        call_model("consume_aware", query, kv);
      } else if (site == "model_pointer") {
        for (const Tensor& operand : {query, kv}) take_pointer(operand.contiguous());
      } else {
        call_model("consume", query, kv);
      }
    } catch (const c10::Error&) {
      // Refused: nothing was handed over.
    }
    handed().densified = handed().dequantize_calls;
    if (awareness == Awareness::kByKey && num_stored == 2 && handed().payload_bytes == 0)
      throw std::runtime_error("the kernel for wrappers was not reached");
    const auto count = [](int64_t value) {
      return torch::full({}, static_cast<double>(value), at::kFloat);
    };
    return {{"null_pointers", count(handed().null_pointers)},
            {"densified", count(handed().densified)}};
  };
}

ops::Fp8Storage stored_operand(const Tensors& inputs, const std::string& prefix) {
  const auto dense = inputs.find(prefix + "dense");
  if (dense != inputs.end()) return {dense->second, std::nullopt};
  const Tensor& payload = inputs.at(prefix + "payload");
  const auto scale = inputs.find(prefix + "scale");
  if (scale == inputs.end()) return {payload, std::nullopt};
  return {payload.view(at::kFloat8_e4m3fn), scale->second};
}

/// Whether the result is as far from the dense answer as stored values are. Without any key both
/// are 0, which tells nothing.
bool is_fp8_used(const Tensor& got, const Tensor& dense) {
  const Tensor wanted = dense.to(at::kDouble);
  const double size = wanted.norm().item<double>();
  return size == 0 || (got.to(at::kDouble) - wanted).norm().item<double>() >= kLeastDistance * size;
}

/// What the op is given: the operands as they are, or spoilt in a way that a test must see.
using Spoil = std::function<void(ops::Fp8Storage& q, ops::Fp8Storage& kv, Tensor& indices)>;

harness::InProcessSubject op_subject(Spoil spoil) {
  return [spoil = std::move(spoil)](const Case& item, const Tensors& inputs) -> Tensors {
    if (!is_op_site(site_of(item)))
      throw harness::UnsupportedCase("the op has no part in what a wrapper hands out");
    ops::Fp8Storage q = stored_operand(inputs, "q_"), kv = stored_operand(inputs, "kv_");
    Tensor indices = inputs.at("topk_indices");
    if (spoil) spoil(q, kv, indices);
    if (site_of(item) == "storage") {
      // What a cache holds is made here, so that the meter sees it.
      kv.payload = kv.payload.clone();
      const auto [out, lse] = ops::sparse_mla_fp8_forward(q, kv, indices, kSoftmaxScale);
      return {{"out", out}, {"lse", lse}};
    }
    const auto [out, lse] = ops::sparse_mla_fp8_forward(q, kv, indices, kSoftmaxScale);
    Tensor grad_q, grad_kv;
    for (int64_t i = 0; i < harness::backwards(item); ++i)
      std::tie(grad_q, grad_kv) = ops::sparse_mla_fp8_backward(inputs.at("grad_out"), out, lse, q,
                                                               kv, indices, kSoftmaxScale);
    const Tensor dense = attend(inputs.at("query").to(at::kFloat), inputs.at("kv").to(at::kFloat),
                                inputs.at("topk_indices"), Tensor())
                             .at("out");
    const double is_used = is_fp8_used(out, dense) ? 1 : 0;
    return {{"out", out},
            {"lse", lse},
            {"grad_q", grad_q},
            {"grad_kv", grad_kv},
            {"is_fp8_used", torch::full({}, is_used, at::kFloat)}};
  };
}

/// Wrong: the operands before they were stored, in the shapes of the right answer.
Tensors dense_subject(const Case& item, const Tensors& inputs) {
  if (site_of(item) != "attention")
    throw harness::UnsupportedCase("the dense form is there for attention alone");
  Tensors values = attend(inputs.at("query").to(at::kFloat), inputs.at("kv").to(at::kFloat),
                          inputs.at("topk_indices"), inputs.at("grad_out"));
  for (auto& [name, tensor] : values) {
    if (name != "lse") tensor = tensor.to(at::kBFloat16);
  }
  values["is_fp8_used"] = torch::zeros({}, at::kFloat);
  return values;
}

// ---- tolerances, in units of bfloat16's epsilon (2^-7) ----

const harness::Tolerances kExact = {{0, 0, "counts, or values that are passed on"},
                                    {0, 0, "counts, or values that are passed on"},
                                    {0, 0, "counts, or values that are passed on"},
                                    {0, 0, "counts, or values that are passed on"}};
constexpr const char* kOut =
    "5e-3: P is rounded to bfloat16 (2^-9) beside the stored values, and so is the result; there "
    "is no plain computation on FP8 storage";
const harness::Tolerances kForward = {
    {0, 0.64, kOut}, {0, 0.64, kOut}, {0, 0.01, kOut}, {0, 0.3, kOut}};
constexpr const char* kGrad =
    "what the dense computation in bfloat16 has (twice that of a row) and 5e-3: dS = P (dP - "
    "Delta) "
    "cancels, Delta is taken from the rounded out, and of a sharp row little is left";
const harness::Tolerances kBackward = {
    {1, 0.64, kGrad}, {2, 0.64, kGrad}, {1, 0.02, kGrad}, {1, 0.3, kGrad}};
constexpr const char* kLse = "1e-3 absolute of values near 6: sums in float32";
const harness::Tolerances kLogSum = {
    {0, 0.02, kLse}, {0, 0.02, kLse}, {0, 0.001, kLse}, {0, 0.02, kLse}};
constexpr const char* kShortLse =
    "2^-11 of itself: where query and keys are e4m3, Hopper adds their products in about 14 bits";
const harness::Tolerances kLogSumOfStored = {
    {0, 0.0625, kShortLse}, {0, 0.0625, kShortLse}, {0, 0.001, kShortLse}, {0, 0.0625, kShortLse}};

class Fp8Pack : public harness::Pack {
 public:
  std::string slug() const override { return "fp8_storage_dispatch"; }

  void check(const Case& item) const override {
    std::vector<std::string> known = kAxes.at(site_of(item));
    known.push_back("site");
    const bool has_pattern = is_op_site(site_of(item)) || site_of(item) == "entry_training";
    if (has_pattern && item.axes.contains("pattern")) known.push_back("pattern");
    pattern_of(item);
    harness::check_axes(item, known);
    if (site_of(item) == "payload_pointer" && choice(item, "storage", kStorages) == "bf16")
      refuse(item, "axis 'storage': bf16 has no payload");
    const bool is_of_fp8 = site_of(item).ends_with("fp8_variant") || is_entry_site(site_of(item));
    if (is_of_fp8 && (choice(item, "storage", kStorages) != "float8" ||
                      choice(item, "quantised", kQuantised) != "both"))
      refuse(item, "attention over FP8 storage is asked for float8, both operands");
    if (item.axes.contains("storage") && item.axes.at("storage") == "bf16" &&
        item.axes.value("quantised", "none") != "none")
      refuse(item, "axis 'quantised': bf16 operands are not quantised; wants none");
  }

  at::ScalarType dtype(const Case& item) const override {
    const std::string site = site_of(item);
    return is_op_site(site) || is_entry_site(site) ? at::kBFloat16 : at::kFloat;
  }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    const std::string site = site_of(item);
    if (is_op_site(site)) return attention_inputs(item, seed);
    if (is_wrapper_site(site)) return wrapper_inputs(item, seed);
    if (!is_model_site(site)) return dispatcher_inputs(item, seed);
    Tensors inputs;
    for (const auto& [name, prefix] : {std::pair{"query", "q_"}, std::pair{"kv", "kv_"}}) {
      const Tensor values = normal(item, name, {2, 32, 16, kDim}, seed);
      if (is_stored(item, name)) {
        add_stored(inputs, prefix, "float8", values);
      } else {
        inputs[name] = values;
      }
    }
    return inputs;
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return is_op_site(site_of(item)) ? right_attention(inputs, at::kDouble)
                                     : right_counts(item, inputs, at::kDouble);
  }

  /// For the op's sites the dense computation in bfloat16 on the dequantised operands.
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    if (site_of(item) == "entry_training") {
      Tensors values = right_counts(item, inputs, at::kFloat);
      for (auto& [name, tensor] : entry_results(inputs, at::kBFloat16))
        values[name] = tensor.to(at::kFloat);
      return values;
    }
    if (!is_op_site(site_of(item))) return right_counts(item, inputs, at::kFloat);
    Tensors on_cpu;
    for (const auto& [name, tensor] : inputs) on_cpu.emplace(name, tensor.cpu());
    Tensors values = right_attention(on_cpu, at::kBFloat16);
    values["lse"] = values.at("lse").to(at::kFloat);
    if (values.contains("is_fp8_used"))
      values["is_fp8_used"] = values.at("is_fp8_used").to(at::kFloat);
    return values;
  }

  double least_size(const Case& item, const Tensors& inputs, const Tensors& oracle,
                    const std::string& tensor) const override {
    static_cast<void>(oracle);
    if (!tensor.starts_with("grad_")) return 0;
    const bool is_entry = is_entry_site(site_of(item));
    const auto batch_first = [&](const Tensor& operand) {
      return is_entry ? operand.transpose(0, 1) : operand;
    };
    const Tensor& indices = inputs.at("topk_indices");
    const harness::TermSizes sizes = harness::term_sizes(
        {batch_first(values_of(inputs, "q_")), batch_first(values_of(inputs, "kv_")).squeeze(2),
         is_entry ? indices : indices.squeeze(2), batch_first(inputs.at("grad_out")),
         kSoftmaxScale});
    return tensor == "grad_q" ? sizes.grad_q : sizes.grad_kv;
  }

  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    if (tensor == "out") return kForward;
    if (tensor == "lse")
      return item.axes.value("layout", "") == "block" ? kLogSum : kLogSumOfStored;
    return tensor.starts_with("grad_") ? kBackward : kExact;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    using ops::Fp8Storage;
    return {{"model", model_subject(Awareness::kNone)},
            {"model_fixed", model_subject(Awareness::kByKey)},
            {"op", op_subject({})},
            {"op_mutant:sentinel_is_key_zero",
             op_subject([](Fp8Storage&, Fp8Storage&, Tensor& indices) {
               indices = indices.clamp_min(0);
             })},
            {"op_mutant:query_unscaled", op_subject([](Fp8Storage& q, Fp8Storage&, Tensor&) {
               if (q.scale) q.scale = torch::ones_like(*q.scale);
               if (!q.scale) q.payload = q.payload * 1.0625;
             })},
            {"op_mutant:dense", dense_subject}};
  }

  /// Which falsehood was handed over: a null pointer outweighs a copy.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const std::string site = site_of(item);
    for (const char* name : {"query_seen", "kv_seen", "wrong_at_the_kernel", "miscounted",
                             "wrong_facts", "declined_dense"}) {
      if (is_op_site(site) || !judgement.is_right(name)) return "";
    }
    if (!judgement.is_right("payload_missing")) return "no_payload";
    if (!judgement.is_right("null_pointers")) return "raw_null";
    if (!judgement.is_right("densified") || !judgement.is_right("held_dense"))
      return "silent_dense";
    if (!judgement.is_right("variant_missed")) return "storage_lost";
    if (!judgement.is_right("storage_kept")) return "storage_kept";
    if (!judgement.is_right("guard_passes")) return "guard_fooled";
    if (!judgement.is_right("overstated")) return "size_overstated";
    return judgement.is_right("raised") ? "" : "raises";
  }

  std::string refusal(const Case& item, const std::string& device_kind) const override {
    return is_model_site(site_of(item)) && device_kind != "cpu" ? "the model runs on a CPU" : "";
  }
};

}  // namespace
}  // namespace patchbench::fp8_storage_dispatch

int main(int argc, char** argv) {
  // The products are small: threads that wait for one another cost more than they give.
  at::set_num_threads(1);
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::fp8_storage_dispatch::Fp8Pack());
}
