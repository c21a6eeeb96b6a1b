#pragma once
#include <string>
#include <vector>

#include "core/observation.h"
#include "core/tolerance.h"
#include "harness/inputs.h"

namespace patchbench::harness {

/// One tolerance for each numeric layer.
struct Tolerances {
  Tolerance element, row, cosine, scale;
};

/// Relative errors of a tensor G against the fp64 reference R, over the positions where R is
/// finite:
///   element = max |G - R| / max |R|
///   row     = max over rows r of ||G_r - R_r|| / max(||R_r||, f max_r ||R_r||)
///   cosine  = 1 - <G, R> / (||G|| ||R||)
///   scale   = |<G, R> / <R, R> - 1|: a common factor, which the cosine cannot see and bf16 noise
///   hides from the others
///   total   = ||G - R|| / ||R||
///   chance  = 4 / sqrt(n), n = (sum ||R_r||^2)^2 / sum ||R_r||^4: the share of `total` that errors
///   which are independent from row to row (of one row: from element to element) come to in `scale`
///   at 4 sigma
/// f = max(1e-3, 0.1 / width), of a row of one number throughout 0.1.
/// Rows are the leading axes flattened; a tensor of rank 0 or 1 is one row. `least_size` is what
/// the terms of an element's sum come to, where they may cancel: an element's error is relative to
/// at least that, a row's to at least sqrt(width) times that, and cosine and scale count by the
/// share that R is of such rows, zero ones left out. Where R is all zero and `least_size`
/// is 0 nothing is relative: `element` is then max |G|, in the tensor's unit, and the others are 0.
/// Sums run in fp64.
struct Errors {
  double element = 0, row = 0, cosine = 0, scale = 0, total = 0, chance = 0;
  bool is_absolute = false;
  std::string worst_element, worst_row;  ///< coordinates, "[3,17]"
};
Errors errors_of(const at::Tensor& got, const at::Tensor& reference, double least_size = 0);

/// One tensor, in layers: shape and dtype (as in `plain`), inf/nan positions, then element, row,
/// cosine, scale, each with limit = k * plain's error + floor_ulp * epsilon. The limit of scale is
/// at least plain's chance * total, and min(1, chance) times the sum of plain's total and the row's
/// floor, of which 0.25 % count. Of an all-zero oracle without a `least_size` there is one layer,
/// "absolute", with the element's k and no floor. Stops at a shape or an anomaly that differs, for
/// nothing below it has a meaning. `got` may be on any device.
std::vector<Measure> compare(const std::string& name, const at::Tensor& got,
                             const at::Tensor& oracle, const at::Tensor& plain,
                             const Tolerances& tolerances, double epsilon, double least_size = 0);

/// Equality of every bit (so -0 differs from 0, and NaNs by payload). `where` of a failing measure
/// holds the first differing coordinate and both values; `got` is the number of elements that
/// differ.
Measure compare_bitwise(const std::string& name, const at::Tensor& got, const at::Tensor& wanted);

/// The measure that decides a tensor: the first failing one, else the one nearest to its limit.
const Measure& deciding(const std::vector<Measure>& layers);

/// "[2,3] float32" for messages.
std::string describe(const at::Tensor& tensor);

}  // namespace patchbench::harness
