// patchbench::mamba3_mimo_bwd against fp64 autograd through the recurrence, token by token, on
// every device of this machine and on its kernel and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "harness/compare.h"
#include "packs/mamba3_mimo_gqa_bwd_oracle.h"
#include "packs/op_test.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::mamba3_mimo_test {
namespace {

using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::mamba3_mimo_gqa_bwd::mamba3_mimo_bwd;
using ops::mamba3_mimo_gqa_bwd::mamba3_mimo_bwd_path;

// A gradient of a number per head (d; dt, trap of one token) is off by what cancels in its sum: the
// norm over four heads was 3.5 epsilons off where their sums happened to be small.
constexpr int64_t kManySums = 64;

// Longer than 60 lines: a table.
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
          {.name = "packed_empty", .lengths = {0, 20, 0, 16, 3, 0}},
          on_kernel({.name = "kernel_tail", .num_angles = 16}),
          on_kernel({.name = "kernel_all_angles", .seqlen = 32, .num_angles = 32}),
          on_kernel({.name = "kernel_odd_angles", .num_angles = 7}),
          on_kernel({.name = "kernel_one_rank", .seqlen = 130, .num_ranks = 1, .num_angles = 16}),
          on_kernel({.name = "kernel_two_ranks", .seqlen = 70, .num_ranks = 2, .num_angles = 16}),
          on_kernel({.name = "kernel_eight_ranks", .num_ranks = 8, .num_angles = 16}),
          on_kernel({.name = "kernel_all_heads", .num_groups = 4}),
          on_kernel({.name = "kernel_one_group", .num_groups = 1}),
          on_kernel({.name = "kernel_no_d", .has_d = false}),
          on_kernel({.name = "kernel_no_gate", .num_heads = kManySums, .has_z = false}),
          on_kernel({.name = "kernel_no_output", .has_o = false}),
          on_kernel({.name = "kernel_bare", .has_d = false, .has_z = false, .has_o = false}),
          on_kernel({.name = "kernel_wide_qk", .head_dim_qk = 128, .num_angles = 32}),
          on_kernel({.name = "kernel_wide_v", .head_dim_v = 128, .num_angles = 16}),
          on_kernel({.name = "kernel_widest",
                     .seqlen = 70,
                     .num_ranks = 1,
                     .head_dim_qk = 128,
                     .head_dim_v = 128,
                     .num_angles = 64}),
          on_kernel({.name = "kernel_wide_ranks",
                     .num_ranks = 8,
                     .head_dim_qk = 128,
                     .head_dim_v = 128,
                     .num_angles = 64}),
          on_kernel({.name = "kernel_steep", .steepest = 60}),
          on_kernel({.name = "kernel_one_token",
                     .batch = 1,
                     .seqlen = 1,
                     .num_heads = kManySums,
                     .num_angles = 0}),
          on_kernel({.name = "kernel_packed", .num_angles = 16, .lengths = {17, 16, 1, 40}}),
          on_kernel({.name = "kernel_packed_short", .num_ranks = 2, .lengths = {9, 1, 5, 4}}),
          on_kernel({.name = "kernel_packed_empty", .lengths = {0, 20, 0, 16, 3, 0}}),
          on_kernel({.name = "kernel_long",
                     .batch = 1,
                     .seqlen = 260,
                     .head_dim_qk = 128,
                     .num_angles = 32,
                     .steepest = 0.1})};
}

/// Of a norm, in machine epsilons. float64 and float32: sums within and over chunks in another
/// order, and half an ulp of a chunk's largest sum of adt, which e^{cs} makes a relative error. Low
/// types: one rounding of the result on the plain path, on the kernels' one operand of each product
/// too.
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
  const bool uses_kernel =
      device != "cpu" && form == Form::kChosen && c.has_kernel && type == at::kBFloat16;
  EXPECT_EQ(mamba3_mimo_bwd_path(in), uses_kernel ? "cuda" : "plain");
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

#ifdef PATCHBENCH_CUDA
TEST(MimoBackwardCudaGraph, IsCapturedAndReplaysOnOtherLengths) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const Problem p = problem_of(on_kernel({.name = "graph", .lengths = {70, 3, 64}}), at::kBFloat16);
  const MimoInputs in = inputs_on(p, at::kBFloat16, at::Device("cuda:0"));
  if (mamba3_mimo_bwd_path(in) != "cuda") GTEST_SKIP() << "no kernel for this GPU";
  const Tensor grad_out = p.grad_out.to(in.v.options());
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
  mamba3_mimo_bwd(in, grad_out);
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const MimoGradients replayed = mamba3_mimo_bwd(in, grad_out);
  graph.capture_end();
  // The last lengths are not a partition: wrong gradients, but no access out of bounds.
  for (const std::vector<int32_t>& bounds : {std::vector<int32_t>{0, 70, 130, 137},
                                             {0, 1, 1, 137},
                                             {0, 128, 136, 137},
                                             {0, 200, -5, 137}}) {
    in.cu_seqlens->copy_(torch::tensor(bounds, at::kInt));
    graph.replay();
    c10::cuda::device_synchronize();
    const MimoGradients wanted = mamba3_mimo_bwd(in, grad_out);
    if (bounds[2] < 0) continue;
    EXPECT_TRUE(at::equal(replayed.adt, wanted.adt) && at::equal(replayed.k, wanted.k)) << bounds;
  }
}
#endif

}  // namespace
}  // namespace patchbench::mamba3_mimo_test
