#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ledger/ledger.h"

namespace patchbench::ledger {

/// The committed files of some packs, `<root>/reports/evidence/<slug>/*.jsonl`, by name: text,
/// path.
void each_evidence_file(const std::filesystem::path& root, const std::vector<std::string>& slugs,
                        const std::function<void(const std::string&, const std::string&)>& take);

/// The records of those files.
/// A record counts because the repository has it, so its origin is "local". Throws
/// Error(kUsage) `<file>:<line>: <reason>`.
std::vector<Entry> evidence(const std::filesystem::path& root,
                            const std::vector<std::string>& slugs);

/// The ledger's records and, after them, the committed ones of some packs; one that was made here
/// is there once, any other one that is in both comes last, as committed. What was evicted or is
/// dated ahead (ledger/made.h) is left out. A ledger that is not there holds none.
std::vector<Entry> known(const std::filesystem::path& ledger, const std::filesystem::path& root,
                         const std::vector<std::string>& slugs);

}  // namespace patchbench::ledger
