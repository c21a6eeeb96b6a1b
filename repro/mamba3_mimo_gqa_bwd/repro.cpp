// Pack mamba3_mimo_gqa_bwd: the gradients of the Mamba-3 MIMO layer with grouped B and C, by fp64
// autograd through its recurrence, and the reduction from heads to groups alone.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/axes.h"
#include "harness/program.h"
#include "mamba3_mimo_gqa_bwd/model.h"
#include "mamba3_mimo_gqa_bwd/op.h"

namespace patchbench::mamba3_mimo_gqa_bwd {
namespace {

using at::Tensor;
using harness::choice;
using harness::Draw;
using harness::extent;
using harness::Judgement;
using harness::refuse;
using harness::Tensors;

const std::vector<std::string> kSites = {"backward", "reduction", "projection"};
/// What a caller may differentiate by, in the order of the release's result.
const std::vector<std::string> kNames = {"q",      "k",      "v",      "adt",    "dt",
                                         "trap",   "q_bias", "k_bias", "mimo_v", "mimo_z",
                                         "mimo_o", "angles", "d",      "z"};

at::ScalarType low_dtype(const Case& item) {
  const std::string name = choice(item, "dtype", {"float32", "float16", "bfloat16"});
  return name == "float32" ? at::kFloat : name == "float16" ? at::kHalf : at::kBFloat16;
}
bool is_reduction(const Case& item) { return choice(item, "site", kSites) == "reduction"; }
bool is_backward(const Case& item) { return choice(item, "site", kSites) == "backward"; }
/// Whether the backward is given one group more, which it has to refuse.
bool is_refusal(const Case& item) { return item.axes.contains("has_a_group_too_many"); }
bool is_projection(const Case& item) { return choice(item, "site", kSites) == "projection"; }

/// Lengths of the packed sequences, or one of the whole.
std::vector<int64_t> seqlens_of(const Case& item) {
  if (!item.axes.contains("seqlens")) return {extent(item, "seqlen")};
  if (extent(item, "batch") != 1) refuse(item, "axis 'seqlens' wants a batch of 1");
  return harness::lengths(item, "seqlens", extent(item, "seqlen"));
}

// ---- inputs ----

/// Unit normals; "coherent": of one sign and size, so that sums over tokens grow and what is summed
/// in a low precision shows. `grad_scale` multiplies grad_out: at 512 such sums pass the largest
/// float16.
Tensors backward_inputs(const Case& item, uint64_t seed) {
  const int64_t b = extent(item, "batch"), s = extent(item, "seqlen"),
                r = extent(item, "num_ranks"), h = extent(item, "num_heads"),
                g = extent(item, "num_groups"), n = extent(item, "head_dim_qk"),
                p = extent(item, "head_dim_v"), a = extent(item, "num_angles");
  if (h % g != 0) refuse(item, "num_groups must divide num_heads");
  const at::ScalarType low = low_dtype(item);
  const bool is_coherent = choice(item, "values", {"normal", "coherent"}) == "coherent";
  const auto draw = [&](const char* name) { return Draw(seed, item.name + "/" + name); };
  const auto uniform = [&](const char* name, const std::vector<int64_t>& shape, double from,
                           double to) {
    return draw(name).uniform(shape, from, to).to(at::kFloat);
  };
  const auto active = [&](const char* name, const std::vector<int64_t>& shape) {
    return is_coherent ? uniform(name, shape, 0.75, 1.25) : draw(name).normal(shape).to(at::kFloat);
  };
  const auto bias = [&](const char* name) {
    return is_coherent ? uniform(name, {h, r, n}, 0, 0.1) : active(name, {h, r, n}) * 0.5;
  };
  return {{"q", active("q", {b, s, r, g, n}).to(low)},
          {"k", active("k", {b, s, r, g, n}).to(low)},
          {"v", active("v", {b, s, h, p}).to(low)},
          {"z", active("z", {b, s, h, p}).to(low)},
          {"trap", draw("trap").normal({b, h, s}).to(low)},
          {"grad_out",
           (active("grad_out", {b, s, h, p}) * harness::amount(item, "grad_scale")).to(low)},
          {"q_bias", bias("q_bias")},
          {"k_bias", bias("k_bias")},
          {"mimo_v", active("mimo_v", {h, r, p})},
          {"mimo_z", active("mimo_z", {h, r, p})},
          {"mimo_o", active("mimo_o", {h, r, p})},
          {"adt", uniform("adt", {b, h, s}, -0.55, -0.05) * harness::factor(item, "decay_times")},
          {"dt", uniform("dt", {b, h, s}, 0.05, 0.25)},
          {"angles", uniform("angles", {b, s, h, a}, 0, is_coherent ? 0.3 : 6.28)},
          {"d", draw("d").normal({h}).to(at::kFloat)}};
}

Tensors reduction_inputs(const Case& item, uint64_t seed) {
  const std::vector<int64_t> shape = {extent(item, "batch"), extent(item, "seqlen"),
                                      extent(item, "num_ranks"), extent(item, "num_heads"),
                                      extent(item, "head_dim_qk")};
  if (shape[3] % extent(item, "num_groups") != 0) refuse(item, "num_groups must divide num_heads");
  const auto raw = [&](const char* name) {
    return Draw(seed, item.name + "/" + name).uniform(shape, 0.5, 1.5).to(low_dtype(item));
  };
  return {{"dq", raw("dq")}, {"dk", raw("dk")}};
}

/// Rows of the layer's input projection before, and with, the rows of B and C: z, x; B, C; then dt,
/// a, trap for each head, and the angles, half of head_dim_qk in pairs.
Tensors projection_inputs(const Case& item, uint64_t seed) {
  const int64_t hidden = extent(item, "hidden"), heads = extent(item, "num_heads"),
                n = extent(item, "head_dim_qk"),
                bc = extent(item, "num_ranks") * extent(item, "num_groups") * n,
                rows = 2 * heads * extent(item, "head_dim_v") + 2 * bc + 3 * heads + n / 4;
  return {{"hidden", Draw(seed, item.name + "/hidden")
                         .normal({extent(item, "batch"), extent(item, "seqlen"), hidden})
                         .to(at::kFloat)},
          {"in_proj", Draw(seed, item.name + "/in_proj").normal({rows, hidden}).to(at::kFloat)}};
}

// ---- the right values ----

/// Turns the pairs (n, n + N/2), n below the number of angles.
Tensor rotate(const Tensor& x, const Tensor& theta) {
  const int64_t angles = theta.size(-1), half = x.size(-1) / 2;
  const auto part = [&](int64_t from, int64_t to) { return x.slice(-1, from, to); };
  const Tensor low = part(0, angles), high = part(half, half + angles);
  const Tensor cos = theta.cos(), sin = theta.sin();
  return at::cat({low * cos - high * sin, part(angles, half), low * sin + high * cos,
                  part(half + angles, x.size(-1))},
                 -1);
}

/// out[b,s,h,p]: S_t = e^a S_{t-1} + (1 - l) dt e^a sum_r x_{t-1} k_{t-1} + l dt sum_r x_t k_t with
/// l = sigmoid(trap), x = v mimo_v, k and q rotated; y = S q + d x; out = sum_r y silu(z mimo_z)
/// mimo_o. State and predecessor begin anew with each sequence.
Tensor recurrence(const std::map<std::string, Tensor>& t, const std::vector<int64_t>& seqlens) {
  const Tensor& v = t.at("v");
  const int64_t heads = v.size(2), group = heads / t.at("q").size(3);
  const auto per_head = [&](const char* name) {
    const std::string bias = std::string(name) + "_bias";
    return t.at(name).repeat_interleave(group, 3) + t.at(bias).transpose(0, 1);
  };
  const Tensor theta = t.at("angles").unsqueeze(2);
  const Tensor q = rotate(per_head("q"), theta), k = rotate(per_head("k"), theta);
  const Tensor x = v.unsqueeze(2) * t.at("mimo_v").transpose(0, 1);
  const Tensor weight = t.at("trap").sigmoid(), decay = t.at("adt").exp();
  const auto product = [&](int64_t at) {
    return at::einsum("brhp,brhn->bhpn", {x.select(1, at), k.select(1, at)});
  };
  const auto scalar = [](const Tensor& values) { return values.unsqueeze(-1).unsqueeze(-1); };
  std::vector<Tensor> rows;
  int64_t start = 0;
  for (const int64_t length : seqlens) {
    Tensor state, before;
    for (int64_t at = start; at < start + length; ++at) {
      const Tensor w = weight.select(2, at), dt = t.at("dt").select(2, at), e = decay.select(2, at);
      const Tensor now = product(at);
      Tensor next = scalar(w * dt) * now;
      if (at > start) next = next + scalar(e) * state + scalar((1 - w) * dt * e) * before;
      state = next;
      before = now;
      rows.push_back(at::einsum("bhpn,brhn->brhp", {state, q.select(1, at)}) +
                     t.at("d").unsqueeze(-1) * x.select(1, at));
    }
    start += length;
  }
  const Tensor gate = at::silu(t.at("z").unsqueeze(2) * t.at("mimo_z").transpose(0, 1));
  return (at::stack(rows, 1) * gate * t.at("mimo_o").transpose(0, 1)).sum(2);
}

Tensors right_gradients(const Case& item, const Tensors& inputs, at::ScalarType type) {
  std::map<std::string, Tensor> leaves;
  std::vector<Tensor> by;
  for (const std::string& name : kNames) {
    leaves[name] = inputs.at(name).to(type).detach().clone().requires_grad_();
    by.push_back(leaves.at(name));
  }
  // A sequence's first token takes nothing over: where each has one token, adt has no part.
  const auto grads =
      torch::autograd::grad({recurrence(leaves, seqlens_of(item))}, by,
                            {inputs.at("grad_out").to(type)}, std::nullopt, false, true);
  Tensors values;
  for (size_t i = 0; i < kNames.size(); ++i)
    values["grad_" + kNames[i]] = grads[i].defined() ? grads[i] : at::zeros_like(by[i]);
  return values;
}

Tensors right_sums(const Case& item, const Tensors& inputs, at::ScalarType sum_type) {
  const int64_t groups = extent(item, "num_groups");
  Tensors values;
  for (const char* name : {"q", "k"}) {
    const Tensor raw = inputs.at(std::string("d") + name).to(sum_type);
    const auto s = raw.sizes();
    values[std::string("grad_") + name] =
        raw.reshape({s[0], s[1], s[2], groups, s[3] / groups, s[4]}).sum(4);
    values[std::string("grad_") + name + "_bias"] =
        raw.sum(at::IntArrayRef{0, 1}).transpose(0, 1).contiguous();
  }
  return values;
}

/// q and k [batch, seqlen, num_ranks, num_heads, head_dim_qk] of the whole layer, each head with
/// its group's row: rows (r, g, n) of the sections C and B.
Tensors right_projection(const Case& item, const Tensors& inputs, at::ScalarType type) {
  const int64_t heads = extent(item, "num_heads"), ranks = extent(item, "num_ranks"),
                groups = extent(item, "num_groups"), n = extent(item, "head_dim_qk"),
                first = 2 * heads * extent(item, "head_dim_v"), rows = ranks * groups * n;
  const Tensor hidden = inputs.at("hidden").to(type), weight = inputs.at("in_proj").to(type);
  const auto section = [&](int64_t from) {
    const Tensor values = at::linear(hidden, weight.narrow(0, from, rows));
    return values.unflatten(-1, {ranks, groups, n}).repeat_interleave(heads / groups, 3);
  };
  return {{"k", section(first)}, {"q", section(first + rows)}};
}

/// Heads and groups are cut into equal parts; a single group is each part's.
void check_parts(const Case& item) {
  const int64_t parts = extent(item, "num_parts"), heads = extent(item, "num_heads"),
                groups = extent(item, "num_groups");
  if (heads % groups != 0 || heads % parts != 0) refuse(item, "num_heads is not cut evenly");
  if (groups > 1 && groups % parts != 0) refuse(item, "num_groups is not cut evenly");
}

// ---- subjects of this process ----

/// The results from dq, dk for so many groups: gradients, then bias gradients.
using Reduction = std::function<std::tuple<Tensor, Tensor, Tensor, Tensor>(
    const Tensor& dq, const Tensor& dk, int64_t num_groups)>;
/// All gradients of a call.
using Backward = std::function<ops::mamba3_mimo_gqa_bwd::MimoGradients(
    const ops::mamba3_mimo_gqa_bwd::MimoInputs& in, const Tensor& grad_out)>;

Tensors reduced(const Reduction& reduce, const Case& item, const Tensors& inputs) {
  const auto [q, k, q_bias, k_bias] =
      reduce(inputs.at("dq"), inputs.at("dk"), extent(item, "num_groups"));
  return {{"grad_q", q}, {"grad_k", k}, {"grad_q_bias", q_bias}, {"grad_k_bias", k_bias}};
}

Tensors differentiated(const Backward& backward, const Case& item, const Tensors& inputs) {
  const auto& at = [&](const char* name) { return inputs.at(name); };
  ops::mamba3_mimo_gqa_bwd::MimoInputs in{
      at("q"),      at("k"),      at("v"),      at("adt"),    at("dt"),
      at("trap"),   at("q_bias"), at("k_bias"), at("mimo_v"), at("mimo_z"),
      at("mimo_o"), at("angles"), at("d"),      at("z"),      {}};
  if (item.axes.contains("seqlens")) {
    std::vector<int32_t> bounds = {0};
    for (const int64_t length : seqlens_of(item))
      bounds.push_back(bounds.back() + static_cast<int32_t>(length));
    in.cu_seqlens = torch::tensor(bounds, at::kInt).to(in.q.device());
  }
  auto g = backward(in, at("grad_out"));
  for (int64_t i = 1; i < harness::backwards(item); ++i) g = backward(in, at("grad_out"));
  const std::vector<Tensor> all = {g.q,      g.k,      g.v,      g.adt,    g.dt,
                                   g.trap,   g.q_bias, g.k_bias, g.mimo_v, g.mimo_z,
                                   g.mimo_o, g.angles, g.d,      g.z};
  Tensors values;
  for (size_t i = 0; i < kNames.size(); ++i) values["grad_" + kNames[i]] = all[i].to(at::kFloat);
  return values;
}

/// The op at each site; null where a subject has nothing to say.
harness::InProcessSubject op_subject(Reduction reduce, Backward backward) {
  return [=](const Case& item, const Tensors& inputs) -> Tensors {
    if (is_reduction(item) && reduce) return reduced(reduce, item, inputs);
    if (is_backward(item) && backward) return differentiated(backward, item, inputs);
    throw harness::UnsupportedCase("the ops are the backward and its reduction");
  };
}

/// Only the reduction is modelled: the gradients of each head come from autograd through the
/// recurrence, in float32, and the ones of q and k are rounded to their dtype, as a kernel stores
/// them.
harness::InProcessSubject model_subject(GroupReduction reduce) {
  return [reduce](const Case& item, const Tensors& inputs) -> Tensors {
    if (!is_backward(item)) throw harness::UnsupportedCase("the model is the whole backward's");
    const int64_t groups = extent(item, "num_groups");
    Tensors per_head = inputs;
    for (const char* name : {"q", "k"})
      per_head[name] = inputs.at(name).repeat_interleave(extent(item, "num_heads") / groups, 3);
    Tensors values = right_gradients(item, per_head, at::kFloat);
    for (const std::string name : {"grad_q", "grad_k"}) {
      const auto [rows, bias] = reduce(values.at(name).to(low_dtype(item)), groups);
      values[name] = rows.to(at::kFloat);
      values[name + "_bias"] = bias.to(at::kFloat);
    }
    return values;
  };
}

/// Wrong: head h counts for group h % G.
std::tuple<Tensor, Tensor, Tensor, Tensor> strided_groups(const Tensor& dq, const Tensor& dk,
                                                          int64_t groups) {
  const auto reorder = [&](const Tensor& raw) {
    return raw.unflatten(3, {raw.size(3) / groups, groups}).transpose(3, 4).flatten(3, 4);
  };
  auto sums = ops::mamba3_mimo_gqa_bwd::group_reduce_bwd(reorder(dq), reorder(dk), groups);
  const auto right = ops::mamba3_mimo_gqa_bwd::group_reduce_bwd(dq, dk, groups);
  std::get<2>(sums) = std::get<2>(right);
  std::get<3>(sums) = std::get<3>(right);
  return sums;
}

/// Wrong: the bias gradients are rounded to the dtype of dq.
std::tuple<Tensor, Tensor, Tensor, Tensor> rounded_biases(const Tensor& dq, const Tensor& dk,
                                                          int64_t groups) {
  auto sums = ops::mamba3_mimo_gqa_bwd::group_reduce_bwd(dq, dk, groups);
  for (Tensor* bias : {&std::get<2>(sums), &std::get<3>(sums)})
    *bias = bias->to(dq.scalar_type()).to(at::kFloat);
  return sums;
}

/// Wrong: the state and its gradient pass from one packed sequence to the next.
ops::mamba3_mimo_gqa_bwd::MimoGradients packed_as_one(ops::mamba3_mimo_gqa_bwd::MimoInputs in,
                                                      const Tensor& grad_out) {
  in.cu_seqlens.reset();
  return ops::mamba3_mimo_gqa_bwd::mamba3_mimo_bwd(in, grad_out);
}

/// Wrong: each token writes its own product alone, none of its predecessor's.
ops::mamba3_mimo_gqa_bwd::MimoGradients no_trapezoid(ops::mamba3_mimo_gqa_bwd::MimoInputs in,
                                                     const Tensor& grad_out) {
  in.dt = in.dt * in.trap.to(at::kFloat).sigmoid();
  in.trap = at::full_like(in.trap, 40);
  return ops::mamba3_mimo_gqa_bwd::mamba3_mimo_bwd(in, grad_out);
}

/// Wrong: one direction of the turn.
ops::mamba3_mimo_gqa_bwd::MimoGradients turned_backwards(ops::mamba3_mimo_gqa_bwd::MimoInputs in,
                                                         const Tensor& grad_out) {
  in.angles = -in.angles;
  return ops::mamba3_mimo_gqa_bwd::mamba3_mimo_bwd(in, grad_out);
}

// ---- tolerances ----

constexpr const char* kSums =
    "twice the recurrence in float32; the floor is for sums within a chunk in another order. Half "
    "an epsilon of the sum of adt over a chunk, which is rounded before its exponential, is added: "
    "need 17.3 (grad_trap) where that sum is 38, none where it is kept in fp64";
const harness::Tolerances kFp32 = {{2, 16, kSums}, {2, 64, kSums}, {2, 16, kSums}, {2, 16, kSums}};
constexpr const char* kOneRank =
    "need 173 (grad_v, 1 of 340 drawn cases): of one token and one rank an element is one product "
    "<q, k> of 128 terms that cancel, and a row of head_dim_v 1 is that element; 71 (grad_z, 24 "
    "seeds): a row is one product and not a sum, so that its size may be a thousandth of the "
    "largest "
    "row's";
const harness::Tolerances kFp32OneRank = {
    {2, 256, kOneRank}, {2, 256, kOneRank}, {2, 16, kSums}, {2, 16, kSums}};

/// The recurrence multiplies by the decay of one token after another; a right computation by chunks
/// sums adt, at most 0.55 decay_times a token, over a chunk of its own or of the case's length. The
/// rounding of such a sum is the relative error of its exponential.
harness::Tolerances float_tolerances(const Case& item) {
  const int64_t ranks = extent(item, "num_ranks");
  harness::Tolerances found = ranks == 1 ? kFp32OneRank : kFp32;
  if (!is_backward(item)) return found;
  const int64_t chunk = std::max(extent(item, "chunk"), 64 / ranks),
                tokens = std::min(extent(item, "seqlen"), chunk);
  const double sum = 0.55 * harness::factor(item, "decay_times") * static_cast<double>(tokens);
  for (Tolerance* one : {&found.element, &found.row}) one->floor_ulp += sum / 2;
  return found;
}
constexpr const char* kHalf =
    "2e-3: the raw gradients of each head are rounded to float16 (2^-11) and once more as a sum, "
    "in "
    "which heads and ranks may cancel: need 1.33e-3 (a row of 8, 1 of 1000 drawn cases)";
const harness::Tolerances kFp16 = {
    {2, 16777, kHalf}, {2, 16777, kHalf}, {2, 16777, kHalf}, {2, 16777, kHalf}};
constexpr const char* kHalfBias =
    "1.5e-4: float32 sums over 64 tokens and more, of one sign, of values that were rounded to "
    "float16 one by one; a sum that is itself rounded to float16 is off by 2.5e-4 and more. Of "
    "fewer tokens, or where values cancel, the roundings of the values alone come to 4.0e-4 (drawn "
    "cases of one token and of 80), and the limit is kFp16's";
const harness::Tolerances kFp16Bias = {
    {2, 1258, kHalfBias}, {2, 1258, kHalfBias}, {2, 1258, kHalfBias}, {2, 1258, kHalfBias}};
constexpr const char* kKernels =
    "the kernels round operands of every product, states and gradients to bfloat16, 2^-8 each, and "
    "what is summed cancels";
// 3e-2 of the largest element, in epsilons of float32; elements of a small row four times that.
const harness::Tolerances kBf16 = {
    {2, 251658, kKernels}, {2, 1006633, kKernels}, {2, 251658, kKernels}, {2, 251658, kKernels}};
constexpr const char* kManyRows =
    "4e-3: roundings of many elements are no common factor. Our kernels need 1.5e-3 (grad_z of "
    "4224 elements, 14 cases, run on a CPU with the roundings of a GPU)";
const harness::Tolerances kBf16Many = {
    kBf16.element, kBf16.row, kBf16.cosine, {2, 33554, kManyRows}};
constexpr const char* kHalfKernels =
    "the kernels round operands of every product, states and gradients to float16, 2^-11 each, an "
    "eighth of what bfloat16 does";
// 3.75e-3 of the largest element, an eighth of kBf16's.
const harness::Tolerances kFp16Kernels = {{2, 31457, kHalfKernels},
                                          {2, 125829, kHalfKernels},
                                          {2, 31457, kHalfKernels},
                                          {2, 31457, kHalfKernels}};
constexpr const char* kOnce =
    "twice the same sums in float32, and one rounding to the dtype: half an epsilon";
const harness::Tolerances kRounded = {
    {2, 0.51, kOnce}, {2, 0.51, kOnce}, {2, 0.51, kOnce}, {2, 0.51, kOnce}};
constexpr const char* kFloatSums = "a sum of up to 2^12 float32 values of one sign";
// 1e-6, in epsilons of the dtype of dq.
const harness::Tolerances kFloatBias = {
    {2, 8.4, kFloatSums}, {2, 8.4, kFloatSums}, {2, 8.4, kFloatSums}, {2, 8.4, kFloatSums}};
const harness::Tolerances kHalfSumBias = {{2, 1.03e-3, kFloatSums},
                                          {2, 1.03e-3, kFloatSums},
                                          {2, 1.03e-3, kFloatSums},
                                          {2, 1.03e-3, kFloatSums}};
const harness::Tolerances kBfloatBias = {{2, 1.28e-4, kFloatSums},
                                         {2, 1.28e-4, kFloatSums},
                                         {2, 1.28e-4, kFloatSums},
                                         {2, 1.28e-4, kFloatSums}};

/// On a CPU a stand-in computes in float32 what the release's kernels do (stand_in.py).
bool runs_kernels(const Case& item) { return item.judged_on == std::vector<std::string>{"cuda"}; }

/// From so many terms or rows on, roundings cancel.
constexpr int64_t kMany = 64;

/// Whether a gradient of our op (q, k, v or z) has many rows. Their roundings are then no common
/// factor.
bool has_many_rows(const Case& item, const std::string& tensor) {
  if (runs_kernels(item)) return false;
  const int64_t tokens = extent(item, "batch") * extent(item, "seqlen");
  if (tensor == "grad_q" || tensor == "grad_k")
    return tokens * extent(item, "num_ranks") * extent(item, "num_groups") >= kMany;
  return (tensor == "grad_v" || tensor == "grad_z") && tokens * extent(item, "num_heads") >= kMany;
}

/// Whether the gradient of a bias is so many terms of one sign that their roundings cancel.
bool sums_many_of_one_sign(const Case& item) {
  return item.axes.at("values") == "coherent" &&
         extent(item, "batch") * extent(item, "seqlen") >= kMany;
}

class MimoPack : public harness::Pack {
 public:
  std::string slug() const override { return "mamba3_mimo_gqa_bwd"; }

