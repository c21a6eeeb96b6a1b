#pragma once
#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "core/json.h"

namespace patchbench::harness {

/// Pairwise coverage (combinatorial testing): which pairs of values of two axes the drawn cases
/// had. A number stands for its order of size, its parity and, of a power of two, its value; a list
/// of lengths for how many there are and whether one is 0; all else for itself.
class PairCoverage {
 public:
  /// How many pairs these axes would add.
  std::size_t num_new(const Json& axes) const;
  void take(const Json& axes);

 private:
  using Pair = std::pair<std::string, std::string>;
  static std::set<Pair> pairs_of(const Json& axes);
  std::set<Pair> seen_;
};

}  // namespace patchbench::harness
