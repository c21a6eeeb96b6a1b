#pragma once
#include <string_view>

namespace patchbench {

/// How far a value may lie from the fp64 oracle: error <= k * (error of the plain same-dtype
/// computation)
/// + floor_ulp * ulp(dtype). `k` is at most 2; a fixed bound has k = 0. It cannot be built without
/// a reason: an empty or blank `why` does not compile.
struct Tolerance {
  double k;
  double floor_ulp;
  std::string_view why;

  consteval Tolerance(double k_, double floor_ulp_, std::string_view why_)
      : k(k_), floor_ulp(floor_ulp_), why(why_) {
    if (k_ < 0 || k_ > 2) throw "k must lie in [0, 2]";
    if (floor_ulp_ < 0) throw "floor_ulp must not be negative";
    if (why_.find_first_not_of(" \t\n") == std::string_view::npos)
      throw "a tolerance needs its reason";
  }
};

}  // namespace patchbench
