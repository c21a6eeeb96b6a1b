#pragma once
#include <string>

#include "core/json.h"
#include "core/scan_report.h"

namespace patchbench::report {

/// SARIF 2.1.0: one result for each hit and each unknown answer, where the package is listed, and
/// for each place in code. A fingerprint depends on the pack, the product and the file's name, not
/// on the line. What is ignored is suppressed.
Json sarif_document(const ScanReport& report, int exit_code, const std::string& version);

/// A path as a URI: relative as it is, absolute with the scheme file.
std::string uri_of(const std::string& path);

}  // namespace patchbench::report
