#include "ledger/ledger.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "core/digest.h"
#include "core/error.h"
#include "ledger/appender.h"
#include "ledger/findings.h"
#include "ledger/made.h"
#include "ledger/store.h"
#include "ledger/verify.h"

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMinPrefix = 4;

class SqliteLedger : public Ledger {
 public:
  explicit SqliteLedger(const fs::path& path) : path_(path), database_(open_database(path)) {}

  int append_each(const std::function<std::optional<Incoming>()>& next) override {
    return guarded([&] {
      // Digests come in no order: a large import touches every page of their index, 90 MB of a
      // million records, and what does not fit is written and read again.
      database_.exec("PRAGMA cache_size=-262144");
      // What an insert's trigger could make undone, seven pages a record, would go to a file.
      database_.exec("PRAGMA temp_store=MEMORY");
      SQLite::Transaction transaction(database_, SQLite::TransactionBehavior::IMMEDIATE);
      Appender appender(database_);
      int num_new = 0;
      while (std::optional<Incoming> incoming = next()) {
        if (incoming->digest.empty()) complete(*incoming);
        num_new += appender.append(std::move(*incoming));
      }
      transaction.commit();
      return num_new;
    });
  }

  Origins origins() const override {
    return guarded([&] {
      SQLite::Statement query(
          database_,
          "SELECT count(*) FILTER (WHERE origin = 'local'), count(*) FILTER (WHERE origin <> "
          "'local' AND digest IN (SELECT digest FROM signatures)), count(*) FROM records");
      query.executeStep();
      Origins origins{query.getColumn(0).getInt64(), query.getColumn(1).getInt64(), 0,
                      static_cast<int64_t>(evicted_by_notes(database_).size())};
      origins.num_unsigned = query.getColumn(2).getInt64() - origins.num_local - origins.num_signed;
      return origins;
    });
  }

  void each_finding(const FindingFilter& filter,
                    const std::function<void(const Finding&)>& take) const override {
    guarded([&] { ledger::each_finding(database_, filter, take); });
  }

  std::set<std::string> evicted() const override {
    return guarded([&] { return evicted_by_notes(database_); });
  }

  std::vector<Entry> all() const override {
    std::vector<Entry> all = guarded([&] { return entries("ORDER BY idx", {}); });
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].origin == "local") own.push_back(i);
    }
    date_by_order(own, [&](std::size_t i) -> Made& { return all[i].made; });
    return all;
  }

  std::optional<Entry> find(const std::string& digest_prefix) const override {
    const bool is_prefix = digest_prefix.size() >= kMinPrefix && digest_prefix.size() <= 64 &&
                           is_hex(digest_prefix, digest_prefix.size());
    if (!is_prefix) {
      throw Error(ErrorCode::kUsage, "'" + shown(digest_prefix) +
                                         "' is no digest; give 4 to 64 lower-case hex digits");
    }
    std::vector<Entry> found = guarded([&] {
      return entries("WHERE digest >= ? AND digest < ? || 'g' ORDER BY idx LIMIT 2",
                     {digest_prefix, digest_prefix});
    });
    if (found.size() > 1)
      throw Error(ErrorCode::kUsage,
                  "several digests begin with " + digest_prefix + "; give more digits");
    if (found.empty()) return std::nullopt;
    return std::move(found.front());
  }

  VerifyReport verify(std::optional<int64_t> expected_count,
                      const std::string& expected_head) const override {
    ChainWalk walk(expected_count, expected_head, [&](const std::string& run, int64_t end) {
      return records_of_run(database_, run, end);
    });
    try {
      // One read transaction: every query sees the same state while others append.
      SQLite::Transaction snapshot(database_, SQLite::TransactionBehavior::DEFERRED);
      walk_rows(walk);
      if (walk.report().ok) check_signatures(walk);
      if (walk.report().ok) check_file(walk);
    } catch (const SQLite::Exception& e) {
      walk.fail("", std::string("the file is damaged here: ") + e.what());
    }
    return walk.finish();
  }

 private:
  template <typename Work>
  auto guarded(Work&& work) const -> decltype(work()) {
    try {
      return work();
    } catch (const SQLite::Exception& e) {
      throw Error(ErrorCode::kInternal,
                  path_.string() + ": " + e.what() + "; see patchbench ledger verify");
    }
  }

  std::vector<Entry> entries(const std::string& condition,
                             const std::vector<std::string>& values) const {
    SQLite::Statement query(database_,
                            fmt::format("SELECT {} FROM records {}", kRowColumns, condition));
    for (std::size_t i = 0; i < values.size(); ++i) query.bind(static_cast<int>(i) + 1, values[i]);
    SQLite::Statement signer(
        database_,
        "SELECT key_id, signature FROM signatures WHERE digest = ? ORDER BY rowid LIMIT 1");
    std::vector<Entry> out;
    while (query.executeStep()) {
      const Row row = row_of(query);
      Entry entry{.index = row.index,
                  .digest = row.digest,
                  .chain = row.chain,
                  .received = row.received,
                  .origin = row.origin,
                  .signer = "",
                  .record = {},
                  .signature = ""};
      try {
        entry.record =
            parse_record(row.record, fmt::format("{}: row {}", path_.string(), row.index));
      } catch (const Error& e) {
        throw Error(ErrorCode::kIntegrity,
                    std::string(e.what()) + "; see patchbench ledger verify");
      }
      entry.made = {entry.record.started(), 0, row.digest};
      signer.reset();
      signer.bind(1, row.digest);
      if (signer.executeStep()) {
        entry.signer = signer.getColumn(0).getString();
        entry.signature = signer.getColumn(1).getString();
      }
      out.push_back(std::move(entry));
    }
    return out;
  }

  void walk_rows(ChainWalk& walk) const {
    SQLite::Statement query(database_,
                            fmt::format("SELECT {} FROM records ORDER BY idx", kRowColumns));
    while (walk.report().ok && query.executeStep()) {
      const Row row = row_of(query);
      const int64_t wanted = walk.report().count;
      if (row.index != wanted)
        return walk.fail("", fmt::format("missing; the next row there is {}", row.index));
      const std::string previous = walk.report().head;
      if (row.seal != seal_of(row))
        return walk.fail(row.digest, "digest, chain, time, origin or run was changed");
      if (row.chain != chain_next(previous, row.digest))
        return walk.fail(row.digest, "the chain does not lead here");
      const std::optional<Record> record = walk.step(row.record, row.digest, row.origin);
      if (!record) return;
      walk.note_date(*record, row.digest, row.received);
      if (record->run_id() != row.run)
        return walk.fail(row.digest, "stands under another run", wanted);
      if (const std::string wrong = wrong_note(database_, row, *record); !wrong.empty())
        return walk.fail(row.digest, wrong, wanted);
    }
  }

  void check_signatures(ChainWalk& walk) const {
    SQLite::Statement query(
        database_,
        "SELECT s.digest, s.key_id, s.public_key, s.signature, r.record, r.idx FROM signatures s "
        "LEFT JOIN records r ON r.digest = s.digest");
    while (query.executeStep()) {
      const std::string digest = query.getColumn(0).getString();
      const Signature signature{query.getColumn(1).getString(), query.getColumn(2).getString(),
                                query.getColumn(3).getString()};
      if (query.getColumn(4).isNull())
        return walk.fail_as_a_whole("a signature of digest " + shown(digest) +
                                    ", which is not there");
      if (!holds(signature, query.getColumn(4).getString())) {
        return walk.fail_as_a_whole(
            fmt::format("row {} (digest {}): its signature by key {} does not hold",
                        query.getColumn(5).getInt64(), digest, shown(signature.key_id)));
      }
    }
  }

  void check_file(ChainWalk& walk) const {
    SQLite::Statement query(database_, "PRAGMA integrity_check(1)");
    if (!query.executeStep() || query.getColumn(0).getString() != "ok") {
      return walk.fail_as_a_whole("every row holds, but the file is damaged: " +
                                  query.getColumn(0).getString());
    }
    for (const std::string& name : altered_definitions(database_)) {
      return walk.fail_as_a_whole("every row holds, but the definition of '" + name +
                                  "' was changed or removed");
    }
    // Each record's row was compared with it; what is left over speaks of no record.
    if (has_stray_note(database_))
      walk.fail_as_a_whole("every row holds, but findings or evictions hold rows of no record");
  }

  fs::path path_;
  mutable SQLite::Database database_;  // a read transaction is begun through a non-const reference
};

}  // namespace

