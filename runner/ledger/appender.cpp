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

std::string run_of(const Incoming& incoming) {
  return incoming.witness ? incoming.witness->run_id : incoming.record.run_id();
}

/// What a message calls an incoming record.
std::string name_of(const Incoming& incoming) {
  return incoming.where.empty()
             ? incoming.record.type() + " record " + incoming.digest.substr(0, 16)
             : incoming.where;
}

}  // namespace

void complete(Incoming& incoming) {
  if (incoming.text.empty()) {
    incoming.text = canonical_json(incoming.record.statement);
    parse_record(incoming.text, incoming.where.empty() ? "record" : incoming.where);
  }
  if (incoming.digest.empty()) incoming.digest = sha256_hex(incoming.text);
  if (!incoming.witness && incoming.record.type() == "observation")
    incoming.witness = witness_of(incoming.record);
  if (incoming.origin != "local" && incoming.origin != "import") {
    throw Error(ErrorCode::kInternal,
                "ledger: origin must be local or import, got '" + incoming.origin + "'");
  }
  if (incoming.signature && !holds(*incoming.signature, incoming.text))
    throw Error(ErrorCode::kIntegrity, name_of(incoming) + ": the signature does not hold");
}

Appender::Appender(SQLite::Database& database)
    : database_(database),
      known_(database, "SELECT 1 FROM records WHERE digest = ?"),
      add_(database,
           fmt::format("INSERT INTO records ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kRowColumns)),
      sign_(database, "INSERT OR IGNORE INTO signatures VALUES (?, ?, ?, ?)"),
      last_(last_row(database)) {}

bool Appender::append(Incoming incoming) {
  known_.reset();
  known_.bind(1, incoming.digest);
  const bool is_known = known_.executeStep();
  const bool is_held = !is_known && (incoming.witness || incoming.record.type() == "plan");
  // Before the row is there, or it would be read back.
  if (is_held) hold(run_of(incoming));
  if (!is_known) insert(incoming);
  if (incoming.signature) {
    sign_.reset();
    sign_.bind(1, incoming.digest);
    sign_.bind(2, incoming.signature->key_id);
    sign_.bind(3, incoming.signature->public_key);
    sign_.bind(4, incoming.signature->signature);
    sign_.exec();
  }
  if (is_held && incoming.witness)
    witnesses_.observations.insert({std::move(incoming.digest), std::move(*incoming.witness)});
  else if (is_held)
    witnesses_.add(incoming.record, incoming.digest);
  return !is_known;
}

void Appender::hold(const std::string& run) {
  if (run == run_) return;
  run_ = run;
  witnesses_ = witnesses_among(records_of_run(database_, run, kEnd));
}

void Appender::insert(const Incoming& incoming) {
  Row row{.index = last_ ? last_->index + 1 : 0,
          .digest = incoming.digest,
          .chain = chain_next(last_ ? last_->chain : "", incoming.digest),
          .received = utc_now(),
          .origin = incoming.origin,
          .run = run_of(incoming),
          .record = incoming.text,
          .seal = ""};
  row.seal = seal_of(row);
  if (!incoming.witness && incoming.record.type() == "verdict") {
    hold(row.run);
    try {
      check_verdict(incoming.record, witnesses_);
    } catch (const Error& e) {
      throw e.in(name_of(incoming));
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
  if (!incoming.witness) note(database_, row, incoming.record);
  last_ = std::move(row);
}

}  // namespace patchbench::ledger
