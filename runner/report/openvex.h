#pragma once
#include <vector>

#include "core/json.h"
#include "report/advisory.h"

namespace patchbench::report {

/// An OpenVEX 0.2.0 document: affected where a device saw a failure, with the action; fixed where
/// every device that judged saw none and an older release is affected; not_affected where none is
/// older; under_investigation where nothing was judged.
Json openvex_document(const std::vector<Advisory>& advisories);

}  // namespace patchbench::report
