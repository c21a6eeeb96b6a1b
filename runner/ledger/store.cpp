#include "ledger/store.h"

#include <sqlite3.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "core/digest.h"
#include "core/error.h"

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;

constexpr int kApplicationId = 0x50424c47;  // "PBLG"
constexpr int kFormat = 1;
constexpr int kBusyTimeoutMs = 60'000;

/// SQLite keeps the text of each definition, so this list is also what `altered_definitions`
/// compares with.
constexpr std::array<std::pair<const char*, const char*>, 8> kDefinitions = {{
    {"records",
     "CREATE TABLE records (idx INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, chain TEXT NOT "
     "NULL, received TEXT NOT NULL, "
     "origin TEXT NOT NULL, run TEXT NOT NULL, record TEXT NOT NULL, seal TEXT NOT NULL) STRICT"},
    {"signatures",
     "CREATE TABLE signatures (digest TEXT NOT NULL, key_id TEXT NOT NULL, public_key TEXT NOT "
     "NULL, signature TEXT NOT NULL, "
     "PRIMARY KEY (digest, key_id)) STRICT"},
    {"records_by_run", "CREATE INDEX records_by_run ON records (run, idx)"},
    {"records_no_update",
     "CREATE TRIGGER records_no_update BEFORE UPDATE ON records BEGIN SELECT RAISE(ABORT, 'the "
     "ledger is append-only'); END"},
    {"records_no_delete",
     "CREATE TRIGGER records_no_delete BEFORE DELETE ON records BEGIN SELECT RAISE(ABORT, 'the "
     "ledger is append-only'); END"},
    // INSERT OR REPLACE deletes without firing a delete trigger; so an insert may only ever add the
    // next row.
    {"records_in_order",
     "CREATE TRIGGER records_in_order BEFORE INSERT ON records WHEN NEW.idx IS NOT (SELECT "
     "COALESCE(MAX(idx) + 1, 0) FROM "
     "records) OR EXISTS (SELECT 1 FROM records WHERE digest = NEW.digest) BEGIN SELECT "
     "RAISE(ABORT, 'the ledger is "
     "append-only'); END"},
    {"signatures_no_update",
     "CREATE TRIGGER signatures_no_update BEFORE UPDATE ON signatures BEGIN SELECT RAISE(ABORT, "
     "'the ledger is append-only'); "
     "END"},
    {"signatures_no_delete",
     "CREATE TRIGGER signatures_no_delete BEFORE DELETE ON signatures BEGIN SELECT RAISE(ABORT, "
     "'the ledger is append-only'); "
     "END"},
}};

int pragma(SQLite::Database& database, const std::string& name) {
  return database.execAndGet("PRAGMA " + name).getInt();
}

/// Whether the file is a fresh one. Throws if it is somebody else's. To be called inside a
/// transaction: between two looks of one process another may create the tables.
bool is_new(SQLite::Database& database, const fs::path& path) {
  const int id = pragma(database, "application_id");
  const int num_objects = database.execAndGet("SELECT count(*) FROM sqlite_schema").getInt();
  if (id == 0 && num_objects == 0) return true;
  if (id != kApplicationId)
    throw Error(ErrorCode::kIntegrity, path.string() + ": a SQLite file, but no patchbench ledger");
  if (const int format = pragma(database, "user_version"); format != kFormat) {
    throw Error(ErrorCode::kIntegrity, path.string() + ": ledger format " + std::to_string(format) +
                                           "; this patchbench reads " + std::to_string(kFormat));
  }
  return false;
}

/// Changing the journal mode does not wait on the busy handler when two processes do it to one new
/// file, so it is retried.
void set_wal(SQLite::Database& database) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(kBusyTimeoutMs);
  while (true) {
    try {
      database.execAndGet("PRAGMA journal_mode=WAL");
      return;
    } catch (const SQLite::Exception& e) {
      if (e.getErrorCode() != SQLITE_BUSY || std::chrono::steady_clock::now() > deadline) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

void create_tables(SQLite::Database& database, const fs::path& path) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  if (!is_new(database, path)) return;  // another process was first
  for (const auto& [name, sql] : kDefinitions) database.exec(sql);
  database.exec("PRAGMA application_id=" + std::to_string(kApplicationId));
  database.exec("PRAGMA user_version=" + std::to_string(kFormat));
  transaction.commit();
}

}  // namespace

std::string seal_of(const Row& row) {
  std::string text = std::to_string(row.index);
  for (const std::string* column :
       {&row.digest, &row.chain, &row.received, &row.origin, &row.run}) {
    text += "\n" + std::to_string(column->size()) + " " + *column;
  }
  return sha256_hex(text);
}

SQLite::Database open_database(const fs::path& path) {
  std::error_code failed;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), failed);
  try {
    SQLite::Database database(path.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE,
                              kBusyTimeoutMs);
    bool needs_tables = false;
    {
      const SQLite::Transaction snapshot(database, SQLite::TransactionBehavior::DEFERRED);
      needs_tables = is_new(database, path);
    }
    set_wal(database);
    database.exec("PRAGMA synchronous=FULL");
    if (needs_tables) create_tables(database, path);
    return database;
  } catch (const SQLite::Exception& e) {
    if (e.getErrorCode() == SQLITE_NOTADB || e.getErrorCode() == SQLITE_CORRUPT) {
      throw Error(ErrorCode::kIntegrity,
                  path.string() + ": not a ledger, or damaged at its start (" + e.what() + ")");
    }
    throw Error(ErrorCode::kInternal, path.string() + ": " + e.what() +
                                          "; name another file with --ledger or PATCHBENCH_LEDGER");
  }
}

std::vector<std::string> altered_definitions(const SQLite::Database& database) {
  std::vector<std::string> altered;
  for (const auto& [name, sql] : kDefinitions) {
    SQLite::Statement query(database, "SELECT sql FROM sqlite_schema WHERE name = ?");
    query.bind(1, name);
    if (!query.executeStep() || query.getColumn(0).getString() != sql) altered.push_back(name);
  }
  return altered;
}

Row row_of(SQLite::Statement& statement) {
  const auto text = [&](int column) { return statement.getColumn(column).getString(); };
  return {.index = statement.getColumn(0).getInt64(),
          .digest = text(1),
          .chain = text(2),
          .received = text(3),
          .origin = text(4),
          .run = text(5),
          .record = text(6),
          .seal = text(7)};
}

std::vector<std::string> observations_of_run(const SQLite::Database& database,
                                             const std::string& run, int64_t end) {
  SQLite::Statement query(database,
                          "SELECT record FROM records WHERE run = ? AND idx < ? ORDER BY idx");
  query.bind(1, run);
  query.bind(2, end);
  std::vector<std::string> records;
  while (query.executeStep()) records.push_back(query.getColumn(0).getString());
  return records;
}

}  // namespace patchbench::ledger
