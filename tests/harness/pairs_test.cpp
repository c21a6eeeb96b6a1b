#include "harness/pairs.h"

#include <gtest/gtest.h>

namespace patchbench::harness {
namespace {

TEST(PairCoverage, APairOfValuesIsNewOnce) {
  PairCoverage pairs;
  const Json axes = {{"dtype", "float16"}, {"layout", "strided"}, {"bias", true}};
  EXPECT_EQ(pairs.weight_of_new(axes), 3);
  pairs.take(axes);
  EXPECT_EQ(pairs.weight_of_new(axes), 0);
  EXPECT_EQ(pairs.weight_of_new({{"dtype", "float16"}, {"layout", "strided"}, {"bias", false}}), 2);
  EXPECT_EQ(pairs.weight_of_new({{"dtype", "float16"}, {"bias", true}}), 0);
}

TEST(PairCoverage, ANumberStandsForItsSizeItsParityAndAPowerOfTwo) {
  PairCoverage pairs;
  pairs.take({{"rows", 520}, {"dtype", "float16"}});
  EXPECT_EQ(pairs.weight_of_new({{"rows", 1000}, {"dtype", "float16"}}), 0);  // 512 to 1023, even
  EXPECT_EQ(pairs.weight_of_new({{"rows", 521}, {"dtype", "float16"}}), 0.25);
  EXPECT_EQ(pairs.weight_of_new({{"rows", 512}, {"dtype", "float16"}}), 0.25);
  EXPECT_EQ(pairs.weight_of_new({{"rows", 300}, {"dtype", "float16"}}), 0.25);
}

TEST(PairCoverage, AFactorStandsForItsPowerAndLengthsForTheirNumber) {
  PairCoverage pairs;
  pairs.take({{"times", 0.0078125}, {"lengths", {3, 0, 5}}});
  EXPECT_EQ(pairs.weight_of_new({{"times", 0.0078125}, {"lengths", {1, 7, 0}}}), 0);
  EXPECT_EQ(pairs.weight_of_new({{"times", 0.00390625}, {"lengths", {3, 0, 5}}}), 0.5);
  EXPECT_EQ(pairs.weight_of_new({{"times", 0.0078125}, {"lengths", {3, 2, 3}}}), 0.25);
}

}  // namespace
}  // namespace patchbench::harness
