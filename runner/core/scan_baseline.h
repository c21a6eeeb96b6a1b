#pragma once
#include <string>
#include <string_view>

#include "core/scan_report.h"

namespace patchbench {

/// Marks what a former answer of `scan --format json` holds, too: a class of a hit with the same
/// release and place, whose condition was as near to being met; what was unknown; a place in code
/// with the same text, as often as it is there. What was ignored then is not marked. Error(kUsage)
/// `<file>: <reason>` for anything but such an answer.
void apply_baseline(ScanReport& report, std::string_view text, const std::string& file);

}  // namespace patchbench
