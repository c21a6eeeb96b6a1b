// Pack mamba3_mimo_smem_2d: whether the MIMO backward's kernels lower with TMA on, whether they
// then use it, and the source that comes of it; and the products of q and k, whose tiles are what
// TMA is kept from, by this pack's op and, from emulated tiles, by the model.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "harness/axes.h"
#include "harness/program.h"
#include "mamba3_mimo_smem_2d/model.h"
#include "mamba3_mimo_smem_2d/op.h"

namespace patchbench::mamba3_mimo_smem_2d {
namespace {

using at::Tensor;
using harness::choice;
using harness::Draw;
using harness::extent;
using harness::flag;
using harness::Judgement;
using harness::Tensors;

const std::vector<std::string> kSites = {"lowering", "code", "products", "tiles"};
bool is_code(const Case& item) { return choice(item, "site", kSites) == "code"; }
bool is_tiles(const Case& item) { return choice(item, "site", kSites) == "tiles"; }
/// "tiles" is "products" by way of the model's shared memory.
bool is_products(const Case& item) {
  return choice(item, "site", kSites) == "products" || is_tiles(item);
}
bool wants_tma(const Case& item) { return item.axes.contains("tma") && flag(item, "tma"); }

constexpr const char* kYesOrNo = "it lowers or not, it uses TMA or not";
const harness::Tolerances kExact = {
    {0, 0, kYesOrNo}, {0, 0, kYesOrNo}, {0, 0, kYesOrNo}, {0, 0, kYesOrNo}};

/// What lowering ends in, by the compiler's function that raises or calls what raises.
struct Failure {
  const char* function;
  const char* failure_class;
};
constexpr std::array kFailures = {
    Failure{"CopyNode::LowerBulkCopy", "tma_lowering_fails"},
    Failure{"LayoutNode::Reshape", "staged_reshape_fails"},
    Failure{"ReduceOpNode::Lower", "reduce_lowering_fails"},
    Failure{"MakeReduceOwnershipPlan", "reduce_lowering_fails"},
    Failure{"tvm::floormod", "layout_inference_fails"},
    Failure{"ParallelOpNode::InferLayout", "layout_inference_fails"},
};

// ---- the products ----

at::ScalarType low_dtype(const Case& item) {
  return choice(item, "dtype", {"float32", "bfloat16"}) == "float32" ? at::kFloat : at::kBFloat16;
}

Tensors product_inputs(const Case& item, uint64_t seed) {
  const int64_t b = extent(item, "batch"), s = extent(item, "seqlen"),
                r = extent(item, "num_ranks"), g = extent(item, "num_groups"),
                h = extent(item, "num_heads"), n = extent(item, "head_dim_qk");
  if (h % g != 0) harness::refuse(item, "num_groups must divide num_heads");
  const auto draw = [&](const char* name, const std::vector<int64_t>& shape, at::ScalarType type) {
    return Draw(seed, item.name + "/" + name).normal(shape).to(type);
  };
  const at::ScalarType low = low_dtype(item);
  return {{"q", draw("q", {b, s, r, g, n}, low)},
          {"k", draw("k", {b, s, r, g, n}, low)},
          {"q_bias", draw("q_bias", {h, r, n}, at::kFloat)},
          {"k_bias", draw("k_bias", {h, r, n}, at::kFloat)},
          {"grad_qk_dot", draw("grad_qk_dot", {b, h, s, r, r}, low)}};
}

/// qk_dot[b,h,s,r,u] = <q_r + q_bias_r, k_u + k_bias_u> of token s and the group of head h, and its
/// gradients, in `type`. Nothing differs between the stagings.
Tensors right_products(const Tensors& inputs, at::ScalarType type) {
  const int64_t groups = inputs.at("q").size(3), heads = inputs.at("q_bias").size(0);
  const auto rows = [&](const char* name) {
    const Tensor& bias = inputs.at(std::string(name) + "_bias");
    return inputs.at(name).to(type).repeat_interleave(heads / groups, 3) +
           bias.to(type).transpose(0, 1);
  };
  const Tensor q = rows("q"), k = rows("k"), grad = inputs.at("grad_qk_dot").to(type);
  const auto of_groups = [&](const Tensor& raw) {
    return raw.unflatten(3, {groups, heads / groups}).sum(4);
  };
  const auto of_bias = [](const Tensor& raw) {
    return raw.sum(at::IntArrayRef{0, 1}).transpose(0, 1).contiguous();
  };
  const Tensor raw_q = at::einsum("bhsru,bsuhn->bsrhn", {grad, k}),
               raw_k = at::einsum("bhsru,bsrhn->bsuhn", {grad, q});
  return {{"qk_dot", at::einsum("bsrhn,bsuhn->bhsru", {q, k})},
          {"grad_q", of_groups(raw_q)},
          {"grad_k", of_groups(raw_k)},
          {"grad_q_bias", of_bias(raw_q)},
          {"grad_k_bias", of_bias(raw_k)},
          {"staging_differs", at::zeros({}, grad.options())}};
}

using ops::mamba3_mimo_smem_2d::QkDotStaging;

Tensor number(int64_t value) { return torch::full({}, static_cast<double>(value), at::kDouble); }

/// Of products from tiles: what a CTA holds, and which tiles TMA can fill.
Tensors with_tiles(const Case& item, Tensors values) {
  if (!is_tiles(item)) return values;
  const int64_t r = extent(item, "num_ranks"), n = extent(item, "head_dim_qk"),
                bytes = low_dtype(item) == at::kFloat ? 4 : 2;
  values["tile_bytes"] = number(extent(item, "chunk") * r * (2 * n + r) * bytes);
  values["tiles_by_tma"] = number(wants_tma(item) ? 2 + (r * r * bytes % 16 == 0) : 0);
  return values;
}

/// A swizzle repeats after 8 rows of 128 bytes.
void check_tiles(const Case& item) {
  const int64_t bytes = low_dtype(item) == at::kFloat ? 4 : 2;
  if (extent(item, "chunk") * extent(item, "num_ranks") % 8 != 0)
    harness::refuse(item, "chunk * num_ranks must be a multiple of 8");
  if (extent(item, "head_dim_qk") * bytes % kBoxBytes != 0)
    harness::refuse(item, "a row of head_dim_qk must be whole boxes of 128 bytes");
  wants_tma(item);
}

/// The plain computation: sums in float32, rounded once to the case's dtype.
Tensors plain_products(const Case& item, const Tensors& inputs) {
  Tensors values = right_products(inputs, at::kFloat);
  for (const char* name : {"qk_dot", "grad_q", "grad_k"})
    values.at(name) = values.at(name).to(low_dtype(item));
  return values;
}

/// The plain products of the values in the model's tiles, and how many elements a tile gave back
/// otherwise than it was given.
harness::InProcessSubject model_subject(Form form) {
  return [form](const Case& item, const Tensors& inputs) -> Tensors {
    if (!is_tiles(item)) throw harness::UnsupportedCase("the model lowers no kernel");
    Tensors seen = inputs;
    const Staged staged = stage(seen, form, extent(item, "chunk"), wants_tma(item));
    Tensors values = plain_products(item, seen);
    for (const char* name : {"q", "k", "grad_qk_dot"})
      values["staging_differs"] +=
          harness::compare_bitwise(name, seen.at(name), inputs.at(name)).got;
    values["tile_bytes"] = number(staged.tile_bytes);
    values["tiles_by_tma"] = number(staged.tiles_by_tma);
    return values;
  };
}

/// Of the op for one staging.
Tensors op_products(const Tensors& t, const QkDotStaging& staging) {
  using namespace ops::mamba3_mimo_smem_2d;
  const Tensor &q = t.at("q"), &k = t.at("k"), &q_bias = t.at("q_bias"), &k_bias = t.at("k_bias");
  const auto [grad_q, grad_k, grad_q_bias, grad_k_bias] =
      mamba3_mimo_qk_dot_bwd(t.at("grad_qk_dot"), q, k, q_bias, k_bias, staging);
  return {{"qk_dot", mamba3_mimo_qk_dot(q, k, q_bias, k_bias, staging)},
          {"grad_q", grad_q},
          {"grad_k", grad_k},
          {"grad_q_bias", grad_q_bias},
          {"grad_k_bias", grad_k_bias}};
}

using Products = std::function<Tensors(const Tensors& inputs, const QkDotStaging& staging)>;

/// The flat tiles through TMA, and how many elements any other staging gives otherwise.
harness::InProcessSubject products_subject(Products compute) {
  return [compute = std::move(compute)](const Case& item, const Tensors& inputs) -> Tensors {
    if (!is_products(item) || is_tiles(item))
      throw harness::UnsupportedCase("the op is the products alone");
    Tensors values = compute(inputs, {});
    for (int64_t i = 1; i < harness::backwards(item); ++i) values = compute(inputs, {});
    double differing = 0;
    for (const QkDotStaging& staging :
         {QkDotStaging{"flat", "cp_async"}, {"rank3", "tma"}, {"rank3", "cp_async"}}) {
      for (const auto& [name, value] : compute(inputs, staging))
        differing += harness::compare_bitwise(name, value, values.at(name)).got;
    }
    values["staging_differs"] = at::full({}, differing, inputs.at("q_bias").options());
    return values;
  };
}

/// Wrong: the tile's products lie as [r_in, r_out].
Tensors transposed_ranks(const Tensors& t, const QkDotStaging& staging) {
  Tensors inputs = t;
  inputs["grad_qk_dot"] = t.at("grad_qk_dot").mT();
  Tensors values = op_products(inputs, staging);
  values["qk_dot"] = values.at("qk_dot").mT();
  return values;
}

/// Wrong: head h reads group h % G.
Tensors strided_groups(const Tensors& t, const QkDotStaging& staging) {
  const int64_t groups = t.at("q").size(3), heads = t.at("q_bias").size(0);
  const auto reorder = [](const Tensor& x, int64_t axis, int64_t outer, int64_t inner) {
    return x.unflatten(axis, {outer, inner}).transpose(axis, axis + 1).flatten(axis, axis + 1);
  };
  Tensors inputs = t;
  for (const char* name : {"q_bias", "k_bias"})
    inputs[name] = reorder(t.at(name), 0, heads / groups, groups);
  inputs["grad_qk_dot"] = reorder(t.at("grad_qk_dot"), 1, heads / groups, groups);
  Tensors values = op_products(inputs, staging);
  for (const char* name : {"grad_q_bias", "grad_k_bias"})
    values[name] = reorder(values.at(name), 0, groups, heads / groups);
  values["qk_dot"] = reorder(values.at("qk_dot"), 1, groups, heads / groups);
  return values;
}

/// Wrong: in rank 3 the tile of products is read one rank late.
Tensors shifted_in_rank3(const Tensors& t, const QkDotStaging& staging) {
  Tensors values = op_products(t, staging);
  if (staging.layout == "rank3") values["qk_dot"] = values.at("qk_dot").roll({1}, {3});
  return values;
}

constexpr const char* kOnce =
    "twice the same sums in the same dtype, and one rounding to it: half an epsilon";
const harness::Tolerances kRounded = {
    {2, 0.51, kOnce}, {2, 0.51, kOnce}, {2, 0.51, kOnce}, {2, 0.51, kOnce}};
constexpr const char* kFloatProducts =
    "need 2.9 and, of rows, 24 (qk_dot of 3 ranks and 114 terms; 9500 drawn cases): float32 sums "
    "in another order than the plain computation's, whose own error may be small by chance";
const harness::Tolerances kFloat = {{2, 6, kFloatProducts},
                                    {2, 64, kFloatProducts},
                                    {2, 6, kFloatProducts},
                                    {2, 6, kFloatProducts}};
constexpr const char* kFloatSums =
    "float32 sums over tokens, at most 2^15 terms, in another order: 16 epsilons of float32 in "
    "those of the case's dtype";
const harness::Tolerances kFloatBias = {
    {2, 16, kFloatSums}, {2, 16, kFloatSums}, {2, 16, kFloatSums}, {2, 16, kFloatSums}};
const harness::Tolerances kBfloatBias = {{2, 2.5e-4, kFloatSums},
                                         {2, 2.5e-4, kFloatSums},
                                         {2, 2.5e-4, kFloatSums},
                                         {2, 2.5e-4, kFloatSums}};
constexpr const char* kBitwise = "the number of elements that differ between stagings: none may";
const harness::Tolerances kNone = {
    {0, 0, kBitwise}, {0, 0, kBitwise}, {0, 0, kBitwise}, {0, 0, kBitwise}};

constexpr const char* kCount = "a number of bytes, or of tiles";
const harness::Tolerances kWhole = {{0, 0, kCount}, {0, 0, kCount}, {0, 0, kCount}, {0, 0, kCount}};

class SmemPack : public harness::Pack {
 public:
  std::string slug() const override { return "mamba3_mimo_smem_2d"; }

