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
};

/// Makes inputs, oracle and plain computation of one case for the request's seed and device.
PreparedCase prepare_case(const Pack& pack, const Case& item, const Request& request);

/// Turns one answer into an observation: layers against the oracle, then absent, present in the
/// class that the pack's predicate names, or "undeclared" (wrong, but in no way that the pack
/// names) where none fits. bf16 from outside this process on the CPU is unjudged. Spoils the
/// outputs first where the request asks for it. `answer` is consumed.
Observation judge_case(const Pack& pack, const PreparedCase& prepared, const Request& request,
                       int repeat, Answer answer);

}  // namespace patchbench::harness
