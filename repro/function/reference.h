#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "harness/explore.h"

namespace patchbench::function {

/// What is right for each case of a batch, from one call of `ask`: the oracle is the reference on
/// the floating inputs in fp64, the plain computation the reference on them as they are. Both get
/// contiguous tensors and go backward once. A case has no reference where it raised, where one of
/// its results is not finite, or where the plain computation is wrong by more than 64 units in the
/// last place (32 in float16 and bfloat16): the limits are multiples of its error.
std::map<std::string, harness::Reference> references_of(
    const std::vector<harness::SubjectCase>& batch, const harness::AnswerBatch& ask);

}  // namespace patchbench::function
