#include "core/explain.h"

#include <gtest/gtest.h>

#include "core/condition.h"

namespace patchbench {
namespace {

using Rules = std::vector<std::string>;

JudgedInput input(const std::string& name, bool is_red, Json axes) {
  return {name, std::move(axes), is_red};
}

/// The explanation of the inputs; its rules, read again, tell them apart.
Explanation checked(const std::vector<JudgedInput>& inputs) {
  Explanation got = explain(inputs);
  for (const JudgedInput& one : inputs) {
    if (got.rules.empty()) continue;
    EXPECT_EQ(is_red_by(got.rules, one.axes), one.is_red) << one.axes;
  }
  return got;
}

TEST(Explain, ARangeBetweenTwoAxesIsFound) {
  std::vector<JudgedInput> inputs;
  for (const int heads : {4, 6, 8, 16}) {
    for (int groups = 1; groups <= heads; ++groups) {
      if (heads % groups == 0)
        inputs.push_back(input("", 1 < groups && groups < heads,
                               {{"num_heads", heads}, {"num_groups", groups}, {"seqlen", 16}}));
    }
  }
  const Explanation got = checked(inputs);
  EXPECT_EQ(got.rules, (Rules{"red where num_groups < num_heads and num_groups > 1", "green"}));
  EXPECT_EQ(got.num_red, 8);
  EXPECT_EQ(got.num_green, 8);
}

TEST(Explain, AWordABooleanAndADivisorAreFound) {
  const auto explained = [](const char* axis, const Json& red, const Json& green) {
    return checked({input("a", true, {{axis, red}, {"n", 3}}),
                    input("b", false, {{axis, green}, {"n", 3}})})
        .rules.at(0);
  };
  EXPECT_EQ(explained("grad_output", "random", "ones"), "red where grad_output is random");
  EXPECT_EQ(explained("is_packed", true, false), "red where is_packed");
  EXPECT_EQ(explained("is_packed", false, true), "red where not is_packed");
  std::vector<JudgedInput> widths;
  for (const int width : {16, 24, 40, 48, 56, 64, 80, 88})
    widths.push_back(input("", width % 16 != 0, {{"width", width}}));
  EXPECT_EQ(checked(widths).rules.at(0), "red where 16 does not divide width");
}

TEST(Explain, TwoWaysToBeRedAreJoined) {
  const std::vector<JudgedInput> inputs = {
      input("a", true, {{"dtype", "fp8"}, {"has_bias", true}}),
      input("b", true, {{"dtype", "half"}, {"has_bias", true}}),
      input("c", true, {{"dtype", "fp8"}, {"has_bias", false}}),
      input("d", false, {{"dtype", "half"}, {"has_bias", false}}),
      input("e", false, {{"dtype", "float"}, {"has_bias", false}})};
  EXPECT_EQ(checked(inputs).rules.at(0), "red where dtype is fp8 or has_bias");
}

TEST(Explain, WhereTwoTermsDoNotServeADecisionListDoes) {
  std::vector<JudgedInput> inputs;
  for (const char* reduction : {"none", "mean", "sum"}) {
    for (const char* gradient : {"random", "mask", "ones", "one"}) {
      const bool is_uniform = std::string(gradient).starts_with("one");
      inputs.push_back(input("", std::string(reduction) == "none" && !is_uniform,
                             {{"reduction", reduction}, {"gradient", gradient}}));
    }
  }
  EXPECT_EQ(checked(inputs).rules,
            (Rules{"green where reduction is not none", "red where gradient is mask",
                   "green where gradient is not random", "red"}));
}

TEST(Explain, WhatNothingSeparatesHasNoRules) {
  const std::vector<JudgedInput> same = {input("a", true, {{"n", 1}}),
                                         input("b", false, {{"n", 1}})};
  EXPECT_TRUE(checked(same).rules.empty());
  EXPECT_TRUE(checked(same).differ.empty());
  EXPECT_TRUE(checked({input("a", true, {{"n", 1}})}).rules.empty());
  std::vector<JudgedInput> every_third;
  for (int n = 1; n <= 30; ++n) every_third.push_back(input("", n % 3 == 0, {{"n", n}}));
  EXPECT_TRUE(checked(every_third).rules.empty());
}

TEST(Explain, TheNearestGreenInputIsNamedByWhatDiffers) {
  const Explanation got = checked({input("red", true, {{"m", 1}, {"n", 4}, {"k", 2}}),
                                   input("far", false, {{"m", 3}, {"n", 1}, {"k", 2}}),
                                   input("near", false, {{"m", 1}, {"n", 1}, {"k", 2}})});
  EXPECT_EQ(got.green, "near");
  EXPECT_EQ(got.differ, std::vector<std::string>{"n (4, 1)"});
}

TEST(Explain, AnAxisThatAnInputLacksSatisfiesNoTerm) {
  const std::vector<JudgedInput> inputs = {input("a", true, {{"site", "x"}, {"topk", 8}}),
                                           input("b", false, {{"site", "y"}}),
                                           input("c", false, {{"site", "x"}, {"topk", 2}})};
  EXPECT_EQ(checked(inputs).rules.at(0), "red where topk > 2");
}

}  // namespace
}  // namespace patchbench
