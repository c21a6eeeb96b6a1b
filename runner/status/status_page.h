#pragma once
#include <string>

#include "status/verdict_index.h"

namespace patchbench {

/// reports/STATUS.md: dates, no ages; one row per version, question and device.
std::string status_markdown(const VerdictIndex& verdicts);
/// The README's table: what holds on each pack's red pin, per device.
std::string status_summary(const VerdictIndex& verdicts);

}  // namespace patchbench
