#include "ledger/findings.h"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "ledger/made.h"

namespace patchbench::ledger {
namespace {

/// The columns of table `findings` between the first and the last two.
std::array<const std::string*, 10> texts_of(const Finding& f) {
  return {&f.slug,   &f.upstream, &f.version, &f.companions,      &f.question.text(),
          &f.device, &f.sentinel, &f.started, &f.manifest_sha256, &f.digest};
}

constexpr const char* kFindingColumns =
    "f.slug, f.upstream, f.version, f.beside, f.asked, f.device, f.sentinel, f.started, "
    "f.manifest, f.digest, f.isolated, f.origin";

/// "counts": made here or signed (only signatures of trusted keys are ever stored).
constexpr const char* kCounts =
    "(origin = 'local' OR EXISTS (SELECT 1 FROM signatures s WHERE s.digest = ";

Finding read(SQLite::Statement& query) {
  const auto text = [&](int column) { return query.getColumn(column).getString(); };
  return {.slug = text(0),
          .upstream = text(1),
          .version = text(2),
          .companions = text(3),
          .question = text(4),
          .device = text(5),
          .sentinel = text(6),
          .started = text(7),
          .manifest_sha256 = text(8),
          .digest = text(9),
          .is_isolated = query.getColumn(10).getInt() != 0,
          .made = {text(7), 0, text(9)}};
}

}  // namespace

void note(SQLite::Database& database, const Row& row, const Record& record) {
  const std::string type = record.type();
  if (type == "verdict") {
    const Finding finding = finding_of(record, row.digest);
    SQLite::Statement add(database,
                          "INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    add.bind(1, row.index);
    int column = 2;
    for (const std::string* text : texts_of(finding)) add.bind(column++, *text);
    add.bind(column++, finding.is_isolated ? 1 : 0);
    add.bind(column, row.origin);
    add.exec();
  } else if (type == "evict") {
    SQLite::Statement add(database, "INSERT INTO evictions VALUES (?, ?, ?, ?)");
    add.bind(1, row.index);
    add.bind(2, record.predicate().at("digest").get<std::string>());
    add.bind(3, row.digest);
    add.bind(4, row.origin);
    add.exec();
  }
}

void note_all_rows(SQLite::Database& database) {
  SQLite::Statement query(database,
                          fmt::format("SELECT {} FROM records ORDER BY idx", kRowColumns));
  while (query.executeStep()) {
    const Row row = row_of(query);
    note(database, row, parse_record(row.record, "row " + std::to_string(row.index)));
  }
}

std::string wrong_note(const SQLite::Database& database, const Row& row, const Record& record) {
  const std::string type = record.type();
  if (type == "verdict") {
    SQLite::Statement query(
        database, fmt::format("SELECT {} FROM findings f WHERE f.idx = ?", kFindingColumns));
    query.bind(1, row.index);
    const bool holds = query.executeStep() && query.getColumn(11).getString() == row.origin &&
                       read(query) == finding_of(record, row.digest);
    return holds ? "" : "its row in findings says something else";
  }
  if (type == "evict") {
    SQLite::Statement query(database,
                            "SELECT evicted, digest, origin FROM evictions WHERE idx = ?");
    query.bind(1, row.index);
    const bool holds =
        query.executeStep() &&
        query.getColumn(0).getString() == record.predicate().at("digest").get<std::string>() &&
        query.getColumn(1).getString() == row.digest &&
        query.getColumn(2).getString() == row.origin;
    return holds ? "" : "its row in evictions says something else";
  }
  return "";
}

bool has_stray_note(const SQLite::Database& database) {
  SQLite::Statement query(
      database,
      "SELECT EXISTS (SELECT 1 FROM findings WHERE digest NOT IN (SELECT digest FROM records)) OR "
      "EXISTS (SELECT 1 FROM evictions WHERE digest NOT IN (SELECT digest FROM records))");
  query.executeStep();
  return query.getColumn(0).getInt() != 0;
}

void each_finding(const SQLite::Database& database, const FindingFilter& filter,
                  const std::function<void(const Finding&)>& take) {
  SQLite::Statement query(
      database,
      fmt::format("SELECT {}, {}f.digest)), (SELECT r.received FROM records r WHERE r.idx = f.idx "
                  "AND f.origin <> 'local') FROM findings f WHERE (?1 = '' OR f.slug = ?1) "
                  "ORDER BY f.idx",
                  kFindingColumns, kCounts));
  query.bind(1, filter.slug);
  std::vector<Finding> findings;
  std::vector<std::size_t> own;
  while (query.executeStep()) {
    Finding finding = read(query);
    finding.is_counted = query.getColumn(12).getInt() != 0;
    const bool is_own = query.getColumn(13).isNull();
    if (!is_own && is_dated_ahead(finding.started, query.getColumn(13).getString())) continue;
    if (is_own) own.push_back(findings.size());
    findings.push_back(std::move(finding));
  }
  date_by_order(own, [&](std::size_t i) -> Made& { return findings[i].made; });
  for (const Finding& finding : findings) {
    if (filter.before.empty() || finding.made.date < filter.before) take(finding);
  }
}

std::set<std::string> evicted_by_notes(const SQLite::Database& database) {
  SQLite::Statement query(
      database, fmt::format("SELECT evicted FROM evictions e WHERE {}e.digest))", kCounts));
  std::set<std::string> evicted;
  while (query.executeStep()) evicted.insert(query.getColumn(0).getString());
  return evicted;
}

}  // namespace patchbench::ledger
