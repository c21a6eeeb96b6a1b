// The model of pack megatron_float16_cast: what each cast leaves, and what steps make of dt_bias.
#include "megatron_float16_cast/model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace patchbench::megatron_float16_cast {
namespace {

using harness::Tensors;

constexpr double kStart = -4.61,
                 kStep = 1e-4;               // kStep is far below half an ulp of kStart in 16 bits
constexpr double kHalfUlpOfFloat = 0x1p-22;  // at kStart: what each step may be rounded by

Tensors inputs() {
  const auto filled = [](double value) { return at::full({3}, value, at::kFloat); };
  return {{"dt_bias", filled(kStart)},
          {"A_log", filled(1.3)},
          {"D", filled(1.01)},
          {"running", filled(0.7)},
          {"weight", filled(0.1)},
          {"counts", (1 << 20) + at::arange(3)},
          {"dt", at::zeros({2, 3}, at::kFloat)},
          {"update", filled(kStep)}};
}

struct Bits {
  at::ScalarType dtype;
  double ulp;  ///< at kStart
};

class Model : public testing::TestWithParam<Bits> {
 protected:
  Problem problem(Update update, int64_t steps) const {
    return {GetParam().dtype, {"A_log", "dt_bias"}, update, steps};
  }
  static double first(const at::Tensor& tensor) { return tensor.to(at::kDouble)[0].item<double>(); }
  /// dt_bias after 1,000 steps.
  static double trained(const Problem& problem, Cast cast) {
    return first(wrapped(inputs(), problem, cast).at("dt_bias"));
  }
};

TEST_P(Model, KeepsTheBitsOfWhatIsMarkedAndCastsTheRest) {
  const Tensors got = wrapped(inputs(), problem(Update::kNone, 0), Cast::kUnmarked);
  for (const char* name : {"A_log", "dt_bias"})
    EXPECT_TRUE(at::equal(got.at(name), inputs().at(name)));
  for (const char* name : {"D", "running", "weight"})
    EXPECT_TRUE(at::equal(got.at(name), inputs().at(name).to(GetParam().dtype))) << name;
  EXPECT_TRUE(at::equal(got.at("counts"), inputs().at("counts").to(at::kFloat)));
}

TEST_P(Model, TheDefectRoundsWhatIsMarkedAndAWiderTypeDoesNotBringItBack) {
  const Tensors every = wrapped(inputs(), problem(Update::kNone, 0), Cast::kEvery);
  const Tensors widened = wrapped(inputs(), problem(Update::kNone, 0), Cast::kEveryThenWiden);
  EXPECT_EQ(every.at("dt_bias").scalar_type(), GetParam().dtype);
  EXPECT_EQ(widened.at("dt_bias").scalar_type(), at::kFloat);
  EXPECT_EQ(first(every.at("dt_bias")), first(widened.at("dt_bias")));
  EXPECT_NE(first(every.at("dt_bias")), first(inputs().at("dt_bias")));
}

TEST_P(Model, SmallStepsInPlaceChangeNothingIn16Bits) {
  const Problem problem = this->problem(Update::kInPlace, 1000);
  EXPECT_EQ(trained(problem, Cast::kEvery), first(inputs().at("dt_bias").to(GetParam().dtype)));
  EXPECT_NEAR(trained(problem, Cast::kUnmarked), kStart + 1000 * kStep, 1000 * kHalfUlpOfFloat);
}

TEST_P(Model, MainParamsKeepTheStepsButNotWhatTheCastRoundedAway) {
  const double got = trained(problem(Update::kMainParams, 1000), Cast::kEvery);
  const double wanted = kStart + 1000 * kStep;
  EXPECT_LT(std::abs(got - wanted), GetParam().ulp);
  EXPECT_GT(std::abs(got - wanted), GetParam().ulp / 100);
}

INSTANTIATE_TEST_SUITE_P(MegatronFloat16Cast, Model,
                         testing::Values(Bits{at::kBFloat16, 0x1p-5}, Bits{at::kHalf, 0x1p-8}),
                         [](const auto& each) {
                           return std::string(at::toString(each.param.dtype));
                         });

}  // namespace
}  // namespace patchbench::megatron_float16_cast
