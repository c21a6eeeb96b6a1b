#pragma once
#include <string>
#include <vector>

#include "harness/inputs.h"

namespace patchbench::harness {

/// How a tensor's values may be stored:
///
///   transposed     the axes in reversed order
///   strided        a gap of one element after each element of the last axis
///   offset         from the second element of a storage on
///   first_expanded stride 0 along the first axis, the values of its first row
///   last_expanded  stride 0 along the last axis, its first values
///
/// What lies in a gap or before an offset is 1e3, so that a reader that forgets them is seen.
const std::vector<std::string>& layouts();

/// The tensor in such a layout: the same values, but where the layout repeats some. A tensor of
/// rank 0 is returned as it is. Throws Error(kInternal) for a name that is none.
at::Tensor laid_out(const at::Tensor& tensor, const std::string& layout);

/// Rows (the first axis) that are zeroed: "first_row", "all_but_last", "all".
const std::vector<std::string>& masks();
at::Tensor masked(const at::Tensor& tensor, const std::string& mask);

}  // namespace patchbench::harness
