// patchbench::mamba3_siso_rotary_bwd against fp64 autograd through the formulas, on every device of
// this machine and on its kernel and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "harness/compare.h"
#include "mamba3_siso_bwd_cse_rotary_reference.h"
#include "packs/op_test.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::mamba3_siso_rotary_test {
namespace {

using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;

std::vector<RotaryCase> rotary_cases() {
  return {{.name = "model"},
          {.name = "all_turned", .num_angles = 64},
          {.name = "narrow", .head_dim_qk = 64, .num_angles = 16},
          {.name = "narrow_all_turned", .head_dim_qk = 64, .num_angles = 32},
          {.name = "whole_blocks", .batch = 1, .seqlen = 128},
          {.name = "one_group", .num_groups = 1},
          {.name = "own_groups", .seqlen = 33, .num_groups = 6},
          {.name = "odd_heads", .seqlen = 70, .num_groups = 1, .num_heads = 3},
          {.name = "one_token", .batch = 1, .seqlen = 1},
          {.name = "no_tokens", .seqlen = 0},
          {.name = "no_batch", .batch = 0},
          {.name = "few_angles", .head_dim_qk = 24, .num_angles = 5},
          {.name = "no_angles", .head_dim_qk = 8, .num_angles = 0},
          {.name = "many_tokens", .batch = 1, .seqlen = 1000, .num_groups = 1, .num_heads = 2},
          {.name = "long_blocks",
           .seqlen = 3180,
           .num_groups = 16,
           .num_heads = 16,
           .head_dim_qk = 64,
           .num_angles = 16,
           .is_cuda_only = true}};
}

/// In machine epsilons of the element type, of a norm. Low types: the result is rounded to half an
/// epsilon at most. float32 and float64: sums of up to 1000 terms.
double bound_of(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble ? 20 : 0.5;
}

using Point = std::tuple<RotaryCase, std::string, at::ScalarType, Form>;
class RotaryBackward : public testing::TestWithParam<Point> {};

TEST_P(RotaryBackward, IsTheGradientOfTheFormulasAndRepeatsBitForBit) {
  const auto& [c, device, type, form] = GetParam();
  if (c.is_cuda_only && device == "cpu") GTEST_SKIP() << "a case for the kernels";
  const Fallback fallback("mamba3_siso_bwd_cse", form);
  const Call p = problem_of(c, type);
  const Call call = call_on(p, type, device);
  const bool uses_kernel =
      device != "cpu" && form == Form::kChosen && type == at::kBFloat16 && c.head_dim_qk % 64 == 0;
  EXPECT_EQ(mamba3_siso_rotary_bwd_path(call.inputs), uses_kernel ? "cuda" : "plain");
  const auto wanted = named(oracle(p));
  const auto got = named(mamba3_siso_rotary_bwd(call.inputs, call.grad_outputs));
  const auto again = named(mamba3_siso_rotary_bwd(call.inputs, call.grad_outputs));
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    ASSERT_EQ(tensor.sizes(), wanted[i].second.sizes()) << name;
    const bool is_low = name == "q" || name == "k" || name == "angles";
    ASSERT_EQ(tensor.scalar_type(), is_low ? type : wide_of(type)) << name;
    const double error = relative(tensor, wanted[i].second) / harness::epsilon_of(type);
    // A nan fails too.
    EXPECT_TRUE(error <= bound_of(type)) << name << ": " << error << " epsilons";
    EXPECT_TRUE(harness::compare_bitwise(name, again[i].second.cpu(), tensor.cpu()).pass) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RotaryBackward,
    testing::Combine(testing::ValuesIn(rotary_cases()), testing::ValuesIn(devices()),
                     testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble),
                     testing::Values(Form::kChosen, Form::kPlain)),
    op_test::point_name<testing::TestParamInfo<Point>>);

/// A wrong backward and a gradient that must tell.
struct Mutant {
  std::string name, gradient;
  std::function<RotaryGradients(Call)> make;
};

RotaryGradients backward_of(const Call& call) {
  return mamba3_siso_rotary_bwd(call.inputs, call.grad_outputs);
}

/// Tokens as rows of their own: nothing goes from one to another.
RotaryGradients by_token(Call c) {
  const auto of_row = [](Tensor& t) { t = t.flatten(0, 1).unsqueeze(1); };
  const auto of_scalar = [](Tensor& t) { t = t.transpose(1, 2).flatten(0, 1).unsqueeze(2); };
  const int64_t batch = c.inputs.q.size(0), seqlen = c.inputs.q.size(1);
  for (Tensor* t : {&c.inputs.q, &c.inputs.k, &c.inputs.angles, &c.inputs.angles_cumsum,
                    &c.grad_outputs.q_rotated, &c.grad_outputs.k_scaled})
    of_row(*t);
  for (Tensor* t : {&c.inputs.dt, &c.inputs.trap, &c.grad_outputs.qk_dot}) of_scalar(*t);
  RotaryGradients g = backward_of(c);
  for (Tensor* t : {&g.q, &g.k, &g.angles}) *t = t->squeeze(1).unflatten(0, {batch, seqlen});
  for (Tensor* t : {&g.dt, &g.trap})
    *t = t->squeeze(2).unflatten(0, {batch, seqlen}).transpose(1, 2);
  return g;
}

