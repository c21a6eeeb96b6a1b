#include "core/split.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

using Parts = std::vector<std::string>;

TEST(Split, LeavesOutTheSpacesAroundEachPart) {
  EXPECT_EQ(split("tokens, vocab ,hidden", ","), (Parts{"tokens", "vocab", "hidden"}));
  EXPECT_EQ(split("a b and c", " and "), (Parts{"a b", "c"}));
  EXPECT_EQ(split("one", ","), Parts{"one"});
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_EQ(split("", ","), Parts{""});
  EXPECT_EQ(split(" , ", ","), (Parts{"", ""}));
  EXPECT_EQ(split("a,,b,", ","), (Parts{"a", "", "b", ""}));
}

}  // namespace
}  // namespace patchbench
