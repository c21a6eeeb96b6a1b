#pragma once
#include <string>

#include "core/observation.h"
#include "harness/answer.h"
#include "harness/pack.h"
#include "harness/request.h"

namespace patchbench::harness {

/// A case with everything that is the same for every subject and repeat.
struct PreparedCase {
  const Case* item = nullptr;  ///< not owned, never null
  Tensors inputs, oracle, plain;
  std::string inputs_sha256;
  Tensors bands = {};  ///< input -> its guard bands as they were laid; of isolated cases alone
  mutable std::map<std::string, double> least_sizes = {};  ///< least_size_of, once it was asked for
};

/// Makes inputs, oracle and plain computation of one case for the request's seed and device.
PreparedCase prepare_case(const Pack& pack, const Case& item, const Request& request);
/// The same for inputs that are not the case's own.
PreparedCase prepare_inputs(const Pack& pack, const Case& item, Tensors inputs,
                            const Request& request);

/// The pack's inputs of a case with what the harness's own axes change in them.
Tensors inputs_of(const Pack& pack, const Case& item, uint64_t seed);

/// The pack's least_size of an output; of float16 at least its smallest normal number, below which
/// it has no relative precision.
double least_size_of(const Pack& pack, const PreparedCase& prepared, const std::string& tensor);

/// The plain computation's outputs on the judge's device, brought to the CPU.
Tensors plain_of(const Pack& pack, const Case& item, const Tensors& inputs, const Request& request);

/// The outputs of the case that a case names in its axis `scaled_from`: the same inputs with the
/// upstream gradient times another factor.
struct Related {
  Tensors outputs;
  double gradient_times = 1;
};

/// Turns one answer into an observation: layers against the oracle, then absent, present in the
/// class that the pack's predicate names, or "undeclared" (wrong, but in no way that the pack
/// names) where none fits. bf16 from outside this process on the CPU is unjudged. Spoils the
/// outputs first where the request asks for it. `answer` is consumed. With `base` each output
/// grad_* has one layer more, "linear": max |G - f B| / max |f B| for the base's output B and the
/// ratio f of the factors, at most the element's limit and at most 16 epsilons: a factor
/// that is a power of two commutes with every rounding, so that the order of sums alone is left.
/// `relations` are further layers (relations.h). An isolated case has one layer "guard_band" for
/// each input (guard_bands.h).
Observation judge_case(const Pack& pack, const PreparedCase& prepared, const Request& request,
                       int repeat, Answer answer, const Related* base = nullptr,
                       const std::vector<Measure>& relations = {});

}  // namespace patchbench::harness
