#pragma once
#include <string>
#include <vector>

#include "ledger/record_set.h"
#include "workbench/context.h"

namespace patchbench {

/// As many characters of a digest as a table shows.
inline constexpr std::size_t kShortDigest = 12;

/// What does not hold of a manifest's scope: cited records that are not in `record_set`, are of
/// another pack or say the contrary, and rows of which no record earned a sentinel. One line each.
std::vector<std::string> claim_problems(const Manifest& manifest,
                                        const ledger::RecordSet& record_set);

}  // namespace patchbench
