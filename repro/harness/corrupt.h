#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "harness/inputs.h"

namespace patchbench::harness {

/// One deliberate way of being wrong: a judge that takes it for right is broken.
struct Corruption {
  std::string name;
  std::string what;
};

/// Every corruption, in the order in which the self-test runs them.
const std::vector<Corruption>& all_corruptions();

/// What a corruption may draw from besides the outputs.
struct CorruptionMaterial {
  Tensors inputs;
  Tensors other;                      ///< right outputs of the same case for another seed
  at::ScalarType dtype = at::kFloat;  ///< in which the case computes
};

/// Spoils outputs. `spec` is NAME (every tensor on which it makes a difference) or NAME@TENSOR.
/// Returns false if nothing was changed (a zero tensor cannot be zeroed). Throws Error(kUsage) with
/// did-you-mean on an unknown name.
bool corrupt(std::string_view spec, const CorruptionMaterial& material, Tensors& outputs);

}  // namespace patchbench::harness
