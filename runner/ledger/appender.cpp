#include "ledger/appender.h"

#include <fmt/format.h>

#include <limits>

#include "core/digest.h"
#include "core/error.h"
#include "ledger/findings.h"
#include "ledger/verify.h"

namespace patchbench::ledger {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

std::optional<Row> last_row(const SQLite::Database& database) {
  SQLite::Statement last(
      database, fmt::format("SELECT {} FROM records ORDER BY idx DESC LIMIT 1", kRowColumns));
  if (!last.executeStep()) return std::nullopt;
  return row_of(last);
}

}  // namespace

std::string name_of(const Incoming& incoming, const std::string& digest) {
  return incoming.where.empty() ? incoming.record.type() + " record " + digest.substr(0, 16)
                                : incoming.where;
}

Appender::Appender(SQLite::Database& database)
    : database_(database),
      known_(database, "SELECT 1 FROM records WHERE digest = ?"),
      add_(database,
           fmt::format("INSERT INTO records ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kRowColumns)),
      sign_(database, "INSERT OR IGNORE INTO signatures VALUES (?, ?, ?, ?)"),
      last_(last_row(database)) {}

bool Appender::append(Incoming incoming, const std::string& text) {
  const std::string digest = sha256_hex(text);
  known_.reset();
  known_.bind(1, digest);
  const bool is_known = known_.executeStep();
  if (!is_known) insert(incoming, text, digest);
  if (incoming.signature) {
    sign_.reset();
    sign_.bind(1, digest);
    sign_.bind(2, incoming.signature->key_id);
    sign_.bind(3, incoming.signature->public_key);
    sign_.bind(4, incoming.signature->signature);
    sign_.exec();
  }
  if (!is_known && incoming.record.type() == "observation") {
    hold(incoming.record.run_id());
    observations_.insert({digest, std::move(incoming.record)});
  }
  return !is_known;
}

void Appender::hold(const std::string& run) {
  if (run == run_) return;
  run_ = run;
  observations_ = parsed_observations(observations_of_run(database_, run, kEnd));
}

void Appender::insert(const Incoming& incoming, const std::string& text,
                      const std::string& digest) {
  Row row{.index = last_ ? last_->index + 1 : 0,
          .digest = digest,
          .chain = chain_next(last_ ? last_->chain : "", digest),
          .received = utc_now(),
          .origin = incoming.origin,
          .run = incoming.record.run_id(),
          .record = text,
          .seal = ""};
  row.seal = seal_of(row);
  if (incoming.record.type() == "verdict") {
    hold(row.run);
    try {
      check_verdict(incoming.record, observations_);
    } catch (const Error& e) {
      throw e.in(name_of(incoming, digest));
    }
  }
  add_.reset();
  add_.bind(1, row.index);
  int column = 2;
  for (const std::string* value :
       {&row.digest, &row.chain, &row.received, &row.origin, &row.run, &row.record, &row.seal}) {
    add_.bind(column++, *value);
  }
  add_.exec();
  note(database_, row, incoming.record);
  last_ = std::move(row);
}

}  // namespace patchbench::ledger
