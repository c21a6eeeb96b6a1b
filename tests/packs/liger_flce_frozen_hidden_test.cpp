// The model of pack liger_flce_frozen_hidden: right but for what its condition leaves out.
#include "liger_flce_frozen_hidden/model.h"

#include <gtest/gtest.h>

#include "harness/compare.h"

namespace patchbench::liger_flce_frozen_hidden {
namespace {

using harness::Tensors;
using linear_cross_entropy::Problem;

Problem problem_of(const std::string& reduction) {
  Problem problem{.tokens = 61,
                  .hidden = 8,
                  .vocab = 40,
                  .grad_output = reduction == "none" ? "random" : "ones",
                  .ignored = "scattered",
                  .layout = "row_major",
                  .has_bias = true};
  problem.options.reduction = reduction;
  problem.options.label_smoothing = 0.1;
  problem.options.lse_square_scale = 0.01;
  return problem;
}

class Model : public testing::TestWithParam<const char*> {
 protected:
  const Problem problem_ = problem_of(GetParam());
  const Tensors inputs_ = harness::in_fp64(linear_cross_entropy::inputs_of(problem_, "case", 1));
  Tensors got(const Trained& trained, Condition condition) const {
    return chunked(inputs_, problem_.options, trained, condition);
  }
  Tensors right(const Trained& trained) const {
    return wanted(linear_cross_entropy::reference(inputs_, problem_.options), trained, true);
  }
};

const Trained kEach[] = {{.weight = true},
                         {.bias = true},
                         {.weight = true, .bias = true},
                         {.hidden = true},
                         {.hidden = true, .weight = true, .bias = true}};

TEST_P(Model, IsRightWhereAnyOfTheThreeDecides) {
  for (const Trained& trained : kEach) {
    const Tensors got = this->got(trained, Condition::kAny), right = this->right(trained);
    ASSERT_EQ(got.size(), right.size());
    for (const auto& [name, tensor] : right)
      EXPECT_LT(harness::errors_of(got.at(name), tensor).element, 1e-12) << name;
  }
}

TEST_P(Model, HasNoGradientOfTheHeadWhereHiddenDecides) {
  const bool is_none = std::string(GetParam()) == "none";
  for (const Trained& trained : kEach) {
    const Tensors got = this->got(trained, Condition::kHidden), right = this->right(trained);
    ASSERT_EQ(got.size(), right.size());
    for (const auto& [name, tensor] : right) {
      if (name == "loss" || trained.hidden || is_none) {
        EXPECT_LT(harness::errors_of(got.at(name), tensor).element, 1e-12) << name;
      } else {
        EXPECT_EQ(got.at(name).numel(), 0) << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LigerFlceFrozenHidden, Model, testing::Values("mean", "sum", "none"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace patchbench::liger_flce_frozen_hidden
