#pragma once
#include "ledger/book.h"
#include "report/claim_lint.h"
#include "workbench/context.h"

namespace patchbench::cli {

/// The records that a body may cite: all but unsigned imports. `book` must outlive it.
report::FindRecord citable_in(const ledger::Book& book);

}  // namespace patchbench::cli
