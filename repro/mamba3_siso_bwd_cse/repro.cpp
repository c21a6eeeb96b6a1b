// Pack mamba3_siso_bwd_cse: the gradients of the Mamba-3 SISO recurrence by fp64 autograd, how
// often the kernel's source forms a product, and the code that comes of it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/axes.h"
#include "harness/program.h"
#include "mamba3_siso_bwd_cse/model.h"
#include "mamba3_siso_bwd_cse/op.h"

namespace patchbench::mamba3_siso_bwd_cse {
namespace {

using at::Tensor;
using harness::choice;
using harness::Draw;
using harness::extent;
using harness::flag;
using harness::Judgement;
using harness::refuse;
using harness::Tensors;

const std::vector<std::string> kSites = {"backward", "whole", "counted", "source", "dots", "code"};

std::string site_of(const Case& item) { return choice(item, "site", kSites); }
/// "whole": the gradients of "backward", of the states that the release's own forward stores;
/// "counted": the gradients of "backward", and how they came about.
bool has_gradients(const Case& item) {
  const std::string site = site_of(item);
  return site == "backward" || site == "whole" || site == "counted";
}
at::ScalarType low_dtype(const Case& item) {
  const std::string name = choice(item, "dtype", {"float32", "float16", "bfloat16"});
  return name == "float32" ? at::kFloat : name == "float16" ? at::kHalf : at::kBFloat16;
}

/// The rows of a batch, or the packed sequences of its one row; and how many chunks a row has.
std::pair<std::vector<Sequence>, int64_t> sequences_of(const Case& item) {
  const int64_t batch = extent(item, "batch"), seqlen = extent(item, "seqlen"),
                chunk = extent(item, "chunk");
  std::vector<Sequence> sequences;
  const auto chunks_of = [&](int64_t length) { return (length + chunk - 1) / chunk; };
  if (!item.axes.contains("seqlens")) {
    for (int64_t b = 0; b < batch; ++b) sequences.push_back({b, 0, seqlen, 0});
    return {sequences, chunks_of(seqlen)};
  }
  int64_t start = 0, first_chunk = 0;
  for (const int64_t length : harness::lengths(item, "seqlens", seqlen)) {
    sequences.push_back({0, start, length, first_chunk});
    start += length;
    first_chunk += chunks_of(length);
  }
  if (batch != 1) refuse(item, "axis 'seqlens' wants a batch of 1");
  return {sequences, first_chunk};
}

// ---- inputs and right values ----

/// adt is drawn from -kMostDecay to -0.02, times the axis `decay_times`.
constexpr double kMostDecay = 0.55;
double decay_times(const Case& item) { return harness::factor(item, "decay_times"); }

/// What the recurrence of one sequence gives, and its states on the way.
struct Scanned {
  std::vector<Tensor> rows;    ///< y of each token [h, p]
  std::vector<Tensor> states;  ///< before each token, and after the last [h, p, n]
};

/// S_t = e^{a_t} S_{t-1} + v_t k_t^T, y_t = e^{a_t} S_{t-1} q_t + (qk_dot_t + d) v_t.
Scanned scan(const Tensors& t, const Sequence& sequence, Tensor state) {
  Scanned scanned;
  for (int64_t at = sequence.start; at < sequence.start + sequence.length; ++at) {
    const auto token = [&](const char* name) {
      return t.at(name).select(0, sequence.batch_idx).select(0, at);
    };
    const auto scalar = [&](const char* name) {
      return t.at(name).select(0, sequence.batch_idx).select(1, at);
    };
    scanned.states.push_back(state);
    const Tensor decayed = scalar("adt").exp().view({-1, 1, 1}) * state;
    Tensor own = scalar("qk_dot");
    if (t.contains("d")) own = own + t.at("d");
    scanned.rows.push_back(decayed.matmul(token("q").unsqueeze(-1)).squeeze(-1) +
                           own.unsqueeze(-1) * token("v"));
    state = decayed + token("v").unsqueeze(-1) * token("k").unsqueeze(-2);
  }
  scanned.states.push_back(state);
  return scanned;
}

/// Unit normals, keys and queries small enough for states of that size; `states` holds what each
/// chunk begins with, by the recurrence in fp64 from a drawn first state, or from none.
Tensors backward_inputs(const Case& item, uint64_t seed) {
  const int64_t b = extent(item, "batch"), s = extent(item, "seqlen"),
                h = extent(item, "num_heads"), n = extent(item, "head_dim_qk"),
                p = extent(item, "head_dim_v"), chunk = extent(item, "chunk");
  const at::ScalarType low = low_dtype(item);
  const auto draw = [&](const char* name) { return Draw(seed, item.name + "/" + name); };
  const auto normal = [&](const char* name, const std::vector<int64_t>& shape, double scale) {
    return (draw(name).normal(shape) * scale).to(low);
  };
  Tensors inputs = {
      {"q", normal("q", {b, s, h, n}, 0.5)},
      {"k", normal("k", {b, s, h, n}, 0.5)},
      {"v", normal("v", {b, s, h, p}, 1)},
      {"grad_out", normal("grad_out", {b, s, h, p}, 1)},
      {"adt",
       (draw("adt").uniform({b, h, s}, -kMostDecay, -0.02) * decay_times(item)).to(at::kFloat)},
      {"qk_dot", draw("qk_dot").normal({b, h, s}).to(at::kFloat)},
  };
  if (flag(item, "has_d")) inputs["d"] = draw("d").normal({h}).to(at::kFloat);
  const auto [sequences, num_chunks] = sequences_of(item);
  const auto num_sequences = static_cast<int64_t>(sequences.size());
  const std::vector<int64_t> per_sequence = {num_sequences, h, p, n};
  Tensor first = torch::zeros(per_sequence, at::kDouble);
  if (flag(item, "has_state")) {
    first = draw("first_state").normal(per_sequence);
    inputs["grad_final_state"] = draw("grad_final_state").normal(per_sequence).to(at::kFloat);
  }
  if (site_of(item) == "whole") {  // the forward forms it from q and k
    const Tensor products = inputs.at("q").to(at::kDouble) * inputs.at("k").to(at::kDouble);
    inputs["qk_dot"] = products.sum(-1).transpose(1, 2).to(at::kFloat).contiguous();
  }
  Tensors exact;
  for (const auto& [name, tensor] : inputs) exact[name] = tensor.to(at::kDouble);
  Tensor states = torch::zeros({b, h, num_chunks, p, n}, at::kDouble);
  for (int64_t i = 0; i < num_sequences; ++i) {
    const Scanned scanned = scan(exact, sequences[i], first[i]);
    for (int64_t at = 0, idx = sequences[i].first_chunk; at < sequences[i].length; at += chunk)
      states[sequences[i].batch_idx].select(1, idx++).copy_(scanned.states[at]);
  }
  inputs["states"] = states.to(low);
  return inputs;
}

/// What a caller may differentiate by, by name; `state` is the first of each sequence.
Tensors right_gradients(const Case& item, const Tensors& inputs, at::ScalarType type) {
  const auto [sequences, num_chunks] = sequences_of(item);
  Tensors leaves;
  std::vector<std::string> names = {"q", "k", "v", "adt", "qk_dot"};
  if (inputs.contains("d")) names.emplace_back("d");
  for (const std::string& name : names)
    leaves[name] = inputs.at(name).to(type).detach().clone().requires_grad_();
  std::vector<Tensor> first, by, results, grads;
  for (const Sequence& sequence : sequences) {
    const Tensor stored = inputs.at("states")[sequence.batch_idx].select(1, sequence.first_chunk);
    first.push_back(stored.to(type).detach().clone().requires_grad_());
    const Scanned scanned = scan(leaves, sequence, first.back());
    results.push_back(at::stack(scanned.rows));
    grads.push_back(inputs.at("grad_out")[sequence.batch_idx]
                        .narrow(0, sequence.start, sequence.length)
                        .to(type));
    if (!flag(item, "has_state")) continue;
    results.push_back(scanned.states.back());
    grads.push_back(inputs.at("grad_final_state")[static_cast<int64_t>(first.size()) - 1].to(type));
  }
  for (const std::string& name : names) by.push_back(leaves.at(name));
  if (flag(item, "has_state")) by.insert(by.end(), first.begin(), first.end());
  // Of single tokens that no state follows, k has no part in any result: its gradient is 0.
  auto found = torch::autograd::grad(results, by, grads, std::nullopt, false, true);
  for (size_t i = 0; i < found.size(); ++i)
    if (!found[i].defined()) found[i] = at::zeros_like(by[i]);
  Tensors values;
  for (size_t i = 0; i < names.size(); ++i) values["grad_" + names[i]] = found[i];
  if (flag(item, "has_state")) {
    values["grad_state"] = at::stack(
        std::vector<Tensor>(found.begin() + static_cast<int64_t>(names.size()), found.end()));
  }
  return values;
}

// ---- subjects of this process ----

Tensors op_gradients(const Case& item, const Tensors& inputs) {
  if (site_of(item) != "backward") throw harness::UnsupportedCase("the op has gradients alone");
  ops::mamba3_siso_bwd_cse::SisoInputs call{inputs.at("q"),
                                            inputs.at("k"),
                                            inputs.at("v"),
                                            inputs.at("adt"),
                                            inputs.at("qk_dot"),
                                            {},
                                            {},
                                            extent(item, "chunk")};
  if (inputs.contains("d")) call.d = inputs.at("d");
  if (item.axes.contains("seqlens")) {
    std::vector<int32_t> bounds = {0};
    for (const Sequence& sequence : sequences_of(item).first)
      bounds.push_back(static_cast<int32_t>(sequence.start + sequence.length));
    call.cu_seqlens = torch::tensor(bounds, at::kInt).to(call.q.device());
  }
  ops::mamba3_siso_bwd_cse::SisoSaved saved{inputs.at("grad_out"), inputs.at("states"), {}};
  if (inputs.contains("grad_final_state")) saved.grad_final_state = inputs.at("grad_final_state");
  auto grads = ops::mamba3_siso_bwd_cse::mamba3_siso_bwd(call, saved);
  for (int64_t i = 1; i < harness::backwards(item); ++i)
    grads = ops::mamba3_siso_bwd_cse::mamba3_siso_bwd(call, saved);
  Tensors values = {{"grad_q", grads.q.to(at::kFloat)},
                    {"grad_k", grads.k.to(at::kFloat)},
                    {"grad_v", grads.v.to(at::kFloat)},
                    {"grad_adt", grads.adt},
                    {"grad_qk_dot", grads.qk_dot}};
  if (call.d) values["grad_d"] = grads.d;
  if (saved.grad_final_state) values["grad_state"] = grads.initial_state;
  return values;
}

/// The model in one form: its gradients, and at the site "counted" the products and masks of a
/// chunk and the elements that differ from the form with the redundancy.
harness::InProcessSubject model_subject(Product form) {
  return [form](const Case& item, const Tensors& inputs) -> Tensors {
    if (!has_gradients(item)) throw harness::UnsupportedCase("the model is the gradients alone");
    const auto run = [&](Product as) {
      return ChunkedBackward(inputs, extent(item, "chunk"), as).run(sequences_of(item).first);
    };
    Backward got = run(form);
    if (site_of(item) == "backward") return got.grads;
    double differing = 0;
    for (const auto& [name, value] : run(Product::kThreeTimes).grads)
      differing += harness::compare_bitwise(name, got.grads.at(name), value).got;
    const auto number = [](double value) { return torch::full({}, value, at::kDouble); };
    const auto chunks = static_cast<double>(got.num_chunks);
    got.grads["value_products"] = number(static_cast<double>(got.num_products) / chunks);
    got.grads["value_masks"] = number(static_cast<double>(got.num_masks) / chunks);
    got.grads["elements_changed"] = number(differing);
    return got.grads;
  };
}

// ---- tolerances ----

constexpr const char* kSums =
    "twice the recurrence in float32; the floor is for sums over chunks in another order, 2e-6, "
    "and for decays from differences of sums of adt over a chunk, an epsilon of the largest sum";
constexpr const char* kHalf =
    "2^-9 and what cancels: float16 operands, products rounded to float16 before they are summed";
constexpr const char* kTensorCores =
    "operands of every product are rounded to bfloat16, 2^-9 each, and what is summed cancels";

constexpr const char* kRows =
    "need 118 (grad_v of 15 elements, 2000 drawn cases): a row of few elements may be a tenth of "
    "what its terms are";

// In epsilons of float32, 2^-23: 2e-6 and 3e-5, then 4e-3 and 1e-2, rows four times that.
const harness::Tolerances kFp32 = {{2, 16, kSums}, {2, 256, kRows}, {2, 16, kSums}, {2, 16, kSums}};
const harness::Tolerances kFp16 = {
    {2, 33555, kHalf}, {2, 134218, kHalf}, {2, 33555, kHalf}, {2, 33555, kHalf}};
const harness::Tolerances kBf16 = {{2, 83886, kTensorCores},
                                   {2, 335544, kTensorCores},
                                   {2, 83886, kTensorCores},
                                   {2, 83886, kTensorCores}};
constexpr const char* kWhole = "a count";
const harness::Tolerances kCount = {{0, 0, kWhole}, {0, 0, kWhole}, {0, 0, kWhole}, {0, 0, kWhole}};

class SisoPack : public harness::Pack {
 public:
  std::string slug() const override { return "mamba3_siso_bwd_cse"; }

