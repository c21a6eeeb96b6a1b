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

/// The parameters of a Mamba mixer with two layers: A_log and D are its own, dt_bias is not.
Problem of_mixer(at::ScalarType dtype) {
  return {.dtype = dtype,
          .tensors = {"A_log", "D", "counts", "dt_bias"},
          .marked = {},
          .own = {"A_log", "D"}};
}
Tensors mixer() {
  const auto filled = [](double value) { return at::full({2, 3}, value, at::kFloat); };
  return {{"A_log", filled(1.3)},        {"A_log.grad", filled(0.7)},
          {"D", filled(1.01)},           {"dt_bias", filled(kStart)},
          {"dt_bias.grad", filled(0.7)}, {"counts", (1 << 20) + at::arange(6).view({2, 3})}};
}

struct Bits {
  at::ScalarType dtype;
  double ulp;  ///< at kStart
};

class Model : public testing::TestWithParam<Bits> {
 protected:
  Problem problem(Update update, int64_t steps) const {
    return {.dtype = GetParam().dtype,
            .tensors = {"A_log", "D", "counts", "dt_bias", "running", "weight"},
            .marked = {"A_log", "dt_bias"},
            .own = {},
            .is_frozen = false,
            .update = update,
            .steps = steps};
  }
  static double first(const at::Tensor& tensor) { return tensor.to(at::kDouble)[0].item<double>(); }
  /// dt_bias after 1,000 steps.
  static double trained(const Problem& problem, Cast cast) {
    return first(wrapped(inputs(), problem, cast).at("dt_bias"));
  }
};

TEST_P(Model, KeepsTheBitsOfWhatIsMarkedAndCastsTheRest) {
  const Tensors got = wrapped(inputs(), problem(Update::kNone, 0), Cast::kAllButKept);
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

TEST_P(Model, KeepsWhatAMixerMakesInFloat32WithItsGradient) {
  const Tensors got = wrapped(mixer(), of_mixer(GetParam().dtype), Cast::kAllButKept);
  for (const char* name : {"A_log", "A_log.grad", "D"})
    EXPECT_TRUE(at::equal(got.at(name), mixer().at(name))) << name;
  for (const char* name : {"dt_bias", "dt_bias.grad"})
    EXPECT_TRUE(at::equal(got.at(name), mixer().at(name).to(GetParam().dtype))) << name;
  EXPECT_FALSE(got.contains("D.grad"));
}

TEST_P(Model, TheDefectAndTheMarkAloneRoundWhatAMixerMakesAndAHalfFixItsGradient) {
  const Problem problem = of_mixer(GetParam().dtype);
  for (const Cast cast : {Cast::kEvery, Cast::kMarkedAlone})
    EXPECT_EQ(wrapped(mixer(), problem, cast).at("A_log").scalar_type(), GetParam().dtype);
  const Tensors half = wrapped(mixer(), problem, Cast::kGradientsOfKept);
  EXPECT_TRUE(at::equal(half.at("A_log"), mixer().at("A_log")));
  EXPECT_EQ(half.at("A_log.grad").scalar_type(), GetParam().dtype);
}

TEST_P(Model, ObjectsNumberTheTensorsAndSayWhichRequireAGradient) {
  Problem problem = of_mixer(GetParam().dtype);
  const auto row = [&] { return objects(problem, 2)[1]; };
  EXPECT_TRUE(at::equal(row(), at::tensor({7.0F, 11.0F, 12.0F, 19.0F})));
  problem.is_frozen = true;
  EXPECT_TRUE(at::equal(row(), at::tensor({6.0F, 10.0F, 12.0F, 18.0F})));
}

TEST_P(Model, SmallStepsInPlaceChangeNothingIn16Bits) {
  const Problem problem = this->problem(Update::kInPlace, 1000);
  EXPECT_EQ(trained(problem, Cast::kEvery), first(inputs().at("dt_bias").to(GetParam().dtype)));
  EXPECT_NEAR(trained(problem, Cast::kAllButKept), kStart + 1000 * kStep, 1000 * kHalfUlpOfFloat);
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