  void check(const Case& item) const override {
    if (is_products(item)) {
      std::vector<std::string> known = {"site",       "batch",     "seqlen",      "num_ranks",
                                        "num_groups", "num_heads", "head_dim_qk", "dtype"};
      if (is_tiles(item)) known.insert(known.end(), {"chunk", "tma"});
      harness::check_axes(item, known);
      if (is_tiles(item)) check_tiles(item);
      return;
    }
    std::vector<std::string> known = {"site",         "kernel",      "is_varlen",  "arch",
                                      "batch",        "seqlen",      "num_ranks",  "num_groups",
                                      "num_heads",    "head_dim_qk", "head_dim_v", "chunk",
                                      "angle_divisor"};
    for (const char* name : {"tma", "nvcc", "num_stages", "num_sequences"}) {
      if (item.axes.contains(name)) known.emplace_back(name);
    }
    harness::check_axes(item, known);
    choice(item, "kernel", {"bwd_fwd", "bwd_bwd"});
    choice(item, "arch", {"sm_80", "sm_90a", "sm_100a", "sm_120a"});
    flag(item, "is_varlen");
    is_code(item);
    wants_tma(item);
    for (const char* name : {"batch", "seqlen", "num_ranks", "num_groups", "num_heads",
                             "head_dim_qk", "head_dim_v", "chunk", "angle_divisor"})
      extent(item, name);
  }

