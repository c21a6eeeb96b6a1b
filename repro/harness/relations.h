#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/judge.h"

namespace patchbench::harness {

/// What holds between a case and others that are made from it, whatever the values are: no oracle
/// is asked, so that it sees what a tolerance against an oracle hides.
///
///   linear    the upstream gradient times a power of two: each grad_* comes out times that factor,
///             all else as it was
///   rerun     the same inputs again: the same bits
///   permuted  the rows of the tensors in `along` in another order: their outputs come out in that
///             order, the others as they were
///   parts     the tensors in `along` cut in two: their outputs joined, the others added up
///   packed    cut by the axis `lengths`, each sequence a dense case of its own, without that axis
struct Relation {
  std::string name, axis, lengths;
  std::map<std::string, int64_t> along;  ///< tensor -> its dimension
  Json where = Json::object();           ///< axis -> value

  static Relation from_json(const Json& json);
};

/// The cases made from one.
struct Followers {
  Relation relation;
  double factor = 1;        ///< linear
  at::Tensor order;         ///< permuted
  std::vector<Case> cases;  ///< named as the case, with "_f0", "_f1", ...
  std::vector<Tensors> inputs, plain;

  /// What their outputs, in their order, say of the case's.
  Tensors expected(const std::vector<Tensors>& outputs) const;
};

/// The cases of a relation without their `plain`, from the inputs of `base` alone; nullopt where
/// the relation says nothing of the case: it is `where` other, or has too few rows.
std::optional<Followers> followers_of(const Relation& relation, const PreparedCase& base,
                                      const Request& request);

/// Whether every right output of a case is finite: a relation says nothing of other cases.
bool is_finite(const PreparedCase& base);

/// One layer for each output, named as the relation: max |G - E| / max |E| for the case's output G
/// and the expected E, at most 2 times the plain computation's own plus 16 epsilons (or one of an
/// input's lower precision, where a sum may round otherwise), of "rerun" the number of elements
/// whose bits differ. An output that is 0 by the oracle has none. Where sums run in another order
/// (what is added up or reordered, and every output of "packed") the limit is at least what two
/// right answers may be apart, twice the element's; for the rows of "parts" twice 2 times plain's.
std::vector<Measure> relation_layers(const Pack& pack, const Followers& followers,
                                     const PreparedCase& base, const Tensors& got,
                                     const std::vector<Tensors>& got_followers);

}  // namespace patchbench::harness