  void check(const Case& item) const override {
    std::vector<std::string> known = {"site",       "batch",     "seqlen",      "num_ranks",
                                      "num_groups", "num_heads", "head_dim_qk", "dtype"};
    if (is_projection(item)) {
      for (const char* name : {"head_dim_v", "hidden", "num_parts"}) known.emplace_back(name);
    } else if (!is_reduction(item)) {
      for (const char* name : {"head_dim_v", "num_angles", "chunk", "values", "grad_scale"})
        known.emplace_back(name);
      if (item.axes.contains("seqlens")) known.emplace_back("seqlens");
      known = harness::with_optional(item, known, "decay_times");
      known = harness::with_optional(item, known, "has_a_group_too_many");
    }
    harness::check_axes(item, known);
    if (is_projection(item)) {
      check_parts(item);
    } else if (!is_reduction(item)) {
      extent(item, "chunk");
      seqlens_of(item);
    }
  }

  at::ScalarType dtype(const Case& item) const override {
    return is_reduction(item) ? low_dtype(item) : at::kFloat;
  }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    if (is_projection(item)) return projection_inputs(item, seed);
    return is_reduction(item) ? reduction_inputs(item, seed) : backward_inputs(item, seed);
  }

  std::map<std::string, int64_t> extents(const Case& item) const override {
    auto counts = Pack::extents(item);
    counts["heads_per_group"] = extent(item, "num_heads") / extent(item, "num_groups");
    counts.erase("grad_scale");
    return counts;
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    if (is_projection(item)) return right_projection(item, inputs, at::kDouble);
    if (is_refusal(item)) return {{"refused", at::ones({1})}};
    return is_reduction(item) ? right_sums(item, inputs, at::kDouble)
                              : right_gradients(item, inputs, at::kDouble);
  }

