#include "harness/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace patchbench::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Rows far below the largest are measured against this share of it: their relative noise says
/// nothing. Of rows of few elements some are far below it by chance: a single element, a sum whose
/// terms cancel, has the noise of its terms. A row of one number throughout counts as one element.
double row_floor(int64_t width) { return std::max(1e-3, 0.1 / static_cast<double>(width)); }

/// Coordinates of a flat row-major index.
std::string coordinate(int64_t index, at::IntArrayRef sizes) {
  std::vector<int64_t> at(sizes.size());
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    at[axis] = index % sizes[axis];
    index /= sizes[axis];
  }
  return fmt::format("[{}]", fmt::join(at, ","));
}

at::Tensor as_fp64(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).to(at::kDouble).contiguous();
}

struct RowSums {
  double error = 0, size = 0;  ///< squares
  bool is_one_number = true;   ///< of the reference, to fp64's rounding
};

/// Squares of the errors and sizes of one row; updates the worst element.
RowSums scan_row(const double* got, const double* reference, int64_t width, int64_t first,
                 double& worst, int64_t& worst_at) {
  RowSums sums;
  for (int64_t j = 0; j < width; ++j) {
    const double error = std::abs(got[j] - reference[j]);
    sums.error += error * error;
    sums.size += reference[j] * reference[j];
    sums.is_one_number &= std::abs(reference[j] - reference[0]) <= 1e-9 * std::abs(reference[0]);
    if (error > worst) {
      worst = error;
      worst_at = first + j;
    }
  }
  return sums;
}

/// The row layer; errors are relative to at least `least_row`.
void set_worst_row(const std::vector<RowSums>& rows, int64_t width, double least_row,
                   at::IntArrayRef sizes, Errors& errors) {
  double largest = 0;
  for (const RowSums& row : rows) largest = std::max(largest, std::sqrt(row.size));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowSums& row = rows[i];
    const double floor = std::max(row_floor(row.is_one_number ? 1 : width) * largest, least_row);
    const double error = std::sqrt(row.error) / std::max(std::sqrt(row.size), floor);
    if (error <= errors.row && i > 0) continue;
    errors.row = error;
    const auto index = static_cast<int64_t>(i);
    errors.worst_row = sizes.size() < 2 ? "" : coordinate(index, sizes.slice(0, sizes.size() - 1));
  }
}

Measure measure(const std::string& tensor, const std::string& layer, double got, double plain,
                double limit, const std::string& where) {
  Measure m;
  m.tensor = tensor;
  m.layer = layer;
  m.got = got;
  m.plain = plain;
  m.limit = limit;
  m.pass = got <= limit;  // false for a NaN
  m.where = where;
  return m;
}

/// The number of positions whose kind (finite, nan, +inf, -inf) differs, and the first of them.
std::pair<int64_t, int64_t> anomalies(const at::Tensor& got, const at::Tensor& reference) {
  const double* g = got.data_ptr<double>();
  const double* r = reference.data_ptr<double>();
  int64_t count = 0, first = -1;
  for (int64_t i = 0; i < got.numel(); ++i) {
    const bool same = std::isfinite(r[i]) ? std::isfinite(g[i])
                      : std::isnan(r[i])  ? std::isnan(g[i])
                                          : g[i] == r[i];
    if (!same && count++ == 0) first = i;
  }
  return {count, first};
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  return fmt::format("[{}] {}", fmt::join(tensor.sizes().vec(), ","),
                     at::toString(tensor.scalar_type()));
}

Errors errors_of(const at::Tensor& got_any, const at::Tensor& reference_any, double least_size) {
  at::Tensor reference = as_fp64(reference_any);
  at::Tensor got = as_fp64(got_any);
  const at::Tensor finite = reference.isfinite();
  if (!finite.all().item<bool>()) {
    got = got.masked_fill(finite.logical_not(), 0.0);
    reference = reference.masked_fill(finite.logical_not(), 0.0);
  }
  Errors errors;
  if (got.numel() == 0) return errors;
  const int64_t width = got.dim() < 2 ? got.numel() : got.size(-1);
  const int64_t num_rows = got.numel() / width;
  const double* g = got.data_ptr<double>();
  const double* r = reference.data_ptr<double>();
  std::vector<RowSums> rows;
  double worst = 0;
  int64_t worst_at = 0;
  for (int64_t i = 0; i < num_rows; ++i)
    rows.push_back(scan_row(g + i * width, r + i * width, width, i * width, worst, worst_at));
  errors.worst_element = coordinate(worst_at, got.sizes());
  const double largest = reference.abs().max().item<double>();
  if (largest == 0 && least_size == 0) {
    errors.is_absolute = true;
    errors.element = worst;
    return errors;
  }
  const double least_row = least_size * std::sqrt(static_cast<double>(width));
  errors.element = worst / std::max(largest, least_size);
  set_worst_row(rows, width, least_row, got.sizes(), errors);
  if (largest == 0) return errors;
  const double size = (reference * reference).sum().item<double>();
  double sum_of_errors = 0, num_elements = 0;  // elements of the rows whose squares are not 0
  for (const RowSums& row : rows) {
    sum_of_errors += row.error;
    num_elements += row.size > 0 ? static_cast<double>(width) : 0;
  }
  const at::Tensor shares =
      (got.dim() < 2 ? reference.square() : reference.view({num_rows, width}).square().sum(-1)) /
      size;
  errors.total = std::sqrt(sum_of_errors / size);
  errors.chance = 4 * std::sqrt(shares.square().sum().item<double>());
  const double dot = (got * reference).sum().item<double>();
  const double got_size = (got * got).sum().item<double>();
  // The reference is this share of its terms' sizes.
  const double share =
      std::sqrt(size) /
      std::max(std::sqrt(size), least_size * std::sqrt(std::max(num_elements, 1.0)));
  if (got_size == 0) {
    errors.cosine = errors.scale = share;
    return errors;
  }
  errors.cosine = share * std::max(0.0, 1.0 - dot / std::sqrt(got_size * size));
  errors.scale = share * std::abs(dot / size - 1.0);
  return errors;
}

