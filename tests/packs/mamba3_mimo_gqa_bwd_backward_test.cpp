// patchbench::mamba3_mimo_bwd against fp64 autograd through the recurrence, token by token, on
// every device of this machine and on its kernel and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "mamba3_mimo_gqa_bwd/op.h"
#include "packs/op_test.h"

namespace patchbench::mamba3_mimo_test {
namespace {

using at::Tensor;
using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::mamba3_mimo_gqa_bwd::mamba3_mimo_bwd;
using ops::mamba3_mimo_gqa_bwd::MimoGradients;
using ops::mamba3_mimo_gqa_bwd::MimoInputs;

struct MimoCase {
  std::string name;
  int64_t batch = 2, seqlen = 40, num_ranks = 4, num_heads = 4, num_groups = 2, head_dim_qk = 16,
          head_dim_v = 8, num_angles = 4;
  std::vector<int64_t> lengths = {};  ///< packed into batch 1 and seqlen = their sum
  bool has_d = true, has_z = true, has_o = true;
  double steepest = 0.5;  ///< -adt is below this
};

std::vector<MimoCase> mimo_cases() {
  return {{.name = "tail"},
          {.name = "whole_chunks", .seqlen = 32, .num_angles = 8},
          {.name = "one_rank", .seqlen = 70, .num_ranks = 1},
          {.name = "three_ranks", .num_ranks = 3},
          {.name = "eight_ranks", .seqlen = 19, .num_ranks = 8},
          {.name = "all_heads", .num_groups = 4},
          {.name = "one_group", .num_groups = 1},
          {.name = "no_d", .has_d = false},
          {.name = "no_gate", .has_z = false},
          {.name = "no_output", .has_o = false},
          {.name = "bare", .has_d = false, .has_z = false, .has_o = false},
          {.name = "no_angles", .num_angles = 0},
          {.name = "steep", .steepest = 60},
          // The turns of one token cancel: the gradient of its angles is 0, of rounding alone.
          {.name = "one_token", .batch = 1, .seqlen = 1, .num_angles = 0},
          {.name = "no_tokens", .seqlen = 0},
          {.name = "packed", .lengths = {17, 16, 1, 40}},
          {.name = "packed_short", .num_ranks = 2, .lengths = {9, 1, 5, 4}},
          {.name = "packed_empty", .lengths = {0, 20, 0, 16, 3, 0}}};
}

/// Leaves for the oracle in fp64, already rounded to what the op is given.
struct Problem {
  MimoInputs inputs;
  Tensor grad_out;
  std::vector<int64_t> begins;  ///< of sequences; the end last. Dense: 0, seqlen
};

Problem problem_of(const MimoCase& given, at::ScalarType low) {
  MimoCase c = given;
  Problem p{.begins = {0}};
  for (const int64_t length : c.lengths) p.begins.push_back(p.begins.back() + length);
  if (c.lengths.empty()) {
    p.begins.push_back(c.seqlen);
  } else {
    c.batch = 1;
    c.seqlen = p.begins.back();
  }
  const int64_t b = c.batch, s = c.seqlen, r = c.num_ranks, h = c.num_heads, n = c.head_dim_qk;
  const at::ScalarType wide = low == at::kDouble ? low : at::kFloat;
  const auto draw = [&](const char* name) { return harness::Draw(6, c.name + "/" + name); };
  const auto normal = [&](const char* name, std::vector<int64_t> shape, at::ScalarType type) {
    return draw(name).normal(std::move(shape)).to(type).to(at::kDouble);
  };
  const auto uniform = [&](const char* name, std::vector<int64_t> shape, double from, double to) {
    return draw(name).uniform(std::move(shape), from, to).to(wide).to(at::kDouble);
  };
  MimoInputs& in = p.inputs;
  in.q = normal("q", {b, s, r, c.num_groups, n}, low);
  in.k = normal("k", {b, s, r, c.num_groups, n}, low);
  in.v = normal("v", {b, s, h, c.head_dim_v}, low);
  in.adt = uniform("adt", {b, h, s}, -c.steepest, -1e-4);
  in.dt = uniform("dt", {b, h, s}, 0.05, 0.25);
  in.trap = normal("trap", {b, h, s}, low);
  in.q_bias = normal("q_bias", {h, r, n}, wide);
  in.k_bias = normal("k_bias", {h, r, n}, wide);
  in.mimo_v = normal("mimo_v", {h, r, c.head_dim_v}, wide);
  in.angles = uniform("angles", {b, s, h, c.num_angles}, -6.28, 6.28);
  if (c.has_d) in.d = normal("d", {h}, wide);
  if (c.has_o) in.mimo_o = normal("mimo_o", {h, r, c.head_dim_v}, wide);
  if (c.has_z) {
    in.z = normal("z", {b, s, h, c.head_dim_v}, low);
    in.mimo_z = normal("mimo_z", {h, r, c.head_dim_v}, wide);
  }
  if (!c.lengths.empty()) in.cu_seqlens = torch::tensor(p.begins, at::kLong).to(at::kInt);
  using Sizes = std::vector<int64_t>;
  p.grad_out = normal(
      "grad_out", c.has_o ? Sizes{b, s, h, c.head_dim_v} : Sizes{b, s, r, h, c.head_dim_v}, low);
  return p;
}

/// Pointers to all tensors that have gradients, in the order of MimoGradients; null where absent.
std::vector<Tensor*> leaves_of(MimoInputs& in) {
  const auto optional = [](std::optional<Tensor>& t) { return t ? &*t : nullptr; };
  return {&in.q,
          &in.k,
          &in.v,
          &in.adt,
          &in.dt,
          &in.trap,
          &in.q_bias,
          &in.k_bias,
          &in.mimo_v,
          optional(in.mimo_z),
          optional(in.mimo_o),
          &in.angles,
          optional(in.d),
          optional(in.z)};
}

std::vector<std::pair<std::string, Tensor>> named(const MimoGradients& g) {
  return {{"q", g.q},           {"k", g.k},
          {"v", g.v},           {"adt", g.adt},
          {"dt", g.dt},         {"trap", g.trap},
          {"q_bias", g.q_bias}, {"k_bias", g.k_bias},
          {"mimo_v", g.mimo_v}, {"mimo_z", g.mimo_z},
          {"mimo_o", g.mimo_o}, {"angles", g.angles},
          {"d", g.d},           {"z", g.z}};
}

/// The problem as the op takes it: q, k, v, z and trap low, the others wide.
MimoInputs inputs_on(const Problem& p, at::ScalarType low, const at::Device& device) {
  MimoInputs in = p.inputs;
  const at::ScalarType wide = low == at::kDouble ? low : at::kFloat;
  const auto leaves = leaves_of(in);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool is_low = i < 3 || i == 5 || i == 13;
    if (leaves[i]) *leaves[i] = leaves[i]->to(is_low ? low : wide).to(device);
  }
  if (in.cu_seqlens) in.cu_seqlens = in.cu_seqlens->to(device);
  return in;
}

Tensor turned(const Tensor& x, const Tensor& theta) {
  const int64_t count = theta.size(-1), half = x.size(-1) / 2;
  const Tensor cos = theta.cos(), sin = theta.sin();
  const Tensor a = x.slice(-1, 0, count), b = x.slice(-1, half, half + count);
  return at::cat(
      {a * cos - b * sin, x.slice(-1, count, half), a * sin + b * cos, x.slice(-1, half + count)},
      -1);
}

/// out of op.h's recurrence, one token after another.
Tensor recurrence(const MimoInputs& in, const std::vector<int64_t>& begins) {
  const int64_t share = in.v.size(2) / in.q.size(3);
  const auto per_head = [&](const Tensor& x, const Tensor& bias) {
    return turned(x.repeat_interleave(share, 3) + bias.transpose(0, 1), in.angles.unsqueeze(2));
  };
  const Tensor q = per_head(in.q, in.q_bias), k = per_head(in.k, in.k_bias);
  const Tensor x = in.v.unsqueeze(2) * in.mimo_v.transpose(0, 1);
  const Tensor weight = in.trap.sigmoid(), decay = in.adt.exp();
  std::vector<Tensor> rows;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    Tensor state, before;
    for (int64_t t = begins[i]; t < begins[i + 1]; ++t) {
      const auto at_t = [&](const Tensor& steps) {
        return steps.select(2, t).view({-1, x.size(3), 1, 1});
      };
      const Tensor now = at::einsum("brhp,brhn->bhpn", {x.select(1, t), k.select(1, t)});
      Tensor next = at_t(weight * in.dt) * now;
      if (t > begins[i])
        next = next + at_t(decay) * state + at_t((1 - weight) * in.dt * decay) * before;
      state = next;
      before = now;
      rows.push_back(at::einsum("bhpn,brhn->brhp", {state, q.select(1, t)}));
    }
  }
  Tensor y = rows.empty() ? x * 0 : at::stack(rows, 1);
  if (in.d) y = y + in.d->unsqueeze(-1) * x;
  if (in.z) y = y * at::silu(in.z->unsqueeze(2) * in.mimo_z->transpose(0, 1));
  return in.mimo_o ? (y * in.mimo_o->transpose(0, 1)).sum(2) : y;
}

