#pragma once
#include <cstdint>
#include <string>

#include "core/observation.h"
#include "harness/inputs.h"

namespace patchbench::harness {

/// Guard bands show what a subject does outside its tensors, without a crash and the same way each
/// time. The storage of every input of an isolated case lies between two bands, each 4 times as
/// long as the storage (64 elements at least, a multiple of 64: the alignment stays). A write past
/// a tensor changes a band, which is a measure of its own. A read past a tensor gives the band's
/// values, which the pack's predicate can recognise in the outputs. An access beyond a band is not
/// seen.

/// Moves the storage of every tensor between bands, keeps the views, and returns input -> bands,
/// [2, length]: before and after the storage. The values are drawn for (seed, case, tensor):
/// floating ones from [2, 3), whole numbers from [0, 4), so that an index that is read from a band
/// stays small.
Tensors lay_bands(Tensors& inputs, const std::string& case_name, uint64_t seed);

/// The bands around a tensor as they are now, [2, length], a copy on its device.
at::Tensor bands_around(const at::Tensor& tensor, int64_t length);

/// Takes the entries "guard/<input>" out of a subject process's outputs.
Tensors take_bands(Tensors& outputs);

/// Why the bands that came back are not those that were laid, name by name, or "".
std::string wrong_bands(const Tensors& got, const Tensors& laid);

/// The layer "guard_band" of one input: how many elements of its bands changed; none may.
Measure band_layer(const std::string& name, const at::Tensor& got, const at::Tensor& laid);

}  // namespace patchbench::harness
