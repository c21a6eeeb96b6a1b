// The model of pack zero2_grad_accumulation: right but for what it keeps of the micro-batches.
#include "zero2_grad_accumulation/model.h"

#include <gtest/gtest.h>

#include "harness/compare.h"

namespace patchbench::zero2_grad_accumulation {
namespace {

using harness::Tensors;

Tensors inputs(int64_t num_steps, int64_t num_micro) {
  at::manual_seed(21);
  const auto options = at::TensorOptions(at::kDouble);
  return {{"x", at::randn({2, num_steps, num_micro, 3, 5}, options)},
          {"y", at::randn({2, num_steps, num_micro, 3, 4}, options)},
          {"w1", at::randn({6, 5}, options)},
          {"b1", at::randn({6}, options)},
          {"w2", at::randn({4, 6}, options)},
          {"b2", at::randn({4}, options)}};
}

/// What all rows of a step give as one batch.
std::vector<at::Tensor> of_one_batch(const Tensors& given, double times) {
  std::vector<at::Tensor> parameters;
  for (const std::string& name : kParameters) parameters.push_back(given.at(name));
  return micro_gradients(parameters, given.at("x").reshape({-1, 5}), given.at("y").reshape({-1, 4}),
                         times);
}

TEST(Zero2GradAccumulation, AllMicroBatchesGiveTheGradientOfOneBatch) {
  const Tensors given = inputs(1, 4), got = trained(given, 8, Kept::kAll);
  const auto right = of_one_batch(given, 8);
  for (std::size_t i = 0; i < kParameters.size(); ++i) {
    EXPECT_LT(harness::errors_of(got.at("grad_" + kParameters[i]), right[i]).element, 1e-12);
    const at::Tensor after = given.at(kParameters[i]) - right[i] * (kRate / 8);
    EXPECT_LT(harness::errors_of(got.at("after_" + kParameters[i]), after).element, 1e-12);
  }
}

TEST(Zero2GradAccumulation, TheDefectGivesTheLastMicroBatchOverTheNumberOfAll) {
  const Tensors given = inputs(1, 4), got = trained(given, 1, Kept::kLast);
  Tensors last = given;
  for (const char* name : {"x", "y"}) last.at(name) = last.at(name).slice(2, 3);
  const auto right = of_one_batch(last, 0.25), whole = of_one_batch(given, 1);
  for (std::size_t i = 0; i < kParameters.size(); ++i) {
    EXPECT_LT(harness::errors_of(got.at("grad_" + kParameters[i]), right[i]).element, 1e-12);
    EXPECT_GT(harness::errors_of(got.at("grad_" + kParameters[i]), whole[i]).element, 0.1);
  }
}

TEST(Zero2GradAccumulation, TheMeanOfWhatEachRankComputesAloneIsTheGradient) {
  const Tensors given = inputs(1, 4), right = trained(given, 8, Kept::kAll);
  const Tensors first = trained(of_rank(given, 0), 8, Kept::kAll),
                second = trained(of_rank(given, 1), 8, Kept::kAll);
  for (const std::string& parameter : kParameters) {
    const std::string name = "grad_" + parameter;
    const at::Tensor mean = (first.at(name) + second.at(name)) / 2;
    EXPECT_LT(harness::errors_of(mean, right.at(name)).element, 1e-12);
    EXPECT_GT(harness::errors_of(first.at(name), right.at(name)).element, 0.01);
  }
}

TEST(Zero2GradAccumulation, OneMicroBatchHidesTheDefectAndOneStepWhatIsNotCleared) {
  for (const auto& [num_steps, num_micro, kept, is_hidden] : {std::tuple{3, 1, Kept::kLast, true},
                                                              {3, 1, Kept::kFirst, true},
                                                              {1, 3, Kept::kEveryStep, true},
                                                              {3, 3, Kept::kEveryStep, false},
                                                              {3, 3, Kept::kFirst, false}}) {
    const Tensors given = inputs(num_steps, num_micro);
    const Tensors right = trained(given, 1, Kept::kAll), got = trained(given, 1, kept);
    for (const auto& [name, tensor] : right)
      EXPECT_EQ(harness::errors_of(got.at(name), tensor).element < 1e-12, is_hidden) << name;
  }
}

}  // namespace
}  // namespace patchbench::zero2_grad_accumulation
