#pragma once
#include <string>
#include <vector>

#include "cli/context.h"
#include "ledger/book.h"

namespace patchbench::cli {

/// What does not hold of a manifest's scope: cited records that are not in `book`, are of another
/// pack or say the contrary, and rows of which no record earned a sentinel. One line each.
std::vector<std::string> claim_problems(const Manifest& manifest, const ledger::Book& book);

}  // namespace patchbench::cli
