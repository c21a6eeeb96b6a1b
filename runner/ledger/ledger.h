#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/record.h"

namespace patchbench::ledger {

/// A row as it stands in the ledger.
struct Entry {
  int64_t index = 0;      ///< position in the chain, from 0
  std::string digest, chain, received;  ///< received: ISO 8601 UTC, not part of the record
  std::string origin;     ///< "local" or "import"
  std::string signer;     ///< key id, "" if unsigned
  Record record;
};

/// What `verify` found. `where` names the first row that does not hold.
struct VerifyReport {
  bool ok = true;
  int64_t count = 0;
  std::string head, where, note;  ///< note: "truncation at the end would go unseen; pass --expect COUNT:HEAD"
};

/// The append-only SQLite ledger (WAL, synchronous=FULL). One transaction per append: a committed record survives kill -9.
/// Thread-compatible; any number of processes may append at once (busy time-out 60 s).
class Ledger {
 public:
  /// Opens or creates. Throws Error(kInternal) `<path>: <reason>`; Error(kIntegrity) if the file is not a ledger.
  static std::unique_ptr<Ledger> open(const std::filesystem::path& path);
  /// `--ledger`, else PATCHBENCH_LEDGER, else $XDG_STATE_HOME/patchbench/ledger.db.
  static std::filesystem::path default_path();
  virtual ~Ledger() = default;

  /// Appends all in one transaction, in order; a record already there (same digest) is not added again. Returns how many were new.
  virtual int append(const std::vector<Record>& records, const std::string& origin = "local") = 0;
  virtual std::vector<Entry> all() const = 0;
  virtual std::optional<Entry> find(const std::string& digest_prefix) const = 0;
  /// Recomputes every digest, the chain and every verdict's sentinel.
  virtual VerifyReport verify(std::optional<int64_t> expected_count = {}, const std::string& expected_head = "") const = 0;
};

/// One record a line, RFC 8785 form, in chain order; signed lines are DSSE-shaped envelopes when `key` is given.
std::string export_jsonl(const std::vector<Entry>& entries, const std::filesystem::path& key = {});
/// Strict; throws Error(kUsage) `<where>:<line>: <reason>` and appends nothing if any line is bad.
int import_jsonl(Ledger& ledger, std::string_view text, const std::string& where,
                 const std::filesystem::path& trusted_keys = {});

}  // namespace patchbench::ledger
