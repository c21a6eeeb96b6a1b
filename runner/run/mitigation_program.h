#pragma once
#include "run/setup.h"

namespace patchbench {

/// Starts the program of a pack's mitigation (mitigations/programs/<slug>.py) in the environment
/// and the sandbox of `setup`: as the release is, under `auto`, and with the mitigation by name.
/// {"sha256", "stand_in", "forced", "off", "auto", "named"}, each start {"error", "bound"} or
/// {"failed": why}; {"missing": path} where the pack has none. `forced`: no record speaks for this
/// version, so that PATCHBENCH_FORCE names the mitigation.
Json run_mitigation_program(const Context& context, const Setup& setup);

}  // namespace patchbench
