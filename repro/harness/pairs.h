#pragma once
#include <map>
#include <string>
#include <utility>

#include "core/json.h"

namespace patchbench::harness {

/// Pairwise coverage (combinatorial testing): which pairs of values of two axes the drawn cases
/// had. A number counts by its order of size, its parity and, of a power of two, its value; a list
/// of lengths counts by its length and by whether one is 0; any other value counts as it is. A
/// number has several such properties and many values: in a pair it weighs a quarter of a word.
class PairCoverage {
 public:
  /// The weight of the pairs that these axes would add.
  double weight_of_new(const Json& axes) const;
  void take(const Json& axes);

 private:
  using Pair = std::pair<std::string, std::string>;
  static std::map<Pair, double> pairs_of(const Json& axes);
  std::map<Pair, double> seen_;
};

}  // namespace patchbench::harness