/// The right gradients, in the order of MimoGradients; [0] for absent inputs.
std::vector<Tensor> oracle(const Problem& p) {
  MimoInputs in = p.inputs;
  std::vector<Tensor> present, all;
  for (Tensor* leaf : leaves_of(in)) {
    if (leaf) present.push_back(*leaf = leaf->detach().clone().requires_grad_());
  }
  const auto grads = torch::autograd::grad({recurrence(in, p.begins)}, present, {p.grad_out},
                                           std::nullopt, false, /*allow_unused=*/true);
  size_t next = 0;
  for (const Tensor* leaf : leaves_of(in)) {
    all.push_back(!leaf                   ? torch::zeros({0}, at::kDouble)
                  : grads[next].defined() ? grads[next]
                                          : torch::zeros_like(*leaf));
    next += leaf != nullptr;
  }
  return all;
}

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.detach().cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

/// Of a norm, in machine epsilons. float64 and float32: sums within and over chunks in another
/// order, and half an ulp of a chunk's largest sum of adt, which e^{cs} makes a relative error. Low
/// types: one rounding of the result on the plain path.
double bound_of(const MimoCase& c, at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat ? 40 + c.steepest * 16 : 1;
}

/// The first gradient that is further off than the bound, or "".
std::string first_wrong(const MimoCase& c, at::ScalarType type, const MimoGradients& got,
                        const std::vector<Tensor>& wanted) {
  const auto all = named(got);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [name, tensor] = all[i];
    if (tensor.sizes() != wanted[i].sizes()) return name + ": its shape";
    const double error = relative(tensor, wanted[i]) / harness::epsilon_of(type);
    // A nan is wrong too.
    if (!(error <= bound_of(c, type))) return name + ": " + std::to_string(error) + " epsilons";
  }
  return "";
}

