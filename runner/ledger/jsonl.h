#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ledger/ledger.h"

namespace patchbench::ledger {

/// How an exported file holds what its records share (row_reader.h).
enum class EvidenceFormat {
  kShared,  ///< format 3: once a section, the rows refer to it
  kWhole,   ///< format 1: in each record, so that each line is a whole in-toto Statement
};
/// One record a line, RFC 8785 form, in chain order; signed lines are DSSE-shaped envelopes when
/// `key` is given. Only records made here are signed; imports keep the signature they came with, or
/// none.
std::string export_jsonl(const std::vector<Entry>& entries, const std::filesystem::path& key = {},
                         EvidenceFormat format = EvidenceFormat::kShared);
/// The records of an exported file, as `import` would take them. Throws as `import_jsonl` does.
std::vector<Incoming> read_jsonl(std::string_view text, const std::string& where,
                                 const std::filesystem::path& trusted_keys = {});
/// Strict; throws Error(kUsage) `<where>:<line>: <reason>` and appends nothing if any line is bad.
/// A signature by a key of `trusted_keys` that does not hold is Error(kIntegrity); one by any other
/// key counts as none.
int import_jsonl(Ledger& ledger, std::string_view text, const std::string& where,
                 const std::filesystem::path& trusted_keys = {});
/// One file of several to import together.
struct ImportFile {
  std::string text, where;
};
/// Imports all files in one transaction: all of them or nothing.
int import_jsonl(Ledger& ledger, const std::vector<ImportFile>& files,
                 const std::filesystem::path& trusted_keys = {});

/// `verify` for an exported file. Its head is that of the chain its records would have in a ledger
/// of their own; the file itself holds no chain, so a change that no verdict or signature speaks of
/// shows only against an expected head.
VerifyReport verify_jsonl(std::string_view text, const std::string& where,
                          const std::filesystem::path& trusted_keys = {},
                          std::optional<int64_t> expected_count = {},
                          const std::string& expected_head = "");

}  // namespace patchbench::ledger
