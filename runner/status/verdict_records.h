#pragma once
#include "status/verdict_table.h"

namespace patchbench {

/// The table of all that the committed evidence and the ledger say; `mitigations/…/data` says on
/// which releases a mitigation acts.
VerdictTable table_from_records(const Context& context);

}  // namespace patchbench
