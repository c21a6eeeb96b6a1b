#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <functional>
#include <set>
#include <string>

#include "core/finding.h"
#include "core/record.h"
#include "ledger/ledger.h"
#include "ledger/store.h"

namespace patchbench::ledger {

// The tables `findings` and `evictions` repeat what the records say, a row for each verdict and
// each eviction; `verify` compares them.

/// Notes a verdict or an eviction in short; nothing for any other record.
void note(SQLite::Database& database, const Row& row, const Record& record);
/// Notes every record of a ledger that was made without these tables.
void note_all_rows(SQLite::Database& database);
/// What is wrong with the note of one row, "" if it says what the record says.
std::string wrong_note(const SQLite::Database& database, const Row& row, const Record& record);
/// Whether there is a note of a row that is not there.
bool has_stray_note(const SQLite::Database& database);

/// Every verdict that passes, in chain order, from the notes alone.
void each_finding(const SQLite::Database& database, const FindingFilter& filter,
                  const std::function<void(const Finding&)>& take);
/// Digests taken out of use by evictions that count.
std::set<std::string> evicted_by_notes(const SQLite::Database& database);

}  // namespace patchbench::ledger
