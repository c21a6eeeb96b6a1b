#pragma once
#include <SQLiteCpp/SQLiteCpp.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace patchbench::ledger {

/// One row of table `records`, with the bytes of the file, unchecked.
struct Row {
  int64_t index = 0;
  std::string digest, chain, received, origin, run, record, seal;
};

/// The columns that the chain does not speak of (received, origin, run) are sealed to the row: a
/// changed byte shows.
std::string seal_of(const Row& row);

/// Opens the SQLite file with our settings and, if it is new, our tables; one that may not be
/// written is opened to be read. Throws as Ledger::open.
SQLite::Database open_database(const std::filesystem::path& path);

/// Names of tables, indexes and triggers whose definition is not the one that open_database wrote;
/// empty if all are.
std::vector<std::string> altered_definitions(const SQLite::Database& database);

/// Rows in chain order, `condition` being what follows "FROM records " (e.g. "WHERE run = ? AND idx
/// < ? ORDER BY idx").
inline constexpr std::string_view kRowColumns =
    "idx, digest, chain, received, origin, run, record, seal";
Row row_of(SQLite::Statement& statement);

/// The records of one run among the first `end` rows. Throws Error if one cannot be parsed.
std::vector<std::string> records_of_run(const SQLite::Database& database, const std::string& run,
                                        int64_t end);

}  // namespace patchbench::ledger