std::vector<Measure> compare(const std::string& name, const at::Tensor& got,
                             const at::Tensor& oracle, const at::Tensor& plain,
                             const Tolerances& tolerances, double epsilon, double least_size) {
  if (got.sizes() != plain.sizes() || got.scalar_type() != plain.scalar_type()) {
    return {measure(name, "shape", 1, 0, 0, describe(got) + ", wanted " + describe(plain))};
  }
  if (oracle.sizes() != plain.sizes()) {
    throw Error(ErrorCode::kInternal, fmt::format("{}: the oracle is {}, the plain computation {}",
                                                  name, describe(oracle), describe(plain)));
  }
  const at::Tensor reference = as_fp64(oracle);
  const auto [count, first] = anomalies(as_fp64(got), reference);
  std::vector<Measure> layers = {measure(name, "anomalies", static_cast<double>(count), 0, 0,
                                         count ? coordinate(first, got.sizes()) : "")};
  if (count > 0) return layers;
  const Errors ours = errors_of(got, reference, least_size);
  const Errors theirs = errors_of(plain, reference, least_size);
  const auto add = [&](const std::string& layer, double error, double plain_error,
                       const Tolerance& tolerance, const std::string& where) {
    layers.push_back(measure(name, layer, error, plain_error,
                             tolerance.k * plain_error + tolerance.floor_ulp * epsilon, where));
  };
  if (ours.is_absolute) {
    layers.push_back(measure(name, "absolute", ours.element, theirs.element,
                             tolerances.element.k * theirs.element, ours.worst_element));
    return layers;
  }
  add("element", ours.element, theirs.element, tolerances.element, ours.worst_element);
  add("row", ours.row, theirs.row, tolerances.row, ours.worst_row);
  add("cosine", ours.cosine, theirs.cosine, tolerances.cosine, "");
  add("scale", ours.scale, theirs.scale, tolerances.scale, "");
  // Of few elements rounding errors alone come to a factor: plain's, or plain's and the floor of
  // the row layer, but of these never as much as a quarter per cent, so that a factor of one is
  // seen.
  constexpr double kMostFloor = 2.5e-3;
  const double row = std::min(theirs.total + tolerances.row.floor_ulp * epsilon, kMostFloor);
  layers.back().limit = std::max(
      {layers.back().limit, theirs.chance * theirs.total, std::min(1.0, theirs.chance) * row});
  layers.back().pass = ours.scale <= layers.back().limit;
  return layers;
}

Measure compare_bitwise(const std::string& name, const at::Tensor& got_any,
                        const at::Tensor& wanted_any) {
  if (got_any.sizes() != wanted_any.sizes() || got_any.scalar_type() != wanted_any.scalar_type()) {
    return measure(name, "shape", 1, 0, 0, describe(got_any) + ", wanted " + describe(wanted_any));
  }
  const at::Tensor got = got_any.detach().to(at::kCPU).contiguous();
  const at::Tensor wanted = wanted_any.detach().to(at::kCPU).contiguous();
  const std::size_t width = got.element_size();
  const char* g = static_cast<const char*>(got.data_ptr());
  const char* w = static_cast<const char*>(wanted.data_ptr());
  int64_t count = 0;
  std::string where;
  for (int64_t i = 0; i < got.numel(); ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * width;
    if (std::memcmp(g + at, w + at, width) == 0) continue;
    if (count++ > 0) continue;
    where = fmt::format("{}: {:.17g}, wanted {:.17g}", coordinate(i, got.sizes()),
                        got.view(-1)[i].to(at::kDouble).item<double>(),
                        wanted.view(-1)[i].to(at::kDouble).item<double>());
  }
  return measure(name, "bitwise", static_cast<double>(count), 0, 0, where);
}

const Measure& deciding(const std::vector<Measure>& layers) {
  const auto nearness = [](const Measure& m) {
    return m.limit > 0 ? m.got / m.limit : (m.pass ? 0.0 : kInfinity);
  };
  const auto failing =
      std::find_if(layers.begin(), layers.end(), [](const Measure& m) { return !m.pass; });
  if (failing != layers.end()) return *failing;
  return *std::max_element(layers.begin(), layers.end(), [&](const Measure& a, const Measure& b) {
    return nearness(a) < nearness(b);
  });
}

}  // namespace patchbench::harness
