#pragma once
#include <rapidcheck/Shrinkable.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/json.h"

namespace patchbench::harness {

/// The values that one axis, or several together, may have.
///
///   5, "x", true                         that value
///   [a, b, ...]                          one of them, the first the simplest; null: the axis is
///                                        left out
///   {"from": a, "to": b}                 a whole number; with "step" s: a, a + s, ...; a, b and s
///                                        may be names of other axes. Edges, powers of two, their
///                                        neighbours and every order of size are drawn
///   {"divides": "num_heads"}             a divisor of another axis
///   {"power_of": 2, "from": a, "to": b}  2^a ... 2^b, the simplest the nearest to 1
///   {"lengths_of": "seqlen", "most": n}  1 to n whole numbers that add up to another axis; with
///                                        "from": 0 some are 0
///
/// The key "head_dim_qk, head_dim_v" draws two axes from a list of pairs.
struct Axis {
  std::vector<std::string> names;
  Json body;
};

/// A space of inputs: cases are drawn from it (manifest `explore.spaces`).
class Space {
 public:
  using IsLegal = std::function<bool(const Json& axes)>;

  /// Throws Error(kUsage) `space NAME: axis 'X' ...` for a form that is not one of the above, or an
  /// axis that refers to none.
  explicit Space(const Json& body);

  const std::string& name() const { return name_; }
  const Json& relations() const { return relations_; }

  /// The axes of case `index` of a seed, with the tree of simpler ones below it, all legal: they
  /// hold the limits of `most`, and `is_legal` takes them. A function of (space, seed, index)
  /// alone. Throws Error(kUsage) where 500 draws found no legal ones.
  rc::Shrinkable<Json> draw(uint64_t seed, uint64_t index, const IsLegal& is_legal) const;
  /// The tree below legal axes.
  rc::Shrinkable<Json> tree(Json axes, const IsLegal& is_legal) const;
  /// Whether two cases differ in sizes alone, axes that are drawn as {"from", "to"}.
  bool differ_in_sizes(const Json& one, const Json& other) const;
  /// The axes of `from` with all that `steps`, each simpler than `from`, change in it; of several
  /// changes of an axis the first.
  Json joined(const Json& from, const std::vector<Json>& steps) const;

  /// Without this value of an axis, where the axis has others ("bfloat16" on a CPU).
  void leave_out(const std::string& axis, const Json& value);

 private:
  bool is_within(const Json& axes) const;
  Json settled(Json axes) const;
  std::vector<Json> simpler(const Json& axes) const;
  std::string name_;
  std::vector<Axis> axes_;  ///< each after those that it refers to
  Json most_ = Json::object(), relations_ = Json::array();
};

/// The name of a case with such axes, which its inputs are drawn by: "drawn_0123456789ab".
std::string drawn_name(const Json& axes);

}  // namespace patchbench::harness
