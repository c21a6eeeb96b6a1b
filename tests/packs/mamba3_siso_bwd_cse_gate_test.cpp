// patchbench::mamba3_siso_gate_bwd against fp64 autograd through out silu(z), on every device of
// this machine and on its kernel and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "mamba3_siso_bwd_cse/gate.h"
#include "packs/op_test.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::mamba3_siso_gate_test {
namespace {

using at::Tensor;
using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::mamba3_siso_bwd_cse::GateGradients;
using ops::mamba3_siso_bwd_cse::mamba3_siso_gate_bwd;
using ops::mamba3_siso_bwd_cse::mamba3_siso_gate_bwd_path;

struct GateCase {
  std::string name;
  std::vector<int64_t> shape = {2, 37, 3, 64};
  double width = 1;  ///< of z
};

std::vector<GateCase> gate_cases() {
  return {{.name = "model"},
          {.name = "one_word", .shape = {8}},
          {.name = "whole_ctas", .shape = {2, 64, 1, 64}},
          {.name = "odd", .shape = {3, 5, 7}},
          {.name = "empty", .shape = {2, 0, 3, 64}},
          {.name = "wide_gate", .width = 30},
          {.name = "long", .shape = {1, 700, 5, 128}}};
}

/// In fp64, rounded to what the op is given.
struct Call {
  Tensor grad_gated, z, out;
  GateGradients backward() const { return mamba3_siso_gate_bwd({z, out}, grad_gated); }
  Call to(const std::string& device, at::ScalarType type) const {
    const auto moved = [&](const Tensor& t) { return t.to(at::Device(device), type); };
    return {moved(grad_gated), moved(z), moved(out)};
  }
};

Call problem_of(const GateCase& c, at::ScalarType type) {
  const auto draw = [&](const char* name, double width) {
    const Tensor drawn = harness::Draw(4, c.name + "/" + name).normal(c.shape) * width;
    return drawn.to(type).to(at::kDouble);
  };
  return {draw("grad_gated", 1), draw("z", c.width), draw("out", 1)};
}

GateGradients oracle(const Call& c) {
  const Tensor z = c.z.detach().clone().requires_grad_();
  const Tensor out = c.out.detach().clone().requires_grad_();
  const auto grads = torch::autograd::grad({out * at::silu(z)}, {z, out}, {c.grad_gated});
  return {grads[0], grads[1]};
}

/// The sizes of the terms that a gradient sums. 1 - sigmoid(z) is at least the rounding of the
/// sigmoid.
GateGradients terms_of(const Call& c, at::ScalarType type) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const double rounding = harness::epsilon_of(wide) / harness::epsilon_of(type);
  const Tensor share = c.z.sigmoid(), scaled = c.grad_gated * share;
  const Tensor rest = (1 - share).clamp_min(rounding);
  return {(scaled * c.out).abs() * (1 + c.z.abs() * rest), (scaled * c.z).abs()};
}

/// Of the worst element, in machine epsilons of its terms.
double error_of(const Tensor& got, const Tensor& wanted, const Tensor& terms, at::ScalarType type) {
  if (wanted.numel() == 0) return 0;
  const Tensor difference = (got.to(at::kCPU, at::kDouble) - wanted).abs();
  // Below 6.1e-5 float16 loses bits.
  return (difference / terms.clamp_min(1e-4)).max().item<double>() / harness::epsilon_of(type);
}
/// Low types: the result is rounded to half an epsilon at most, and the float32 value is right to
/// 2^-18. float32 and float64: six roundings and a sigmoid.
double bound_of(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble ? 6 : 0.51;
}

using Point = std::tuple<GateCase, std::string, at::ScalarType, Form>;
class GateBackward : public testing::TestWithParam<Point> {};