  void check(const Case& item) const override {
    std::vector<std::string> known = {"site",  "head_dim_qk", "head_dim_v",
                                      "chunk", "has_d",       "has_state"};
    if (has_gradients(item)) {
      for (const char* name : {"batch", "seqlen", "num_heads", "dtype"}) known.emplace_back(name);
      if (item.axes.contains("seqlens")) known.emplace_back("seqlens");
      known = harness::with_optional(item, known, "decay_times");
      sequences_of(item);
      low_dtype(item);
    } else {
      for (const char* name : {"is_varlen", "arch", "num_warps", "num_stages"})
        known.emplace_back(name);
      if (item.axes.contains("recompute_mask")) known.emplace_back("recompute_mask");
    }
    harness::check_axes(item, known);
    for (const char* name : {"head_dim_qk", "head_dim_v"}) extent(item, name);
    for (const char* name : {"has_d", "has_state"}) flag(item, name);
  }

  at::ScalarType dtype(const Case&) const override { return at::kFloat; }

  Tensors inputs(const Case& item, uint64_t seed) const override {
    return has_gradients(item) ? backward_inputs(item, seed) : Tensors{};
  }

  Tensors oracle(const Case& item, const Tensors& inputs) const override {
    return values_in(item, inputs, at::kDouble);
  }
  Tensors plain(const Case& item, const Tensors& inputs) const override {
    return values_in(item, inputs, at::kFloat);
  }