  Tensors plain(const Case& item, const Tensors& inputs) const override {
    if (is_projection(item)) return right_projection(item, inputs, at::kFloat);
    if (is_refusal(item)) return {{"refused", at::ones({1})}};
    if (!is_reduction(item)) return right_gradients(item, inputs, at::kFloat);
    Tensors values = right_sums(item, inputs, at::kFloat);
    for (const char* name : {"grad_q", "grad_k"})
      values.at(name) = values.at(name).to(low_dtype(item));
    return values;
  }

  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    const bool is_bias = tensor.ends_with("_bias");
    if (is_reduction(item))
      return !is_bias                        ? kRounded
             : low_dtype(item) == at::kFloat ? kFloatBias
             : low_dtype(item) == at::kHalf  ? kHalfSumBias
                                             : kBfloatBias;
    if (low_dtype(item) == at::kFloat) return float_tolerances(item);
    if (low_dtype(item) == at::kBFloat16) return has_many_rows(item, tensor) ? kBf16Many : kBf16;
    if (runs_kernels(item)) return kFp16Kernels;
    return is_bias && sums_many_of_one_sign(item) ? kFp16Bias : kFp16;
  }

  /// A token that sees itself alone turns q and k alike: no angle changes anything, and where no
  /// sequence has two tokens all that is left of the terms is their rounding. Its state is dt
  /// sigmoid(trap) x k, so that dt grad_dt is the sum of the products of q and grad_q, which have
  /// both signs; grad_trap is a part of it.
  double least_size(const Case& item, const Tensors& inputs, const Tensors& oracle,
                    const std::string& tensor) const override {
    // What is rounded to float16 has no relative precision below its smallest normal number.
    const double smallest = low_dtype(item) == at::kHalf ? 0x1p-14 : 0;
    const bool is_scale = tensor == "grad_dt" || tensor == "grad_trap";
    if (!is_backward(item) || (tensor != "grad_angles" && !is_scale)) return smallest;
    for (const int64_t length : seqlens_of(item))
      if (length > 1) return smallest;
    const auto most = [](const Tensor& x) { return x.abs().max().to(at::kDouble).item<double>(); };
    if (is_scale) {
      const double terms =
          most(oracle.at("grad_q")) * (most(inputs.at("q")) + most(inputs.at("q_bias")));
      return std::max(tensor == "grad_dt" ? terms / most(inputs.at("dt")) : terms, smallest);
    }
    double terms = 0;
    for (const std::string name : {"q", "k", "q_bias", "k_bias"})
      terms += most(oracle.at("grad_" + name)) * most(inputs.at(name));
    return std::max(terms, smallest);
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    return {{"model", model_subject(two_branches)},
            {"model_fixed", model_subject(every_group)},
            {"model_mutant:bias_in_input_dtype", model_subject(bias_in_input_dtype)},
            {"model_mutant:bias_of_groups", model_subject(bias_of_groups)},
            {"model_mutant:groups_strided", model_subject(groups_strided)},
            {"model_mutant:groups_averaged", model_subject(groups_averaged)},
            {"op", op_subject(ops::mamba3_mimo_gqa_bwd::group_reduce_bwd,
                              ops::mamba3_mimo_gqa_bwd::mamba3_mimo_bwd)},
            {"op_mutant:strided_groups", op_subject(strided_groups, nullptr)},
            {"op_mutant:rounded_biases", op_subject(rounded_biases, nullptr)},
            {"op_mutant:packed_as_one", op_subject(nullptr, packed_as_one)},
            {"op_mutant:no_trapezoid", op_subject(nullptr, no_trapezoid)},
            {"op_mutant:turned_backwards", op_subject(nullptr, turned_backwards)}};
  }

