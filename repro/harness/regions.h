#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/condition.h"
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
/// Drawn cases reach more of the inputs than a list of cases can, so more is asked of them:
///
///   transposed_gradient  an upstream gradient whose axes are stored in another order is read in
///                        row-major order
///   strided_gradient     one with gaps between its elements is read without the gaps
///   offset_gradient      one that begins inside its storage is read from the storage's beginning
///   masked_first_row     1 % off where the first row of the upstream gradient is 0 and another is
///                        not
///   one_<axis>           1 % off where an integer axis is 1
///   odd_<axis>           1 % off where an integer axis is odd and above 1
///   where <condition>    1 % off where a condition of the request holds for the axes and the
///                        properties of the inputs (core/condition.h, properties.h)
///
/// In the regions of a gradient's values and layout, and in second_backward, the outputs are
/// changed by oracle(changed gradient) - oracle(gradient). A mutant that no case catches shows that
/// the cases do not look at its region.
class RegionMutants {
 public:
  enum class Cases { kDeclared, kDrawn };
  /// `cases`: those that count for the subject. `waived`: regions that are not asked for, by name,
  /// or by the beginning of their names and a "*". Of drawn cases a region is asked for only where
  /// one of them is in it.
  RegionMutants(const Pack& pack, std::vector<const Case*> cases, std::set<std::string> waived,
                Cases kind = Cases::kDeclared, std::vector<Condition> conditions = {});

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
  /// Mutants by the value of a count.
  void add_counts(const PreparedCase& prepared, const Tensors& outputs,
                  std::map<std::string, Tensors>& mutants);
  /// Mutants by the conditions of the request.
  void add_conditions(const PreparedCase& prepared, const Tensors& outputs,
                      std::map<std::string, Tensors>& mutants);
  bool is_open(const std::string& region) const { return open_.contains(region); }
  const Pack& pack_;
  Cases kind_;
  std::set<std::string> waived_, known_, open_;
  std::vector<Condition> conditions_;
  std::map<std::string, std::map<std::string, int64_t>> smallest_;  ///< site -> axis -> value
};

}  // namespace patchbench::harness