  harness::Tolerances tolerances(const Case& item, const std::string& tensor) const override {
    if (!tensor.starts_with("grad_")) return kCount;
    const at::ScalarType low = low_dtype(item);
    if (low != at::kFloat) return low == at::kHalf ? kFp16 : kBf16;
    const int64_t tokens = std::min(extent(item, "chunk"), extent(item, "seqlen"));
    harness::Tolerances found = kFp32;
    for (auto* one : {&found.element, &found.row, &found.cosine, &found.scale})
      one->floor_ulp += kMostDecay * decay_times(item) * static_cast<double>(tokens);
    return found;
  }

  /// grad_d of a head is one sum over all tokens of terms of both signs, the elements of
  /// grad_qk_dot. Of few tokens each element of the others may be one product of <grad_out, v> or
  /// <q, k>, sums over a head's elements whose terms are of both signs.
  double least_size(const Case& item, const Tensors& inputs, const Tensors& oracle,
                    const std::string& tensor) const override {
    if (!has_gradients(item)) return 0;
    const auto of_elements = [&](const char* name) {  // the size of one, by the largest row
      const Tensor squares = inputs.at(name).to(at::kDouble).square().mean(-1);
      return std::sqrt(squares.max().item<double>());
    };
    const double q = of_elements("q"), k = of_elements("k"), v = of_elements("v"),
                 grad = of_elements("grad_out");
    const double scores = q * k * std::sqrt(static_cast<double>(extent(item, "head_dim_qk"))),
                 values = v * grad * std::sqrt(static_cast<double>(extent(item, "head_dim_v")));
    // A token's grad_qk_dot is the product of v and grad_out, grad_d the sum of them all.
    if (tensor == "grad_d") {
      const Tensor tokens = oracle.at("grad_qk_dot");
      const Tensor of_heads = at::linalg_vector_norm(tokens, 2, at::IntArrayRef{0, 2});
      return std::max(of_heads.max().item<double>(), values);
    }
    const std::map<std::string, double> sizes = {{"grad_q", values * k},
                                                 {"grad_k", values * q},
                                                 {"grad_v", scores * grad},
                                                 {"grad_qk_dot", values},
                                                 {"grad_adt", values * scores}};
    const auto found = sizes.find(tensor);
    return found == sizes.end() ? 0 : found->second;
  }

