#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/judge.h"

namespace patchbench::harness {

/// A region is a part of the inputs on which a fix may be wrong while it is right elsewhere. Its
/// mutant takes right outputs and spoils them inside the region alone, as such a fix would:
///
///   large_gradient     elements of the upstream gradient above 1e3 in size are clipped to 1e3
///   tiny_gradient      elements of the upstream gradient below 1e-5 in size are taken as 0
///   expanded_gradient  an upstream gradient of stride 0 is read as if it were stored whole: what
///                      lies past its storage is 0
///   last_odd_row       of an odd number of rows (an axis of the upstream gradient) the last is 0
///   second_backward    the gradient is applied twice in a second backward (axis `backwards` >= 2)
///   ties               1 % off where a row of an integer input holds a value twice (of outputs
///   that
///                      this does not change, zeros and infinities, the last element is another)
///   beyond_<axis>      likewise where an integer axis is over 4 times its smallest value among the
///                      cases (of one site, where cases have sites: beyond_<site>_<axis>); asked
///                      for where the cases of the site have floating-point inputs
///
/// In the first five the outputs are changed by oracle(changed gradient) - oracle(gradient). A
/// mutant that no case catches shows that the cases do not look at its region.
class RegionMutants {
 public:
  /// `cases`: those that count for the subject. `waived`: regions that are not asked for, by name,
  /// or by the beginning of their names and a "*".
  RegionMutants(const Pack& pack, std::vector<const Case*> cases, std::set<std::string> waived);

  /// What the mutants that no earlier case caught give in place of a case's right outputs: region
  /// -> outputs.
  std::map<std::string, Tensors> of(const PreparedCase& prepared, const Tensors& outputs);
  /// The mutant is caught: it is not asked about again.
  void caught(const std::string& region) { open_.erase(region); }
  /// The regions whose mutants no case caught so far. A region that the inputs of no case can have
  /// (no upstream gradient, no integer input) is none of them.
  const std::set<std::string>& open() const { return open_; }

 private:
  void open(const std::string& region);
  const Pack& pack_;
  std::set<std::string> waived_, known_, open_;
  std::map<std::string, std::map<std::string, int64_t>> smallest_;  ///< site -> axis -> value
};

}  // namespace patchbench::harness
