#pragma once
#include "run/setup.h"

namespace patchbench {

/// Runs the judge's mutants and a lying subject on this machine (once per build and sandbox;
/// remembered in the cache). Throws Error(kIntegrity) naming the mutant that passed: no sentinel is
/// issued while that holds.
void ensure_self_test(const Context& context, const Setup& setup);

}  // namespace patchbench