using Point = std::tuple<MimoCase, std::string, at::ScalarType, Form>;
class MimoBackward : public testing::TestWithParam<Point> {
 protected:
  /// The tensors are too small to share.
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(MimoBackward, IsTheGradientOfTheRecurrenceAndRepeatsBitForBit) {
  const auto& [c, device, type, form] = GetParam();
  if (device == "cpu" && form == Form::kPlain) GTEST_SKIP() << "there is no other form on a CPU";
  const Fallback fallback("mamba3_mimo_gqa_bwd", form);
  const Problem p = problem_of(c, type);
  MimoInputs in = inputs_on(p, type, at::Device(device));
  const Tensor grad_out = p.grad_out.to(in.v.options());
  const MimoGradients got = mamba3_mimo_bwd(in, grad_out);
  EXPECT_EQ(first_wrong(c, type, got, oracle(p)), "");
  const auto first = named(got), again = named(mamba3_mimo_bwd(in, grad_out));
  const auto leaves = leaves_of(in);
  for (size_t i = 0; i < first.size(); ++i) {
    const auto& [name, tensor] = first[i];
    const auto wanted_type = leaves[i] ? leaves[i]->scalar_type() : tensor.scalar_type();
    EXPECT_EQ(tensor.scalar_type(), wanted_type) << name;
    EXPECT_TRUE(harness::compare_bitwise(name, again[i].second.cpu(), tensor.cpu()).pass) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MimoBackward,
    testing::Combine(testing::ValuesIn(mimo_cases()), testing::ValuesIn(devices()),
                     testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                     testing::Values(Form::kChosen, Form::kPlain)),
    op_test::point_name<testing::TestParamInfo<Point>>);

/// A wrong way to ask for the gradients, and the gradient by which it shows first.
struct Mutant {
  std::string name;
  std::function<MimoGradients(MimoInputs, const Tensor&)> run;
  std::string shows_in;
};

std::vector<Mutant> mutants() {
  const auto changed = [](const std::function<void(MimoInputs&)>& change) {
    return [change](MimoInputs in, const Tensor& grad_out) {
      change(in);
      return mamba3_mimo_bwd(in, grad_out);
    };
  };
  // Head h counted for group h % G.
  const auto strided = [](Tensor& t) { t = t.index_select(3, torch::tensor({1, 0})); };
  return {{"packed_as_one", changed([](auto& in) { in.cu_seqlens.reset(); }), "q"},
          {"other_groups", changed([&](auto& in) { strided(in.q), strided(in.k); }), "q"},
          {"no_bias", changed([](auto& in) { in.q_bias = at::zeros_like(in.q_bias); }), "k"},
          {"angles_backwards", changed([](auto& in) { in.angles = -in.angles; }), "q"},
          {"no_trapezoid", changed([](auto& in) { in.trap = in.trap + 40; }), "q"},
          {"no_decay", changed([](auto& in) { in.adt = in.adt * 0; }), "q"},
          {"no_d", changed([](auto& in) { in.d->zero_(); }), "v"},
          {"ranks_alike", changed([](auto& in) { in.mimo_v = in.mimo_v.flip(1); }), "q"},
          {"grad_out_shifted",
           [](const MimoInputs& in, const Tensor& g) { return mamba3_mimo_bwd(in, g.roll(1, 1)); },
           "q"},
          {"swapped_q_k",
           [](const MimoInputs& in, const Tensor& g) {
             MimoGradients grads = mamba3_mimo_bwd(in, g);
             std::swap(grads.q, grads.k);
             return grads;
           },
           "q"}};
}

TEST(MimoMutant, IsSeen) {
  const MimoCase c{.name = "mutants", .lengths = {17, 16, 1, 6}};
  const Problem p = problem_of(c, at::kFloat);
  const std::vector<Tensor> wanted = oracle(p);
  const MimoInputs in = inputs_on(p, at::kFloat, at::kCPU);
  const Tensor grad_out = p.grad_out.to(at::kFloat);
  EXPECT_EQ(first_wrong(c, at::kFloat, mamba3_mimo_bwd(in, grad_out), wanted), "");
  for (const Mutant& mutant : mutants()) {
    MimoInputs own = in;
    if (own.d) own.d = own.d->clone();
    const std::string wrong = first_wrong(c, at::kFloat, mutant.run(own, grad_out), wanted);
    EXPECT_EQ(wrong.substr(0, wrong.find(':')), mutant.shows_in) << mutant.name << " " << wrong;
  }
}

TEST(MimoBackwardOp, TakesStridedTensors) {
  for (const std::string& device : devices()) {
    const Problem p = problem_of({.name = "strided"}, at::kBFloat16);
    MimoInputs in = inputs_on(p, at::kBFloat16, at::Device(device));
    const Tensor grad_out = p.grad_out.to(in.v.options());
    const MimoGradients wanted = mamba3_mimo_bwd(in, grad_out);
    in.q = in.q.transpose(1, 2).contiguous().transpose(1, 2);
    // Contiguous, but two bytes off the alignment that the kernels copy at.
    in.k = at::cat({in.k.new_zeros({1}), in.k.flatten()}).narrow(0, 1, in.k.numel()).view_as(in.k);
    const MimoGradients got = mamba3_mimo_bwd(in, grad_out);
    EXPECT_TRUE(at::equal(got.q, wanted.q) && at::equal(got.k, wanted.k)) << device;
  }
}

TEST(MimoBackwardOp, HasAFakeImplementation) {
  const Problem p = problem_of({.name = "fake", .has_d = false}, at::kHalf);
  const MimoInputs in = inputs_on(p, at::kHalf, at::kMeta);
  const MimoGradients got = mamba3_mimo_bwd(in, p.grad_out.to(in.v.options()));
  EXPECT_EQ(got.k.sizes(), in.k.sizes());
  EXPECT_EQ(got.trap.scalar_type(), at::kHalf);
  EXPECT_EQ(got.q_bias.scalar_type(), at::kFloat);
  EXPECT_EQ(got.d.numel(), 0);
}

TEST(MimoBackwardOp, RefusesInOneLine) {
  const Problem p = problem_of({.name = "refused", .lengths = {33, 40}}, at::kFloat);
  const MimoInputs in = inputs_on(p, at::kFloat, at::kCPU);
  const Tensor grad_out = p.grad_out.to(at::kFloat);
  const auto refused = [&](const std::function<void(MimoInputs&)>& change) {
    MimoInputs changed = in;
    change(changed);
    return refusal([&] { mamba3_mimo_bwd(changed, grad_out); });
  };
  EXPECT_EQ(refused([](auto& i) { i.q = i.q[0]; }),
            "mamba3_mimo_bwd: q must have 5 axes [batch, seqlen, num_ranks, num_groups, "
            "head_dim_qk], got 4");
  EXPECT_EQ(refused([](auto& i) { i.q = i.q.to(at::kInt); }),
            "mamba3_mimo_bwd: q must have dtype float32, bfloat16, float16 or float64, got int32");
  EXPECT_EQ(refused([](auto& i) { i.q = i.q.repeat({1, 1, 1, 2, 1}).narrow(3, 0, 3); }),
            "mamba3_mimo_bwd: num_groups must divide num_heads = 4, got 3");
  EXPECT_EQ(refused([](auto& i) { i.k = i.k.to(at::kHalf); }),
            "mamba3_mimo_bwd: k must have dtype float32, got float16");
  EXPECT_EQ(refused([](auto& i) { i.adt = i.adt.transpose(1, 2); }),
            "mamba3_mimo_bwd: adt must have shape [1, 4, 73], got [1, 73, 4]");
  EXPECT_EQ(refused([](auto& i) { i.trap = i.trap.to(at::kHalf); }),
            "mamba3_mimo_bwd: trap must have dtype float32 or float32, got float16");
  EXPECT_EQ(refused([](auto& i) { i.mimo_z.reset(); }),
            "mamba3_mimo_bwd: z and mimo_z must be given together");
  EXPECT_EQ(refused([](auto& i) { i.mimo_o.reset(); }),
            "mamba3_mimo_bwd: grad_out must have shape [1, 73, 4, 4, 8], got [1, 73, 4, 8]");
  EXPECT_EQ(refused([](auto& i) { i.angles = i.angles.repeat({1, 1, 1, 3}); }),
            "mamba3_mimo_bwd: angles must have 4 axes, the last at most 8, got shape [1, 73, 4, "
            "12]");
  EXPECT_EQ(refused([](auto& i) { i.cu_seqlens = torch::tensor({0, 33, 70}, at::kInt); }),
            "mamba3_mimo_bwd: cu_seqlens must go from 0 to 73, got 0 to 70");
  EXPECT_EQ(refused([](auto& i) { i.cu_seqlens = torch::tensor({0, 80, 73}, at::kInt); }),
            "mamba3_mimo_bwd: cu_seqlens must not decrease, got 80 before 73");
}

}  // namespace
}  // namespace patchbench::mamba3_mimo_test
