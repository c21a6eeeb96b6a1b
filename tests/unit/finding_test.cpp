#include "core/finding.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

TEST(Described, NoRegressionNamesWhatWasCompared) {
  QuestionContext question{.question = Question::kRegression, .subject = "patched"};
  question.ratios_max = {{"lowering", {{"registers", 1.03}, {"spills", 1.03}, {"loads", 2}}},
                         {"other", {{"registers", 1}}}};
  const Outcome outcome{Sentinel::kNoRegression, "", "2 cases right", ""};
  EXPECT_EQ(
      described(outcome, question),
      "NO_REGRESSION of registers, spills (case lowering, each at most 1.03 times upstream's) "
      "and loads (case lowering, each at most 2 times upstream's) "
      "and registers (case other, each at most 1 times upstream's)");
}

TEST(Described, WhatWasEarnedSaysWhichCasesItRestsOn) {
  QuestionContext question{.question = Question::kValidate, .subject = "patched"};
  const Outcome outcome{Sentinel::kFixValidated, "", "26 cases green", ""};
  EXPECT_EQ(described(outcome, question), "FIX_VALIDATED (older run)");
  question.has_regions = true;
  EXPECT_EQ(described(outcome, question), "FIX_VALIDATED (no random cases)");
  question.num_drawn = 100;
  EXPECT_EQ(described(outcome, question), "FIX_VALIDATED (100 random cases)");
}

TEST(QuestionKey, OfAReproductionOverNamedCasesIsAnother) {
  QuestionContext question{.question = Question::kReproduce};
  EXPECT_TRUE(QuestionKey(question).is(Question::kReproduce));
  question.is_partial = true;
  EXPECT_FALSE(QuestionKey(question).is(Question::kReproduce));
  EXPECT_EQ(QuestionKey(question).text(), "named_cases");
  question.question = Question::kValidate;  // whose sentinel says it
  EXPECT_TRUE(QuestionKey(question).is(Question::kValidate));
}

TEST(Described, OtherOutcomesAreTheirText) {
  const QuestionContext question{.question = Question::kRegression, .subject = "patched"};
  EXPECT_EQ(described({std::nullopt, "", "over 1.03 times", ""}, question), "NONE");
  EXPECT_EQ(described({Sentinel::kBugReproduced, "wrong", "", ""}, question),
            "BUG_REPRODUCED(wrong)");
}

}  // namespace
}  // namespace patchbench