  /// "groups_mixed": the parts of a layer do not hold the rows of their own heads' groups.
  /// "bias_in_input_dtype": with float16 inputs the gradients of q_bias and k_bias alone are off.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    if (is_reduction(item)) return "";
    if (is_projection(item)) return "groups_mixed";
    bool is_bias_alone = low_dtype(item) != at::kFloat;
    for (const Measure& m : judgement.measures)
      is_bias_alone &= m.pass || m.tensor == "grad_q_bias" || m.tensor == "grad_k_bias";
    return is_bias_alone ? "bias_in_input_dtype" : "wrong_gradients";
  }

  /// "groups_refused": a ValueError from the backward, or the model's error, for a number of groups
  /// that divides the heads.
  std::string classify_error(const Case& item, const Json& exception) const override {
    if (harness::ModelRaised::is_of(slug(), exception)) return "groups_refused";
    const Json frames = exception.value("frames", Json::array());
    if (is_reduction(item) || exception.value("type", "") != "ValueError" || frames.empty())
      return "";
    const std::string file = frames.back().value("file", "");
    const bool is_host = file.ends_with("mamba3/mamba3_mimo_bwd.py") ||
                         file.ends_with("mamba3/mamba3_mimo_bwd_varlen.py");
    return is_host ? "groups_refused" : "";
  }
};

}  // namespace
}  // namespace patchbench::mamba3_mimo_gqa_bwd

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::mamba3_mimo_gqa_bwd::MimoPack());
}
