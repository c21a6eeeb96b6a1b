#include "harness/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace patchbench::harness {
namespace {

std::vector<std::string> kinds_of_number(double value) {
  const double exponent = value > 0 ? std::floor(std::log2(value)) : -1;
  std::vector<std::string> kinds = {fmt::format("size {}", exponent)};
  if (value != std::floor(value)) return kinds;
  kinds.push_back(std::fmod(value, 2) == 0 ? "even" : "odd");
  if (value == std::exp2(exponent)) kinds.push_back(fmt::format("is {}", value));
  return kinds;
}

/// What a value of an axis stands for.
std::vector<std::string> kinds_of(const Json& value) {
  if (value.is_number()) return kinds_of_number(value.get<double>());
  if (!value.is_array()) return {value.dump()};
  const bool has_zero = std::find(value.begin(), value.end(), Json(0)) != value.end();
  return {fmt::format("{} lengths", value.size()), has_zero ? "one is 0" : "none is 0"};
}

}  // namespace

std::set<PairCoverage::Pair> PairCoverage::pairs_of(const Json& axes) {
  std::vector<std::vector<std::string>> by_axis;
  for (const auto& [name, value] : axes.items()) {
    by_axis.emplace_back();
    for (const std::string& kind : kinds_of(value)) by_axis.back().push_back(name + ": " + kind);
  }
  std::set<Pair> pairs;
  for (std::size_t i = 0; i < by_axis.size(); ++i)
    for (std::size_t j = i + 1; j < by_axis.size(); ++j)
      for (const std::string& one : by_axis[i])
        for (const std::string& other : by_axis[j]) pairs.emplace(one, other);
  return pairs;
}

std::size_t PairCoverage::num_new(const Json& axes) const {
  const std::set<Pair> pairs = pairs_of(axes);
  return static_cast<std::size_t>(std::count_if(
      pairs.begin(), pairs.end(), [&](const Pair& pair) { return !seen_.contains(pair); }));
}

void PairCoverage::take(const Json& axes) { seen_.merge(pairs_of(axes)); }

}  // namespace patchbench::harness