  std::map<std::string, harness::InProcessSubject> subjects() const override {
    return {{"model", model_subject(Product::kThreeTimes)},
            {"model_fixed", model_subject(Product::kOnce)},
            {"model_mutant:formed_twice", model_subject(Product::kTwice)},
            {"model_mutant:unmasked", model_subject(Product::kUnmasked)},
            {"model_mutant:transpose_lost", model_subject(Product::kTransposeLost)},
            {"model_mutant:modified_in_place", model_subject(Product::kModifiedInPlace)},
            {"op", op_gradients},
            {"op_mutant:unmasked", [](const Case& item, const Tensors& inputs) {
               // Wrong: a token's own product counts as an earlier one's.
               Tensors values = op_gradients(item, inputs);
               const Tensor own = values.at("grad_qk_dot").transpose(1, 2).unsqueeze(-1);
               values.at("grad_q") = values.at("grad_q") + own * inputs.at("k");
               return values;
             }}};
  }

  /// The states of the forward are read for grad_q and grad_adt alone: of the whole way these are
  /// wrong, or something was written after the states. Else right gradients from more products or
  /// masks than one; other wrong gradients have no class.
  std::string classify(const Case& item, const Judgement& judgement) const override {
    const std::set<std::string> of_states = {"grad_q", "grad_adt", "elements_past_states"};
    if (site_of(item) == "whole") {
      return std::all_of(judgement.measures.begin(), judgement.measures.end(),
                         [&](const Measure& m) { return m.pass || of_states.contains(m.tensor); })
                 ? "states_overlap"
                 : "";
    }
    const bool is_wrong =
        std::any_of(judgement.measures.begin(), judgement.measures.end(), [](const Measure& m) {
          return !m.pass && (m.tensor.starts_with("grad_") || m.tensor == "elements_changed");
        });
    return site_of(item) == "backward" || is_wrong ? "" : "redundant_product";
  }

