#pragma once
#include <string>

#include "core/json.h"
#include "core/scan_report.h"

namespace patchbench::report {

/// An OpenVEX 0.2.0 document: one statement for each pack and product, the worst answer of several.
/// `scan --vex` reads it back (core/scan_policy.h). `now`: its timestamp.
Json scan_openvex(const ScanReport& report, const std::string& now);

/// A CycloneDX 1.6 document of the packages that were found and one vulnerability for each pack and
/// product: exploitable, in_triage, not_affected or resolved.
Json scan_cyclonedx(const ScanReport& report, const std::string& now, const std::string& version);

}  // namespace patchbench::report
