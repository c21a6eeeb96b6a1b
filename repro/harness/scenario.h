#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/manifest.h"
#include "harness/inputs.h"
#include "harness/pack.h"

namespace patchbench::harness {

/// The scenario of a case (core/scenario.h), axis `scenario`; "" without one.
std::string scenario_of(const Case& item);

/// Takes the entries "kept/<name>" out of a subject process's outputs: what changed of each input,
/// or of the module that was copied.
Tensors take_kept(Tensors& outputs);

/// Why these are not one number for each input of a case in `inputs_kept`, one for the module in
/// `copied`, and none of another; "".
std::string wrong_kept(const Case& item, const Tensors& kept, const Tensors& inputs);

/// The layer "inputs_kept" of one input or module: how many of its elements changed; none may.
Measure kept_layer(const std::string& name, const at::Tensor& changed);

/// Gives the gradients that a scenario leaves out their right values. One gradient of a case in
/// `frozen` has to be there.
void fill_left_out(const Case& item, Tensors& outputs, const Tensors& plain);

}  // namespace patchbench::harness
