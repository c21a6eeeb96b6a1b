#pragma once
#include "core/json.h"
#include "report/advisory.h"

namespace patchbench::report {

/// An OSV record (schema 1.6 or later). Null if no release is affected. Ranges reach from the first
/// measured bad release to the first measured right one next to it ("fixed"), else to the last bad
/// one ("last_affected"): nothing is said of a release that was not measured. Any failure class is
/// affected; the classes and the records are in database_specific. A failure on one device
/// outweighs what another device says.
Json osv_record(const Advisory& advisory);

}  // namespace patchbench::report
