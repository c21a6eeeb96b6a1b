#include "harness/space.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"

namespace patchbench::harness {
namespace {

bool takes_all(const Json&) { return true; }

Json drawn(const Space& space, uint64_t seed, uint64_t index) {
  return space.draw(seed, index, takes_all).value();
}

Space space_of(const std::string& axes, const std::string& most = "{}") {
  return Space({{"name", "some"}, {"axes", Json::parse(axes)}, {"most", Json::parse(most)}});
}

/// The last of a chain of first children that keep `holds`.
Json smallest(const Space& space, const Json& from, const Space::IsLegal& holds) {
  auto tree = space.tree(from, takes_all);
  for (int i = 0; i < 100; ++i) {
    auto children = tree.shrinks();
    auto next = children.next();
    while (next && !holds(next->value())) next = children.next();
    if (!next) return tree.value();
    tree = *next;
  }
  throw std::runtime_error("no end");
}

TEST(Space, ACaseIsAFunctionOfSeedAndIndex) {
  const Space space = space_of(R"({"rows": {"from": 1, "to": 5000}, "dtype": ["a", "b"]})");
  std::set<Json> all;
  for (uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(drawn(space, 1, i), drawn(space, 1, i));
    all.insert(drawn(space, 1, i));
    all.insert(drawn(space, 2, i));
  }
  EXPECT_GT(all.size(), 60U);
}

TEST(Space, WholeNumbersReachTheEdgesOddOnesAndTheNeighboursOfPowersOfTwo) {
  const Space space = space_of(R"({"rows": {"from": 1, "to": 1000}})");
  std::set<int64_t> status;
  for (uint64_t i = 0; i < 400; ++i) status.insert(drawn(space, 1, i)["rows"].get<int64_t>());
  for (const int64_t value : {1, 2, 3, 15, 16, 17, 127, 128, 129, 511, 512, 513, 1000})
    EXPECT_TRUE(status.contains(value)) << value;
  EXPECT_EQ(*status.begin(), 1);
  EXPECT_EQ(*status.rbegin(), 1000);
}

TEST(Space, AxesThatReferToOthersHold) {
  const Space space = space_of(R"({"groups": {"divides": "heads"}, "heads": {"from": 1, "to": 64},
    "top": {"from": 1, "to": "heads"}, "lengths": {"lengths_of": "heads", "most": 4},
    "empty": {"lengths_of": "heads", "most": 4, "from": 0},
    "times": {"power_of": 2, "from": -24, "to": 16}, "wide": {"from": 16, "to": 64, "step": 16},
    "whole": {"from": "groups", "to": 200, "step": "groups"}, "qk, v": [[576, 512], [128, 64]]})");
  std::set<int64_t> num_lengths;
  bool has_empty = false;
  for (uint64_t i = 0; i < 200; ++i) {
    const Json axes = drawn(space, 1, i);
    const auto heads = axes["heads"].get<int64_t>();
    EXPECT_EQ(heads % axes["groups"].get<int64_t>(), 0);
    EXPECT_LE(axes["top"].get<int64_t>(), heads);
    for (const char* name : {"lengths", "empty"}) {
      int64_t total = 0;
      for (const Json& length : axes[name]) {
        total += length.get<int64_t>();
        has_empty |= length == 0;
        EXPECT_TRUE(length > 0 || name == std::string("empty"));
      }
      EXPECT_EQ(total, heads);
    }
    num_lengths.insert(static_cast<int64_t>(axes["lengths"].size()));
    EXPECT_EQ(axes["wide"].get<int64_t>() % 16, 0);
    EXPECT_EQ(axes["whole"].get<int64_t>() % axes["groups"].get<int64_t>(), 0);
    EXPECT_EQ(axes["v"], axes["qk"] == 576 ? 512 : 64);
    EXPECT_GE(axes["times"].get<double>(), std::ldexp(1.0, -24));
  }
  EXPECT_TRUE(has_empty);
  EXPECT_EQ(num_lengths.size(), 4U);
}

TEST(Space, ALimitOnAProductHolds) {
  const Space space = space_of(R"({"a": {"from": 1, "to": 1000}, "b": {"from": 1, "to": 1000}})",
                               R"({"a*b": 2000})");
  int64_t widest = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const Json axes = drawn(space, 1, i);
    EXPECT_LE(axes["a"].get<int64_t>() * axes["b"].get<int64_t>(), 2000);
    widest = std::max(widest, axes["a"].get<int64_t>());
  }
  EXPECT_GT(widest, 500);
}

TEST(Space, TheTreeLeadsToTheSmallestThatHolds) {
  const Space space = space_of(
      R"({"rows": {"from": 1, "to": 300}, "heads": {"from": 1, "to": 64},
          "groups": {"divides": "heads"}, "dtype": ["a", "b", "c"], "layout": [null, "x"]})");
  const Json from = {{"rows", 217}, {"heads", 48}, {"groups", 12}, {"dtype", "c"}, {"layout", "x"}};
  const Json least = smallest(space, from, [](const Json& axes) {
    return axes["rows"] > 30 && axes["groups"] > 1 && axes["groups"] < axes["heads"];
  });
  EXPECT_EQ(least, Json::parse(R"({"rows": 31, "heads": 4, "groups": 2, "dtype": "a"})"));
}

TEST(Space, StepsOfDifferentAxesAreJoined) {
  const Space space = space_of(R"({"a": {"from": 1, "to": 9}, "b": {"from": 1, "to": "a"}})");
  const Json joined =
      space.joined({{"a", 9}, {"b", 8}}, {{{"a", 9}, {"b", 3}}, {{"a", 4}, {"b", 4}}});
  EXPECT_EQ(joined, Json::parse(R"({"a": 4, "b": 3})"));
}

TEST(Space, WhatIsNoFormIsRefused) {
  for (const char* axes : {R"({"a": []})", R"({"a": {"from": 1}})", R"({"a": {"divides": "b"}})",
                           R"({"a": {"from": 1, "to": "b"}, "b": {"from": 1, "to": "a"}})",
                           R"({"a, b": [[1]]})", R"({"a": {"from": 1, "to": 2, "of": 3}})"})
    EXPECT_THROW(space_of(axes), Error) << axes;
  EXPECT_THROW(space_of(R"({"a": [1]})", R"({"a*b": 3})"), Error);
  const Space space = space_of(R"({"a": [1, 2]})");
  EXPECT_THROW(space.draw(1, 1, [](const Json&) { return false; }), Error);
}

TEST(Space, AValueThatCannotBeJudgedIsLeftOut) {
  Space space = space_of(R"({"dtype": ["float32", "bfloat16"]})");
  space.leave_out("dtype", "bfloat16");
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(drawn(space, 1, i)["dtype"], "float32");
}

}  // namespace
}  // namespace patchbench::harness