std::vector<Mutant> mutants() {
  const auto with = [](const std::function<void(Call&)>& spoil) {
    return [=](Call c) {
      spoil(c);
      return backward_of(c);
    };
  };
  std::vector<Mutant> m;
  for (const char* gradient : {"q", "q_bias", "angles", "dt"})
    m.push_back(
        {"turned_the_other_way", gradient, with([](Call& c) { c.inputs.angles_cumsum.neg_(); })});
  for (const char* gradient : {"q", "q_bias", "angles"})
    m.push_back({"heads_in_turns", gradient, with([](Call& c) {
                   c.grad_outputs.q_rotated = c.grad_outputs.q_rotated.roll(1, 2);
                 })});
  for (const char* gradient : {"k", "angles", "dt", "trap"})
    m.push_back({"without_bias", gradient, with([](Call& c) { c.inputs.q_bias.zero_(); })});
  for (const char* gradient : {"k", "k_bias", "angles", "dt", "trap"})
    m.push_back({"each_token_alone", gradient, by_token});
  for (const char* gradient : {"q", "k", "dt", "trap"})
    m.push_back(
        {"own_product_left_out", gradient, with([](Call& c) { c.grad_outputs.qk_dot.zero_(); })});
  m.push_back(
      {"angles_without_their_slope", "angles", with([](Call& c) { c.inputs.angles.zero_(); })});
  m.push_back({"one_row_of_the_batch", "k_bias",
               with([](Call& c) { c.grad_outputs.k_scaled[1].zero_(); })});
  return m;
}

TEST(RotaryMutant, IsSeen) {
  for (const std::string& device : devices()) {
    const Call p = problem_of({.name = "mutants"}, at::kBFloat16);
    const auto wanted = named(oracle(p));
    for (const Mutant& mutant : mutants()) {
      const auto got = named(mutant.make(call_on(p, at::kBFloat16, device)));
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i].first != mutant.gradient) continue;
        const double error =
            relative(got[i].second, wanted[i].second) / harness::epsilon_of(at::kBFloat16);
        EXPECT_GT(error, 8 * bound_of(at::kBFloat16)) << mutant.name << " " << mutant.gradient;
      }
    }
  }
}

TEST(RotaryBackwardOp, TakesStridedTensors) {
  for (const std::string& device : devices()) {
    Call c = call_on(problem_of({.name = "strided"}, at::kBFloat16), at::kBFloat16, device);
    const RotaryGradients wanted = backward_of(c);
    Tensor& grad = c.grad_outputs.q_rotated;
    grad = grad.transpose(1, 2).contiguous().transpose(1, 2);
    // One row of angles for all heads, as the layer has it, and bytes off the alignment of words.
    Tensor& k = c.inputs.k;
    k = at::cat({k.new_zeros({1}), k.flatten()}).narrow(0, 1, k.numel()).view_as(k);
    const RotaryGradients got = backward_of(c);
    EXPECT_TRUE(at::equal(got.q, wanted.q) && at::equal(got.k, wanted.k)) << device;
    EXPECT_TRUE(at::equal(got.angles, wanted.angles) && at::equal(got.dt, wanted.dt)) << device;
  }
}

TEST(RotaryBackwardOp, RefusesWhatItDoesNotTake) {
  const Call good = call_on(problem_of({.name = "refused"}, at::kFloat), at::kFloat, at::kCPU);
  const auto refused = [&](const std::function<void(Call&)>& spoil) {
    Call c = good;
    spoil(c);
    return refusal([&] { backward_of(c); });
  };
  EXPECT_EQ(refused([](Call& c) { c.inputs.q = c.inputs.q[0]; }),
            "mamba3_siso_rotary_bwd: q must have 4 axes [batch, seqlen, num_groups, head_dim_qk], "
            "got 3");
  EXPECT_EQ(refused([](Call& c) { c.inputs.q = c.inputs.q.to(at::kInt); }),
            "mamba3_siso_rotary_bwd: q must have dtype float32, bfloat16, float16 or float64, got "
            "int32");
  EXPECT_EQ(refused([](Call& c) { c.inputs.k = c.inputs.k.narrow(2, 0, 1); }),
            "mamba3_siso_rotary_bwd: k must have shape [2, 150, 2, 128], got [2, 150, 1, 128]");
  EXPECT_EQ(refused([](Call& c) {
              for (Tensor* t : {&c.inputs.q_bias, &c.inputs.k_bias}) *t = t->narrow(0, 0, 5);
            }),
            "mamba3_siso_rotary_bwd: num_groups must divide num_heads = 5, got 2");
  EXPECT_EQ(refused([](Call& c) { c.inputs.angles = at::zeros({2, 150, 6, 65}); }),
            "mamba3_siso_rotary_bwd: angles must have 4 axes [batch, seqlen, num_heads, "
            "num_angles], 2 num_angles <= 128, got [2, 150, 6, 65]");
  EXPECT_EQ(refused([](Call& c) { c.inputs.trap = c.inputs.trap.to(at::kHalf); }),
            "mamba3_siso_rotary_bwd: trap must have dtype float32, got float16");
  EXPECT_EQ(refused([](Call& c) { c.inputs.dt.requires_grad_(); }), "nothing was refused");
}

#ifdef PATCHBENCH_CUDA
TEST(RotaryBackwardOp, CanBeCaptured) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a CUDA device";
  const Call c = call_on(problem_of({.name = "captured"}, at::kBFloat16), at::kBFloat16, at::kCUDA);
  const RotaryGradients wanted = backward_of(c);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const RotaryGradients got = backward_of(c);
  graph.capture_end();
  graph.replay();
  c10::cuda::device_synchronize();
  for (size_t i = 0; i < named(got).size(); ++i)
    EXPECT_TRUE(at::equal(named(got)[i].second, named(wanted)[i].second)) << named(got)[i].first;
}
#endif

}  // namespace
}  // namespace patchbench::mamba3_siso_rotary_test
