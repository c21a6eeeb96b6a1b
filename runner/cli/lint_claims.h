#pragma once
#include "ledger/record_set.h"
#include "report/claim_lint.h"
#include "workbench/context.h"

namespace patchbench::cli {

/// The records that a body may cite: all but unsigned imports. `record_set` must outlive it.
report::FindRecord citable_in(const ledger::RecordSet& record_set);

}  // namespace patchbench::cli
