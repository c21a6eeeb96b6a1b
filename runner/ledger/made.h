#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/finding.h"

namespace patchbench::ledger {

/// Whether a record says that it was made after it was received, or after now where nobody knows
/// when it was received (""). Such a record of another machine is kept, `verify` names it, and it
/// never counts.
bool is_dated_ahead(const std::string& started, const std::string& received);

/// Dates records that were made here by their order, whatever the clock of their run said: none is
/// newer than the one after it, the last one not newer than now. `own`: their numbers in chain
/// order; `made_of` gives what is corrected.
void date_by_order(const std::vector<std::size_t>& own,
                   const std::function<Made&(std::size_t)>& made_of);

}  // namespace patchbench::ledger
