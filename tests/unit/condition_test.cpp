#include "core/condition.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench {
namespace {

const Json kAxes = {{"tokens", 33},      {"hidden", 64},        {"dtype", "float16"},
                    {"is_packed", true}, {"has_bias", false},   {"seqlens", {0, 48}},
                    {"factor", 0.5},     {"grad.uniform", true}};

bool holds(const std::string& text) { return Condition(text).holds(kAxes); }

TEST(Condition, ComparesAnAxisWithANumberOrAnotherAxis) {
  EXPECT_TRUE(holds("tokens > 32"));
  EXPECT_FALSE(holds("tokens > 33"));
  EXPECT_TRUE(holds("tokens < hidden"));
  EXPECT_FALSE(holds("hidden < tokens"));
  EXPECT_TRUE(holds("tokens == 33"));
  EXPECT_TRUE(holds("tokens != hidden"));
  EXPECT_TRUE(holds("factor < 1"));
  EXPECT_FALSE(holds("dtype > 3"));
}

TEST(Condition, SaysWhatDivides) {
  EXPECT_TRUE(holds("11 divides tokens"));
  EXPECT_TRUE(holds("2 does not divide tokens"));
  EXPECT_FALSE(holds("tokens divides hidden"));
  EXPECT_FALSE(holds("0 divides tokens"));
}

TEST(Condition, ReadsWordsAndBooleans) {
  EXPECT_TRUE(holds("dtype is float16"));
  EXPECT_TRUE(holds("dtype is not float32"));
  EXPECT_TRUE(holds("seqlens is [0,48]"));
  EXPECT_TRUE(holds("is_packed"));
  EXPECT_FALSE(holds("not is_packed"));
  EXPECT_TRUE(holds("not has_bias"));
  EXPECT_TRUE(holds("grad.uniform"));
  EXPECT_TRUE(holds("dtype is given"));
}

TEST(Condition, JoinsByAndBeforeOr) {
  EXPECT_TRUE(holds("tokens > 40 or hidden > 40 and is_packed"));
  EXPECT_FALSE(holds("tokens > 40 and is_packed or has_bias"));
}

TEST(Condition, ATermAboutAnAxisThatIsNotThereDoesNotHold) {
  for (const char* text :
       {"absent > 1", "absent != 1", "absent is x", "absent is not x", "absent", "not absent",
        "2 divides absent", "2 does not divide absent", "absent is given", "tokens < absent"})
    EXPECT_FALSE(holds(text)) << text;
}

TEST(Condition, RefusesWhatIsNoTerm) {
  for (const char* text : {"", "tokens >", "tokens is", "a b", "tokens > 3 and ", "x = 3"})
    EXPECT_THROW(Condition{text}, Error) << text;
}

TEST(Condition, ADecisionListIsReadFromItsFirstRuleOn) {
  const std::vector<std::string> rules = {"green where tokens < 10", "red where is_packed",
                                          "green"};
  EXPECT_TRUE(is_red_by(rules, kAxes));
  EXPECT_FALSE(is_red_by(rules, {{"tokens", 5}, {"is_packed", true}}));
  EXPECT_FALSE(is_red_by(rules, {{"tokens", 50}, {"is_packed", false}}));
  EXPECT_THROW(is_red_by({"red where is_packed"}, {{"is_packed", false}}), Error);
  EXPECT_THROW(is_red_by({"blue where is_packed", "red"}, kAxes), Error);
}

}  // namespace
}  // namespace patchbench