 private:
  /// source, counted: the product of V and the transposed grad_output is formed and masked once a
  /// chunk, which changes no element of a gradient. dots:
  /// all products, with the edit, in the first IR and after Triton's own removal of common
  /// subexpressions.
  static Tensors values_in(const Case& item, const Tensors& inputs, at::ScalarType type) {
    const std::string site = site_of(item);
    Tensors values;
    if (has_gradients(item)) values = right_gradients(item, inputs, type);
    if (site == "backward") return values;
    const auto count = [](int64_t n) { return torch::full({}, n, at::kDouble); };
    if (site == "whole") {
      values["elements_past_states"] = count(0);
      return values;
    }
    if (site == "counted") values["elements_changed"] = count(0);
    if (site == "counted" || site == "source") {
      for (const char* name : {"value_products", "value_masks"}) values[name] = count(1);
      return values;
    }
    const int64_t of_d = flag(item, "has_d") ? 1 : 0;
    if (site == "dots") return {{"dots", count(13 + of_d)}, {"dots_after_cse", count(11 + of_d)}};
    return {};
  }
};

}  // namespace
}  // namespace patchbench::mamba3_siso_bwd_cse

int main(int argc, char** argv) {
  return patchbench::harness::run_reproducer(argc, argv,
                                             patchbench::mamba3_siso_bwd_cse::SisoPack());
}
