#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <map>
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
  /// Appends the record whose RFC 8785 text is `text`, and its signature. Returns whether it was
  /// new. Throws Error(kIntegrity) if it is a verdict that does not follow from what stands before.
  bool append(Incoming incoming, const std::string& text);

 private:
  void insert(const Incoming& incoming, const std::string& text, const std::string& digest);
  void hold(const std::string& run);
  SQLite::Database& database_;
  SQLite::Statement known_, add_, sign_;
  std::optional<Row> last_;                     ///< the end of the chain; nullopt where it is empty
  std::string run_;                             ///< the run whose observations are held
  std::map<std::string, Record> observations_;  ///< all of that run in the ledger, by digest
};

/// What a message calls an incoming record.
std::string name_of(const Incoming& incoming, const std::string& digest);

}  // namespace patchbench::ledger