TEST_P(GateBackward, IsTheGradientOfTheFormulaAndRepeatsBitForBit) {
  const auto& [c, device, type, form] = GetParam();
  const Fallback fallback("mamba3_siso_bwd_cse", form);
  const Call p = problem_of(c, type), call = p.to(device, type);
  const bool uses_kernel =
      device != "cpu" && form == Form::kChosen && type == at::kBFloat16 && call.z.numel() % 8 == 0;
  EXPECT_EQ(mamba3_siso_gate_bwd_path({call.z, call.out}), uses_kernel ? "cuda" : "plain");
  const GateGradients wanted = oracle(p), got = call.backward(), again = call.backward();
  const GateGradients terms = terms_of(p, type);
  const auto expect = [&](const char* name, const Tensor& value, const Tensor& second,
                          const Tensor& reference, const Tensor& size) {
    ASSERT_EQ(value.sizes(), reference.sizes()) << name;
    ASSERT_EQ(value.scalar_type(), type) << name;
    const double error = error_of(value, reference, size, type);
    // A nan fails too.
    EXPECT_TRUE(error <= bound_of(type)) << name << ": " << error << " epsilons";
    EXPECT_TRUE(harness::compare_bitwise(name, second.cpu(), value.cpu()).pass) << name;
  };
  expect("z", got.z, again.z, wanted.z, terms.z);
  expect("out", got.out, again.out, wanted.out, terms.out);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GateBackward,
    testing::Combine(testing::ValuesIn(gate_cases()), testing::ValuesIn(devices()),
                     testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble),
                     testing::Values(Form::kChosen, Form::kPlain)),
    op_test::point_name<testing::TestParamInfo<Point>>);

TEST(GateBackwardOp, TakesStridedTensors) {
  for (const std::string& device : devices()) {
    Call c = problem_of({.name = "strided"}, at::kBFloat16).to(device, at::kBFloat16);
    const GateGradients wanted = c.backward();
    c.z = c.z.transpose(1, 2).contiguous().transpose(1, 2);
    // Bytes off the alignment of words.
    c.out = at::cat({c.out.new_zeros({1}), c.out.flatten()}).narrow(0, 1, c.out.numel());
    c.out = c.out.view_as(c.grad_gated);
    const GateGradients got = c.backward();
    EXPECT_TRUE(at::equal(got.z, wanted.z) && at::equal(got.out, wanted.out)) << device;
  }
}

TEST(GateBackwardOp, RefusesWhatItDoesNotTake) {
  const Call good = problem_of({.name = "refused"}, at::kFloat).to("cpu", at::kFloat);
  const auto refused = [&](const std::function<void(Call&)>& spoil) {
    Call c = good;
    spoil(c);
    return refusal([&] { c.backward(); });
  };
  EXPECT_EQ(refused([](Call& c) { c.z = c.z.to(at::kInt); }),
            "mamba3_siso_gate_bwd: z must have dtype float32, bfloat16, float16 or float64, got "
            "int32");
  EXPECT_EQ(refused([](Call& c) { c.out = c.out.to(at::kHalf); }),
            "mamba3_siso_gate_bwd: out must have dtype float32, got float16");
  EXPECT_EQ(refused([](Call& c) { c.grad_gated = c.grad_gated[0]; }),
            "mamba3_siso_gate_bwd: grad_gated must have shape [2, 37, 3, 64], got [37, 3, 64]");
  EXPECT_EQ(refused([](Call& c) { c.z.requires_grad_(); }), "nothing was refused");
}

#ifdef PATCHBENCH_CUDA
TEST(GateBackwardOp, CanBeCaptured) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a CUDA device";
  const Call c = problem_of({.name = "captured"}, at::kBFloat16).to("cuda:0", at::kBFloat16);
  const GateGradients wanted = c.backward();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const GateGradients got = c.backward();
  graph.capture_end();
  graph.replay();
  c10::cuda::device_synchronize();
  EXPECT_TRUE(at::equal(got.z, wanted.z) && at::equal(got.out, wanted.out));
}
#endif

}  // namespace
}  // namespace patchbench::mamba3_siso_gate_test