std::unique_ptr<Ledger> Ledger::open(const fs::path& path) {
  return std::make_unique<SqliteLedger>(path);
}

fs::path Ledger::default_path() {
  const auto from = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? fs::path(value) : fs::path();
  };
  if (const fs::path named = from("PATCHBENCH_LEDGER"); !named.empty()) return named;
  // The XDG rules: a relative path in the variable is to be ignored.
  fs::path state = from("XDG_STATE_HOME");
  if (!state.is_absolute()) state = from("HOME") / ".local" / "state";
  return state / "patchbench" / "ledger.db";
}

int Ledger::append(const std::vector<Record>& records, const std::string& origin) {
  std::vector<Incoming> incoming;
  for (const Record& record : records)
    incoming.push_back({.record = record, .origin = origin, .signature = {}, .where = ""});
  return append_received(incoming);
}

int Ledger::append_received(const std::vector<Incoming>& incoming) {
  auto at = incoming.begin();
  return append_each([&]() -> std::optional<Incoming> {
    if (at == incoming.end()) return std::nullopt;
    return *at++;
  });
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

bool counts_for_quorum(const Entry& entry) {
  return entry.origin == "local" || !entry.signer.empty();
}

void Ledger::each_answer(const FindingFilter& filter,
                         const std::function<void(const Finding&)>& take) const {
  const std::set<std::string> gone = evicted();
  each_finding(filter, [&](const Finding& finding) {
    if (finding.is_counted && !gone.contains(finding.digest)) take(finding);
  });
}

std::set<std::string> evicted_digests(const std::vector<Entry>& entries) {
  std::set<std::string> evicted;
  for (const Entry& entry : entries) {
    if (entry.record.type() != "evict" || !counts_for_quorum(entry)) continue;
    evicted.insert(entry.record.predicate().at("digest").get<std::string>());
  }
  return evicted;
}

Record make_evict_record(const Entry& evicted, const std::string& why, const std::string& tool,
                         const std::string& started) {
  RunContext context = RunContext::from_json(evicted.record.predicate().at("context"));
  context.tool = tool;
  context.started = started;
  return make_record("evict", context, {{"digest", evicted.digest}, {"why", why}});
}

}  // namespace patchbench::ledger
