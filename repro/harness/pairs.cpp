#include "harness/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
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

/// The class of an axis value that is not a number.
std::vector<std::string> kinds_of(const Json& value) {
  if (!value.is_array()) return {value.dump()};
  const bool has_zero = std::find(value.begin(), value.end(), Json(0)) != value.end();
  return {fmt::format("{} lengths", value.size()), has_zero ? "one is 0" : "none is 0"};
}

}  // namespace

std::map<PairCoverage::Pair, double> PairCoverage::pairs_of(const Json& axes) {
  struct Kind {
    std::string text;
    double weight = 1;
  };
  std::vector<std::vector<Kind>> by_axis;
  for (const auto& [name, value] : axes.items()) {
    by_axis.emplace_back();
    const auto kinds = value.is_number() ? kinds_of_number(value.get<double>()) : kinds_of(value);
    for (const std::string& kind : kinds)
      by_axis.back().push_back({name + ": " + kind, value.is_number() ? 0.25 : 1.0});
  }
  std::map<Pair, double> pairs;
  for (std::size_t i = 0; i < by_axis.size(); ++i)
    for (std::size_t j = i + 1; j < by_axis.size(); ++j)
      for (const Kind& one : by_axis[i])
        for (const Kind& other : by_axis[j])
          pairs.emplace(Pair(one.text, other.text), one.weight * other.weight);
  return pairs;
}

double PairCoverage::weight_of_new(const Json& axes) const {
  double weight = 0;
  for (const auto& [pair, of_pair] : pairs_of(axes))
    if (!seen_.contains(pair)) weight += of_pair;
  return weight;
}

void PairCoverage::take(const Json& axes) { seen_.merge(pairs_of(axes)); }

}  // namespace patchbench::harness