  at::ScalarType dtype(const Case& item) const override {
    return is_products(item) ? low_dtype(item) : at::kFloat;
  }
  Tensors inputs(const Case& item, uint64_t seed) const override {
    return is_products(item) ? product_inputs(item, seed) : Tensors{};
  }

  /// It lowers, and with TMA on it loads through it.
  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    if (is_products(item)) return with_tiles(item, right_products(inputs, at::kDouble));
    if (is_code(item)) return {};
    Tensors values = {{"lowers", torch::ones({})}};
    if (wants_tma(item)) values["uses_tma"] = torch::ones({});
    return values;
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    if (!is_products(item)) return oracle(item, inputs);
    return with_tiles(item, plain_products(item, inputs));
  }
  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    if (!is_products(item)) return kExact;
    if (tensor == "tile_bytes" || tensor == "tiles_by_tma") return kWhole;
    if (tensor == "staging_differs") return kNone;
    const bool is_float = low_dtype(item) == at::kFloat;
    if (!tensor.ends_with("_bias")) return is_float ? kFloat : kRounded;
    return is_float ? kFloatBias : kBfloatBias;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    return {{"model", model_subject(Form::kRank3)},
            {"model_fixed", model_subject(Form::kFlat)},
            {"model_mutant:products_rank3", model_subject(Form::kProductsRank3)},
            {"model_mutant:rows_rank_major", model_subject(Form::kRowsRankMajor)},
            {"model_mutant:read_transposed", model_subject(Form::kReadTransposed)},
            {"model_mutant:unswizzled", model_subject(Form::kUnswizzled)},
            {"model_mutant:second_tile", model_subject(Form::kSecondTile)},
            {"op", products_subject(op_products)},
            {"op_mutant:transposed_ranks", products_subject(transposed_ranks)},
            {"op_mutant:strided_groups", products_subject(strided_groups)},
            {"op_mutant:shifted_in_rank3", products_subject(shifted_in_rank3)}};
  }

  std::string classify(const Case& item, const Judgement& judgement) const override {
    if (is_products(item)) return "";
    return judgement.is_right("lowers") && !judgement.is_right("uses_tma") ? "tma_not_used" : "";
  }

  /// An error of the compiler, by the innermost of its functions that are known here, or that of
  /// the model's copy.
  std::string classify_error(const Case&, const Json& exception) const override {
    if (harness::ModelRaised::is_of(slug(), exception)) return "tma_lowering_fails";
    if (exception.value("type", "") != "tvm.error.InternalError") return "";
    std::string found;
    for (const Json& frame : exception.value("frames", Json::array())) {
      const std::string function = frame.value("function", "");
      for (const Failure& failure : kFailures) {
        if (function.find(failure.function) != std::string::npos) found = failure.failure_class;
      }
    }
    return found;
  }
};

}  // namespace
}  // namespace patchbench::mamba3_mimo_smem_2d

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::mamba3_mimo_smem_2d::SmemPack());
}
