#include "ledger/store.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <array>
#include <cctype>
#include <chrono>
#include <thread>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "ledger/findings.h"

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;

constexpr int kApplicationId = 0x50424c47;  // "PBLG"
constexpr int kFormat = 2, kFormatWithoutFindings = 1;
constexpr int kBusyTimeoutMs = 60'000;

constexpr std::string_view kFindings = "findings", kEvictions = "evictions";

/// SQLite keeps the text of each definition, so this list is also what `altered_definitions`
/// compares with.
constexpr std::array<std::pair<std::string_view, const char*>, 10> kDefinitions = {{
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
    // Verdicts and evictions in short, so that a status need not parse a million records.
    {kFindings,
     "CREATE TABLE findings (idx INTEGER PRIMARY KEY, slug TEXT NOT NULL, upstream TEXT NOT NULL, "
     "version TEXT NOT NULL, beside TEXT NOT NULL, asked TEXT NOT NULL, device TEXT NOT NULL, "
     "sentinel TEXT NOT NULL, started TEXT NOT NULL, manifest TEXT NOT NULL, digest TEXT NOT NULL, "
     "isolated INTEGER NOT NULL, origin TEXT NOT NULL) STRICT"},
    {kEvictions,
     "CREATE TABLE evictions (idx INTEGER PRIMARY KEY, evicted TEXT NOT NULL, digest TEXT NOT "
     "NULL, "
     "origin TEXT NOT NULL) STRICT"},
}};

int pragma(SQLite::Database& database, const std::string& name) {
  return database.execAndGet("PRAGMA " + name).getInt();
}

enum class State { kFresh, kWithoutFindings, kReady };

/// How far the file is made. Throws if it is somebody else's. To be called inside a transaction:
/// between two looks of one process another may create the tables.
State state_of(SQLite::Database& database, const fs::path& path) {
  const int id = pragma(database, "application_id");
  const int num_objects = database.execAndGet("SELECT count(*) FROM sqlite_schema").getInt();
  if (id == 0 && num_objects == 0) return State::kFresh;
  if (id != kApplicationId)
    throw Error(ErrorCode::kIntegrity, path.string() + ": a SQLite file, but no patchbench ledger");
  const int format = pragma(database, "user_version");
  if (format != kFormat && format != kFormatWithoutFindings) {
    throw Error(ErrorCode::kIntegrity, path.string() + ": ledger format " + std::to_string(format) +
                                           "; this patchbench reads " + std::to_string(kFormat));
  }
  return format == kFormat ? State::kReady : State::kWithoutFindings;
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
  const State state = state_of(database, path);
  if (state == State::kReady) return;  // another process was first
  for (const auto& [name, sql] : kDefinitions) {
    const bool is_of_findings = name == kFindings || name == kEvictions;
    if (state == State::kFresh || is_of_findings) database.exec(sql);
  }
  if (state == State::kWithoutFindings) note_all_rows(database);
  database.exec("PRAGMA application_id=" + std::to_string(kApplicationId));
  database.exec("PRAGMA user_version=" + std::to_string(kFormat));
  transaction.commit();
}

SQLite::Database open_to_write(const fs::path& path) {
  SQLite::Database database(path.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE,
                            kBusyTimeoutMs);
  bool needs_tables = false;
  {
    const SQLite::Transaction snapshot(database, SQLite::TransactionBehavior::DEFERRED);
    needs_tables = state_of(database, path) != State::kReady;
  }
  // Of a new file alone. A row has 2 to 3 KiB: of pages of 4 KiB a third would stay empty.
  database.exec("PRAGMA page_size=16384");
  set_wal(database);
  database.exec("PRAGMA synchronous=FULL");
  if (needs_tables) create_tables(database, path);
  return database;
}

/// A `file:` URI of a path.
std::string uri_of(const fs::path& path) {
  std::string uri = "file:";
  for (const char c : fs::absolute(path).string()) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/';
    uri += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return uri;
}

/// On a read-only file system. There SQLite reads a file in WAL mode only as one that nobody
/// changes, and ignores the log file next to it. If there is a log, records would be missing.
SQLite::Database open_to_read(const fs::path& path) {
  const fs::path log = path.string() + "-wal";
  std::error_code none;
  if (fs::exists(log, none) && fs::file_size(log, none) > 0) {
    throw Error(ErrorCode::kInternal,
                path.string() + ": may not be written, and " + log.filename().string() +
                    " holds records that are not in it yet; copy both files to a folder that may "
                    "be written, and name the copy with --ledger");
  }
  SQLite::Database database(uri_of(path) + "?immutable=1", SQLite::OPEN_READONLY | SQLite::OPEN_URI,
                            kBusyTimeoutMs);
  if (state_of(database, path) != State::kReady) {
    throw Error(ErrorCode::kInternal,
                path.string() +
                    ": was made by an older patchbench and may not be written; copy it "
                    "to a folder that may be, and name the copy with --ledger");
  }
  return database;
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
    try {
      return open_to_write(path);
    } catch (const SQLite::Exception& e) {
      constexpr int kPrimaryCode = 0xff;
      const int code = e.getErrorCode() & kPrimaryCode;
      const bool may_not_write = code == SQLITE_READONLY || code == SQLITE_CANTOPEN;
      if (!may_not_write || !fs::exists(path)) throw;
      return open_to_read(path);
    }
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
    query.bind(1, std::string(name));
    if (!query.executeStep() || query.getColumn(0).getString() != sql) altered.emplace_back(name);
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

std::vector<std::string> records_of_run(const SQLite::Database& database, const std::string& run,
                                        int64_t end) {
  SQLite::Statement query(database,
                          "SELECT record FROM records WHERE run = ? AND idx < ? ORDER BY idx");
  query.bind(1, run);
  query.bind(2, end);
  std::vector<std::string> records;
  while (query.executeStep()) records.push_back(query.getColumn(0).getString());
  return records;
}

}  // namespace patchbench::ledger
