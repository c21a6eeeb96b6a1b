#include "harness/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "harness/attention.h"

namespace patchbench::harness {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kEpsilon = 0x1p-23;
constexpr Tolerances kExact = {Tolerance{0, 0, "exact"}, Tolerance{0, 0, "exact"},
                               Tolerance{0, 1e-6, "exact up to fp64 sums"},
                               Tolerance{0, 1e-6, "exact up to fp64 sums"}};
constexpr Tolerances kPlain = {Tolerance{2, 1, "test"}, Tolerance{2, 1, "test"},
                               Tolerance{2, 1, "test"}, Tolerance{2, 1, "test"}};

at::Tensor matrix(std::vector<double> values, int64_t rows) {
  const auto columns = static_cast<int64_t>(values.size()) / rows;
  return at::tensor(values, at::kDouble).reshape({rows, columns});
}

/// The layer of `name`, or a measure without a layer.
Measure layer(const std::vector<Measure>& layers, const std::string& name) {
  for (const Measure& m : layers) {
    if (m.layer == name) return m;
  }
  return {};
}

TEST(Errors, ElementIsRelativeToTheLargestReference) {
  const Errors e = errors_of(matrix({1, 2, 3, 4.5}, 2), matrix({1, 2, 3, 4}, 2));
  EXPECT_DOUBLE_EQ(e.element, 0.5 / 4);
  EXPECT_EQ(e.worst_element, "[1,1]");
}

/// Two rows of 100 elements, each zero but for its first.
at::Tensor wide(double first, double second) {
  at::Tensor rows = at::zeros({2, 100}, at::kDouble);
  rows[0][0] = first;
  rows[1][0] = second;
  return rows;
}

TEST(Errors, RowSeesASmallRowThatIsWrong) {
  // Row 1 is a hundredth of row 0 and wholly wrong: 1 % of the largest element, 100 % of its own
  // row.
  const Errors e = errors_of(wide(100, 0), wide(100, 1));
  EXPECT_DOUBLE_EQ(e.element, 0.01);
  EXPECT_DOUBLE_EQ(e.row, 1.0);
  EXPECT_EQ(e.worst_row, "[1]");
}

TEST(Errors, RowFloorsRowsFarBelowTheLargest) {
  EXPECT_DOUBLE_EQ(errors_of(wide(1e6, 0), wide(1e6, 1)).row, 1.0 / (1e-3 * 1e6));
  // Of rows of two elements, and of rows of one number, more of them are so by chance.
  const Errors narrow = errors_of(matrix({1e3, 0, 0, 0}, 2), matrix({1e3, 0, 1, 0}, 2));
  EXPECT_DOUBLE_EQ(narrow.row, 1.0 / (0.05 * 1e3));
  const at::Tensor ones = at::ones({2, 100}, at::kDouble);
  const at::Tensor sizes = at::tensor({1e3, 1.0}, at::kDouble).view({2, 1});
  const Errors one_number =
      errors_of(ones * at::tensor({1e3, 0.0}, at::kDouble).view({2, 1}), ones * sizes);
  EXPECT_DOUBLE_EQ(one_number.row, 1.0 / (0.1 * 1e3));
}

TEST(Errors, RowsAreTheLeadingAxesFlattened) {
  const at::Tensor reference = at::ones({2, 3, 4}, at::kDouble);
  at::Tensor got = reference.clone();
  got[1][2][0] = 1.5;
  const Errors e = errors_of(got, reference);
  EXPECT_EQ(e.worst_row, "[1,2]");
  EXPECT_EQ(e.worst_element, "[1,2,0]");
  EXPECT_DOUBLE_EQ(e.row, 0.5 / 2);
}

TEST(Errors, VectorIsOneRow) {
  const Errors e =
      errors_of(at::tensor({3.0, 4.5}, at::kDouble), at::tensor({3.0, 4.0}, at::kDouble));
  EXPECT_DOUBLE_EQ(e.row, 0.5 / 5);
}

TEST(Errors, CosineIsBlindToAFactorAndScaleSeesIt) {
  const at::Tensor reference = matrix({1, -2, 3, 4}, 2);
  const Errors e = errors_of(reference * 1.01, reference);
  EXPECT_NEAR(e.cosine, 0, 1e-15);
  EXPECT_NEAR(e.scale, 0.01, 1e-12);
}

TEST(Errors, AFactorOfOnePercentIsSeenInOneNumber) {
  const at::Tensor one = at::tensor({2.0}, at::kDouble);
  const Tolerances loose = {
      {2, 1, "-"}, {2, 1, "a floor of one part in eight"}, {2, 1, "-"}, {2, 0, "-"}};
  EXPECT_TRUE(compare("x", one * 1.002, one, one, loose, 0.125).back().pass);
  EXPECT_FALSE(compare("x", one * 1.01, one, one, loose, 0.125).back().pass);
}

TEST(Errors, ScaleOfFewRowsMayBeOffByChance) {
  const Tolerances tight = {{2, 0, "-"}, {2, 0, "-"}, {2, 0, "-"}, {2, 0, "plain's own factor"}};
  const auto scale_of = [&](int64_t repeats, double factor) {
    const at::Tensor reference =
        at::tensor({1.0, -1.0, 1.0, 1.0}, at::kDouble).repeat(repeats).view({-1, 1});
    // Errors of 1e-3 that leave no factor.
    const at::Tensor noise =
        at::tensor({1e-3, 1e-3, -1e-3, 1e-3}, at::kDouble).repeat(repeats).view({-1, 1});
    return compare("x", reference * factor, reference, reference + noise, tight, 0.01).back();
  };
  EXPECT_TRUE(scale_of(1, 1.0015).pass);  // 4e-3 / sqrt(4)
  EXPECT_FALSE(scale_of(1, 1.0025).pass);
  EXPECT_FALSE(scale_of(100, 1.0015).pass);
}

TEST(Errors, CosineIsTwoForTheOppositeSign) {
  const at::Tensor reference = matrix({1, -2, 3, 4}, 2);
  EXPECT_NEAR(errors_of(-reference, reference).cosine, 2, 1e-12);
}

TEST(Errors, ZeroReferenceWantsZero) {
  const at::Tensor zero = at::zeros({2, 2}, at::kDouble);
  EXPECT_EQ(errors_of(zero, zero).element, 0);
  EXPECT_EQ(errors_of(zero, zero).cosine, 0);
  EXPECT_TRUE(errors_of(zero, zero).is_absolute);
  EXPECT_EQ(errors_of(at::full_like(zero, 4.0), zero).element, 4);
  const Tolerances loose = {
      {2, 8, "a floor in ulp of nothing"}, {2, 8, "-"}, {2, 8, "-"}, {2, 8, "-"}};
  const auto layers = compare("count", at::full_like(zero, 4.0), zero, zero, loose, 0.01);
  EXPECT_EQ(deciding(layers).layer, "absolute");
  EXPECT_EQ(deciding(layers).got, 4);
  EXPECT_FALSE(deciding(layers).pass);
}

TEST(Errors, AreRelativeToWhatTheTermsOfASumComeTo) {
  const at::Tensor zero = at::zeros({2, 4}, at::kDouble);
  const Errors e = errors_of(at::full_like(zero, 4.0), zero, 16);
  EXPECT_FALSE(e.is_absolute);
  EXPECT_EQ(e.element, 0.25);
  EXPECT_EQ(e.row, 0.25);  // 8 over 16 sqrt(4)
}

TEST(Errors, CountCosineAndScaleByTheShareOfTheTermsInRowsThatAreNotZero) {
  const at::Tensor reference = matrix({3, 4, 0, 0, 0, 0, 0, 0}, 2), got = reference * 1.5;
  EXPECT_DOUBLE_EQ(errors_of(got, reference).scale, 0.5);
  EXPECT_DOUBLE_EQ(errors_of(got, reference, 2.5).scale, 0.5);  // a norm of 5 = 2.5 sqrt(4)
  EXPECT_DOUBLE_EQ(errors_of(got, reference, 25.0).scale, 0.05);
  EXPECT_DOUBLE_EQ(errors_of(-reference, reference, 25.0).cosine, 0.2);
  EXPECT_EQ(errors_of(got * 1e-200, reference * 1e-200, 1.0).cosine, 0);  // squares underflow
}

TEST(TermSizes, AreOfOneTermWhereARowNamesAKeyTwice) {
  at::manual_seed(1);
  const at::Tensor q = at::randn({1, 1, 2, 8}), kv = at::randn({1, 3, 8}),
                   grad_out = at::randn({1, 1, 2, 4});
  const auto sizes = [&](const std::vector<int>& keys) {
    return term_sizes({q, kv, at::tensor(keys, at::kInt).view({1, 1, -1}), grad_out, 0.5});
  };
  const TermSizes once = sizes({0, 1, 2}), twice = sizes({0, 2, 1, 0, 1, 2}),
                  more = sizes({-1, 0, 2, 7, 1});
  for (const TermSizes& same : {twice, more}) {
    EXPECT_NEAR(same.grad_q, once.grad_q, 1e-12);
    EXPECT_NEAR(same.grad_kv, once.grad_kv, 1e-12);
  }
}

TEST(TermSizes, CountTheProductsOfAnInnerProductThatCancels) {
  const at::Tensor q = at::ones({1, 1, 1, 4}),
                   kv = at::tensor({1.0, 1.0, 2.0, 3.0}).view({1, 1, 4}),
                   grad_out = at::tensor({1.0, -1.0}).view({1, 1, 1, 2});
  // One key: P = 1, dP = delta = 0; <grad_out^2, v^2> = 2, |k|^2 = 15.
  const TermSizes sizes = term_sizes({q, kv, at::zeros({1, 1, 1}, at::kInt), grad_out, 0.5});
  EXPECT_NEAR(sizes.grad_q, 0.5 * std::sqrt(2 * 15 / 4.0), 1e-12);
}

TEST(Errors, AllZeroOutputMissesByTheWhole) {
  const at::Tensor reference = matrix({1, 2, 3, 4}, 2);
  const Errors e = errors_of(at::zeros_like(reference), reference);
  EXPECT_EQ(e.element, 1);
  EXPECT_EQ(e.row, 1);
  EXPECT_EQ(e.cosine, 1);
}

TEST(Errors, EmptyTensorHasNone) {
  EXPECT_EQ(errors_of(at::zeros({0, 3}), at::zeros({0, 3})).element, 0);
}

TEST(Errors, StridedTensorsAreReadByTheirStrides) {
  const at::Tensor reference = matrix({1, 2, 3, 4}, 2);
  EXPECT_EQ(errors_of(reference.t().contiguous().t(), reference).element, 0);
}

TEST(Compare, ShapeAndDtypeComeFirst) {
  const at::Tensor r = at::ones({2, 3}, at::kDouble), plain = at::ones({2, 3});
  const auto shape = compare("y", at::ones({3, 2}), r, plain, kPlain, kEpsilon);
  ASSERT_EQ(shape.size(), 1U);
  EXPECT_EQ(shape[0].layer, "shape");
  EXPECT_FALSE(shape[0].pass);
  EXPECT_NE(shape[0].where.find("[3,2] Float, wanted [2,3] Float"), std::string::npos)
      << shape[0].where;
  EXPECT_EQ(compare("y", at::ones({2, 3}, at::kDouble), r, plain, kPlain, kEpsilon)[0].layer,
            "shape");
}

TEST(Compare, AnomaliesCountPositionsAndStopTheRest) {
  const at::Tensor r = matrix({1, 2, 3, 4}, 2);
  const auto layers = compare("y", matrix({1, kNan, 3, kInf}, 2), r, r, kPlain, kEpsilon);
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_EQ(layers[0].layer, "anomalies");
  EXPECT_EQ(layers[0].got, 2);
  EXPECT_EQ(layers[0].where, "[0,1]");
}

TEST(Compare, InfinityWhereItBelongsIsRightAndItsSignCounts) {
  const at::Tensor r = matrix({1, kInf, -kInf, kNan}, 2);
  for (const Measure& m : compare("y", r, r, r, kExact, kEpsilon)) EXPECT_TRUE(m.pass) << m.layer;
  EXPECT_FALSE(compare("y", matrix({1, -kInf, -kInf, kNan}, 2), r, r, kExact, kEpsilon)[0].pass);
  EXPECT_FALSE(compare("y", matrix({1, 5, -kInf, kNan}, 2), r, r, kExact, kEpsilon)[0].pass);
  EXPECT_FALSE(compare("y", matrix({1, kInf, -kInf, 0}, 2), r, r, kExact, kEpsilon)[0].pass);
}

TEST(Compare, LimitIsKTimesPlainPlusTheFloor) {
  const at::Tensor r = matrix({1, 2, 3, 4}, 2);
  const at::Tensor plain = matrix({1, 2, 3, 4.04}, 2);
  const auto layers = compare("y", matrix({1, 2, 3, 4.08}, 2), r, plain, kPlain, 1e-3);
  const Measure element = layer(layers, "element");
  EXPECT_NEAR(element.plain, 0.01, 1e-12);
  EXPECT_NEAR(element.limit, 2 * 0.01 + 1e-3, 1e-12);
  EXPECT_TRUE(element.pass);
  EXPECT_FALSE(
      layer(compare("y", matrix({1, 2, 3, 4.09}, 2), r, plain, kPlain, 1e-3), "element").pass);
}

TEST(Compare, EachNumericLayerCanFailAlone) {
  const at::Tensor r = matrix({100, 50, 1, 2}, 2);
  constexpr Tolerance never{0, 1e9, "out of the way"}, strict{0, 1, "under test"};
  const at::Tensor row_wrong = matrix({100, 50, 1, 0}, 2), scaled = r * 1.1;
  EXPECT_FALSE(
      layer(compare("y", row_wrong, r, r, {never, strict, never, never}, 0.1), "row").pass);
  EXPECT_TRUE(
      layer(compare("y", row_wrong, r, r, {strict, never, never, never}, 0.1), "element").pass);
  EXPECT_FALSE(
      layer(compare("y", scaled, r, r, {never, never, never, strict}, 0.05), "scale").pass);
  EXPECT_TRUE(
      layer(compare("y", scaled, r, r, {never, never, strict, never}, 0.05), "cosine").pass);
  EXPECT_FALSE(layer(compare("y", -r, r, r, {never, never, strict, never}, 0.05), "cosine").pass);
}

TEST(CompareBitwise, NamesTheFirstCoordinateAndBothValues) {
  const at::Tensor wanted = at::arange(6, at::kFloat).reshape({2, 3});
  at::Tensor got = wanted.clone();
  EXPECT_TRUE(compare_bitwise("y", got, wanted).pass);
  got[1][0] = 3.5;
  got[1][2] = 7;
  const Measure m = compare_bitwise("y", got, wanted);
  EXPECT_FALSE(m.pass);
  EXPECT_EQ(m.got, 2);
  EXPECT_EQ(m.where, "[1,0]: 3.5, wanted 3");
}

TEST(CompareBitwise, TellsMinusZeroAndDtypeApart) {
  EXPECT_FALSE(compare_bitwise("y", at::tensor({-0.0F}), at::tensor({0.0F})).pass);
  EXPECT_EQ(compare_bitwise("y", at::ones({2}), at::ones({2}, at::kDouble)).layer, "shape");
  EXPECT_TRUE(compare_bitwise("y", at::full({2}, kNan), at::full({2}, kNan)).pass);
}

TEST(Deciding, IsTheFirstFailureElseTheNearestToItsLimit) {
  Measure near, far, failing;
  near.layer = "near", near.got = 0.9, near.limit = 1, near.pass = true;
  far.layer = "far", far.got = 0.1, far.limit = 1, far.pass = true;
  failing.layer = "failing", failing.got = 1.01, failing.limit = 1;
  EXPECT_EQ(deciding({far, near}).layer, "near");
  EXPECT_EQ(deciding({near, far, failing}).layer, "failing");
}

}  // namespace
}  // namespace patchbench::harness
