#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/finding.h"
#include "core/record.h"
#include "ledger/signing.h"

namespace patchbench::ledger {

/// Which verdicts are asked for.
struct FindingFilter {
  std::string slug;    ///< "" for all
  std::string before;  ///< only what was made before this time; "" for all
};

/// How many records of each origin: made here, vouched for by a trusted key, or neither.
struct Origins {
  int64_t num_local = 0, num_signed = 0, num_unsigned = 0, num_evicted = 0;
};

/// A row as it stands in the ledger.
struct Entry {
  int64_t index = 0;                    ///< position in the chain, from 0
  std::string digest, chain, received;  ///< received: ISO 8601 UTC, not part of the record
  std::string origin;                   ///< "local" or "import"
  std::string signer;                   ///< key id, "" if unsigned
  Record record;
  std::string signature;  ///< the signer's, base64; "" if unsigned
  Made made = {};
};

/// A record on its way into the ledger.
struct Incoming {
  Record record;                       ///< may be empty where a witness replaces it
  std::string origin = "local";        ///< "local" or "import"
  std::optional<Signature> signature;  ///< checked against a trusted key by whoever fills this in
  std::string where;                   ///< "file:line" for messages; may be empty
  /// The RFC 8785 text that parse_record took `record` from; "" where it was not read from one.
  std::string text;
  std::string digest;              ///< of `text`; "" as long as `complete` has not seen it
  std::optional<Witness> witness;  ///< of an observation, as `digest`
};

/// What `verify` found. `where` names the first row that does not hold.
struct VerifyReport {
  bool ok = true;
  int64_t count = 0;
  std::string head, where,
      note;  ///< note: "truncation at the end would go unseen; pass --expect COUNT:HEAD"
  std::vector<std::string> ahead;  ///< rows that are dated ahead (ledger/made.h)
  int64_t bad_index = -1;  ///< the row `where` speaks of; -1 where it is the file as a whole
  std::string bad_digest;  ///< as stored in that row; may be empty
};

/// The append-only SQLite ledger (WAL, synchronous=FULL). One transaction per append: a committed
/// record survives kill -9. Triggers refuse UPDATE and DELETE. Thread-compatible; any number of
/// processes may append at once (busy time-out 60 s).
class Ledger {
 public:
  /// Opens or creates; on a read-only file system it can be read, and an append throws. Throws
  /// Error(kInternal) `<path>: <reason>`; Error(kIntegrity) if the file is not a ledger.
  static std::unique_ptr<Ledger> open(const std::filesystem::path& path);
  /// `--ledger`, else PATCHBENCH_LEDGER, else $XDG_STATE_HOME/patchbench/ledger.db.
  static std::filesystem::path default_path();
  virtual ~Ledger() = default;

  /// Appends all in one transaction, in order; a record already there (same digest) is not added
  /// again. Returns how many were new. Nothing is appended if a record's form is wrong (Error
  /// kUsage) or a verdict does not follow from the observations that stand before it (Error
  /// kIntegrity): the ledger cannot take back what it took in.
  int append(const std::vector<Record>& records, const std::string& origin = "local");
  /// The same for records that come from elsewhere. A signature of a record that is already there
  /// is added to it.
  int append_received(const std::vector<Incoming>& incoming);
  /// The same for all that `next` gives until it gives none: one record is held at a time. An Error
  /// of `next` leaves nothing.
  virtual int append_each(const std::function<std::optional<Incoming>()>& next) = 0;
  virtual Origins origins() const = 0;
  /// Every verdict that passes, in chain order, without reading its record.
  virtual void each_finding(const FindingFilter& filter,
                            const std::function<void(const Finding&)>& take) const = 0;
  /// Digests taken out of use by evictions that count for a quorum.
  virtual std::set<std::string> evicted() const = 0;
  /// The verdicts that may replace a run of one's own: they count, and none is evicted.
  void each_answer(const FindingFilter& filter,
                   const std::function<void(const Finding&)>& take) const;
  /// Every row, in chain order. Throws Error(kIntegrity) naming the row if one cannot be read.
  virtual std::vector<Entry> all() const = 0;
  /// The record whose digest begins with 4 or more hex digits. Throws Error(kUsage) if several do.
  virtual std::optional<Entry> find(const std::string& digest_prefix) const = 0;
  /// Recomputes every digest, the chain, every signature and every verdict's sentinel, then lets
  /// SQLite check its own pages. With `expected_count` the first so many rows must end in chain
  /// `expected_head` (further rows may follow). Never throws for what the file holds: that is the
  /// report.
  virtual VerifyReport verify(std::optional<int64_t> expected_count = {},
                              const std::string& expected_head = "") const = 0;
};

/// Whether an entry may count towards a quorum: made here, or imported with the signature of a
/// trusted key.
bool counts_for_quorum(const Entry& entry);
/// Digests taken out of use by `evict` records that count for a quorum. Nothing is ever deleted:
/// readers leave these out.
std::set<std::string> evicted_digests(const std::vector<Entry>& entries);
/// The record that takes `evicted` out of use. `started`: ISO 8601 UTC.
Record make_evict_record(const Entry& evicted, const std::string& why, const std::string& tool,
                         const std::string& started);

/// Now, as ISO 8601 UTC to the second: the form of every time in a record.
std::string utc_now();

}  // namespace patchbench::ledger
