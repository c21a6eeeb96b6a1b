// The reports of several processes of a subject become one.
#include "core/looked_at.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

Observation saying(const Json& said) {
  Observation o;
  o.self_reported = said;
  return o;
}

Json lines(const std::vector<std::string>& missed) {
  return {{"lines", {{"num", 5}, {"missed", missed}, {"text", 2}}}};
}

Json argument(const std::string& name, const std::vector<std::string>& values) {
  return {{"arguments", {{name, values}}}};
}

TEST(LookedAt, WhatEveryProcessMissedIsMissed) {
  const LookedAt looked = looked_at({saying(lines({"a.py:1", "a.py:2"})), saying(nullptr),
                                     saying(Json::object()), saying(lines({"a.py:2", "a.py:9"}))});
  ASSERT_TRUE(looked.lines);
  EXPECT_EQ(looked.lines->missed, std::set<std::string>{"a.py:2"});
  EXPECT_EQ(looked.lines->num, 5);
  EXPECT_EQ(looked.lines->num_text, 2);
  EXPECT_FALSE(looked_at({saying(Json::object())}).lines);
}

TEST(LookedAt, AnArgumentWithOneValueInAllProcessesIsNotLookedAt) {
  const LookedAt looked =
      looked_at({saying(argument("f(x)", {"1"})), saying(argument("f(x)", {"2", "3"})),
                 saying(argument("C.f(y)", {"None"})), saying(argument("C.f(y)", {"None"})),
                 saying(argument("g(z[k])", {}))});
  EXPECT_EQ(looked.arguments.at("f(x)").size(), 2u);
  EXPECT_EQ(not_looked_at(looked), (std::set<std::string>{"y = None", "z[k]"}));
}

TEST(LookedAt, NamesTheSizesThatEndBelowAModels) {
  EXPECT_EQ(sizes_below_a_models({{{"seqlen", 77}, {"vocab", 128256}, {"chunk", 4}},
                                  {{"seqlen", 128}, {"vocab", 9}, {"hidden", nullptr}}}),
            std::vector<std::string>{"seqlen up to 128"});
}

}  // namespace
}  // namespace patchbench
