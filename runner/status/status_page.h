#pragma once
#include <string>

#include "status/standing.h"

namespace patchbench {

/// "0.8.0", "2.3.2.post1 with triton 3.5.1": a place's version and what was unusual beside it.
std::string version_text(const Place& place);
/// What a finding says (`described`), with its marks: "BUG_ABSENT (unisolated)".
std::string marked(const Standing& standing, const Finding& finding);

/// reports/STATUS.md: dates, no ages; one row per version, question and device.
std::string status_markdown(const Standing& standing);
/// The README's table: what holds on each pack's red pin, per device.
std::string status_summary(const Standing& standing);

}  // namespace patchbench
