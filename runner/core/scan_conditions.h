#pragma once
#include "core/scan_report.h"

namespace patchbench {

/// Says of each class of each hit whether its condition is met: a place in code that meets it comes
/// before one of which it cannot be known, and that before one that rules it out. What a comment
/// ignores meets nothing, and leaves the condition open. A hit of which no class can be met is
/// ScanState::kPresent, and the places of its pack are ignored where no other answer is there.
void apply_conditions(ScanReport& report);

}  // namespace patchbench
