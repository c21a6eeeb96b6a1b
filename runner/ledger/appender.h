#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <optional>
#include <string>

#include "ledger/ledger.h"
#include "ledger/store.h"

namespace patchbench::ledger {

/// Adds records to the end of the chain inside the caller's transaction; its statements are
/// prepared once.
class Appender {
 public:
  explicit Appender(SQLite::Database& database);
  /// Appends a record that `complete` saw, and its signature. Returns whether it was new. Throws
  /// Error(kIntegrity) if it is a verdict that does not follow from what stands before.
  bool append(Incoming incoming);

 private:
  void insert(const Incoming& incoming);
  void hold(const std::string& run);
  SQLite::Database& database_;
  SQLite::Statement known_, add_, sign_;
  std::optional<Row> last_;  ///< the end of the chain; nullopt where it is empty
  std::string run_;          ///< the run whose records are held
  RunWitnesses witnesses_;   ///< all of that run in the ledger
};

/// Fills in what may be left out of an incoming record and checks the rest: what `verify` would
/// refuse never gets in. Throws as parse_record; Error(kIntegrity) on a signature that does not
/// hold.
void complete(Incoming& incoming);

}  // namespace patchbench::ledger
