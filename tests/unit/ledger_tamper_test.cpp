#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "core/error.h"
#include "ledger/ledger.h"
#include "ledger/store.h"
#include "unit/sample_run.h"

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;

constexpr int kNumRuns = 12;

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  fs::remove(path.string() + "-wal");
  fs::remove(path.string() + "-shm");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// A ledger of some runs, closed, so that its one file holds everything.
class TamperTest : public ::testing::Test {
 protected:
  TamperTest() {
    const auto ledger = Ledger::open(path_);
    for (int i = 0; i < kNumRuns; ++i) ledger->append(sample::run(i));
    entries_ = ledger->all();
    clean_ = ledger->verify();
  }

  /// Runs SQL on the file with every guard taken off, then verifies.
  VerifyReport after_sql(const std::string& sql) {
    {
      SQLite::Database database(path_.string(), SQLite::OPEN_READWRITE);
      for (const char* name : {"records_no_update", "records_no_delete", "records_in_order"}) {
        database.exec(std::string("DROP TRIGGER ") + name);
      }
      EXPECT_GT(database.exec(sql), 0) << sql;
    }
    return Ledger::open(path_)->verify();
  }

  void expect_found_at(const VerifyReport& report, int64_t index) {
    EXPECT_FALSE(report.ok);
    EXPECT_EQ(report.bad_index, index) << report.where;
    EXPECT_NE(report.where.find("row " + std::to_string(index)), std::string::npos) << report.where;
  }

  sample::TempFolder folder_;
  fs::path path_ = folder_ / "ledger.db";
  std::vector<Entry> entries_;
  VerifyReport clean_;
};

TEST_F(TamperTest, AFlippedByteOfARecordIsFoundAndLocated) {
  const std::string bytes = read_bytes(path_);
  std::mt19937 random(7);
  for (const std::size_t row : {0u, 5u, 17u, 35u}) {
    const std::string text = canonical_json(entries_[row].record.statement);
    const std::size_t at = bytes.find(text.substr(0, 1500));
    ASSERT_NE(at, std::string::npos);
    for (int i = 0; i < 20; ++i) {
      std::string flipped = bytes;
      flipped[at + random() % 1500] ^= static_cast<char>(1 << (random() % 8));
      write_bytes(path_, flipped);
      const VerifyReport report = Ledger::open(path_)->verify();
      expect_found_at(report, static_cast<int64_t>(row));
      EXPECT_EQ(report.bad_digest, entries_[row].digest);
      EXPECT_NE(report.where.find(entries_[row].digest), std::string::npos);
    }
  }
}

TEST_F(TamperTest, AFlippedByteAnywhereIsFoundOrChangesNothing) {
  const std::string bytes = read_bytes(path_);
  std::mt19937 random(11);
  int num_found = 0;
  for (int i = 0; i < 200; ++i) {
    std::string flipped = bytes;
    const std::size_t at = random() % bytes.size();
    flipped[at] ^= static_cast<char>(1 << (random() % 8));
    write_bytes(path_, flipped);
    try {
      const auto ledger = Ledger::open(path_);
      const VerifyReport report = ledger->verify(clean_.count, clean_.head);
      if (!report.ok) {
        ++num_found;
        continue;
      }
      const std::vector<Entry> now = ledger->all();
      ASSERT_EQ(now.size(), entries_.size()) << "byte " << at;
      for (std::size_t k = 0; k < now.size(); ++k) {
        ASSERT_EQ(now[k].record.statement, entries_[k].record.statement) << "byte " << at;
        ASSERT_EQ(now[k].origin + now[k].received + now[k].chain,
                  entries_[k].origin + entries_[k].received + entries_[k].chain);
      }
    } catch (const Error&) {
      ++num_found;  // the damage keeps it from opening
    }
  }
  EXPECT_GT(num_found, 60);
}

TEST_F(TamperTest, AShortFormThatSaysOtherwiseIsFound) {
  expect_found_at(after_sql("UPDATE findings SET sentinel = 'BUG_ABSENT' WHERE idx = 2"), 2);
}

TEST_F(TamperTest, AShortFormThatIsGoneIsFound) {
  expect_found_at(after_sql("DELETE FROM findings WHERE idx = 5"), 5);
}

TEST_F(TamperTest, AShortFormOfNoRecordIsFound) {
  const VerifyReport report = after_sql(
      "INSERT INTO findings SELECT 999, slug, upstream, version, beside, asked, device, sentinel, "
      "started, manifest, 'none', isolated, origin FROM findings WHERE idx = 2");
  EXPECT_FALSE(report.ok);
}

TEST_F(TamperTest, AChangedColumnIsFoundAndLocated) {
  const std::vector<std::string> changes = {
      "record = replace(record, 'wrong_gradients', 'right_gradients')",
      "digest = upper(digest)",
      "chain = '" + std::string(64, '1') + "'",
      "received = '1999-01-01T00:00:00Z'",
      "origin = CASE origin WHEN 'local' THEN 'import' ELSE 'local' END",
      "run = '0000000000000000'"};
  const std::string clean = read_bytes(path_);
  for (const std::string& change : changes) {
    write_bytes(path_, clean);
    expect_found_at(after_sql("UPDATE records SET " + change + " WHERE idx = 6"), 6);
  }
}

TEST_F(TamperTest, ARowThatWasSealedAnewMustStillFollowTheChain) {
  const Entry& entry = entries_[6];
  const Row row{.index = 6,
                .digest = entry.digest,
                .chain = std::string(64, '1'),
                .received = entry.received,
                .origin = entry.origin,
                .run = entry.record.run_id()};
  const VerifyReport report = after_sql("UPDATE records SET chain = '" + row.chain + "', seal = '" +
                                        seal_of(row) + "' WHERE idx = 6");
  expect_found_at(report, 6);
  EXPECT_NE(report.where.find("chain does not lead here"), std::string::npos) << report.where;
}

TEST_F(TamperTest, ARemovedRowIsFoundWhereItStood) {
  const VerifyReport report = after_sql("DELETE FROM records WHERE idx = 9");
  expect_found_at(report, 9);
  EXPECT_NE(report.where.find("missing"), std::string::npos);
}

TEST_F(TamperTest, TwoRowsThatChangedPlacesAreFound) {
  expect_found_at(
      after_sql(
          "UPDATE records SET idx = CASE idx WHEN 4 THEN 1004 ELSE 1005 END WHERE idx IN (4, 5);"
          "UPDATE records SET idx = CASE idx WHEN 1004 THEN 5 ELSE 4 END WHERE idx IN (1004, "
          "1005)"),
      4);
}

TEST_F(TamperTest, ACutEndShowsAgainstTheExpectedCount) {
  const VerifyReport blind = after_sql("DELETE FROM records WHERE idx >= 30");
  EXPECT_NE(blind.where.find("definition"), std::string::npos) << "only the missing guards show";
  const VerifyReport report = Ledger::open(path_)->verify(clean_.count, clean_.head);
  EXPECT_FALSE(report.ok);
}

TEST_F(TamperTest, AMissingGuardIsFound) {
  for (const char* name :
       {"records_no_update", "records_no_delete", "records_in_order", "signatures_no_delete"}) {
    const std::string clean = read_bytes(path_);
    SQLite::Database(path_.string(), SQLite::OPEN_READWRITE)
        .exec(std::string("DROP TRIGGER ") + name);
    const VerifyReport report = Ledger::open(path_)->verify();
    EXPECT_FALSE(report.ok);
    EXPECT_NE(report.where.find(name), std::string::npos) << report.where;
    write_bytes(path_, clean);
  }
}

TEST_F(TamperTest, AForgedVerdictWithDigestsAndChainMadeAnewIsFound) {
  // A forger who rewrites the file consistently: the sentinel still does not follow from the
  // observations.
  const fs::path forged = folder_ / "forged.db";
  std::vector<Record> run = sample::run(50);
  Outcome lie = outcome_of(run[2]);
  lie.sentinel = Sentinel::kBugAbsent;
  lie.argument.clear();
  const Record verdict =
      make_verdict_record(sample::context(50), sample::question(), lie, cited_by(run[2]));
  Ledger::open(forged)->append(
      {run[0], run[1], make_record("measurement", sample::context(50), {{"n", 1}})});
  const auto entries = Ledger::open(forged)->all();
  {
    SQLite::Database database(forged.string(), SQLite::OPEN_READWRITE);
    database.exec("DROP TRIGGER records_no_update");
    SQLite::Statement change(
        database, "UPDATE records SET record = ?, digest = ?, chain = ?, seal = ? WHERE idx = 2");
    const std::string digest = verdict.digest(), chain = chain_next(entries[1].chain, digest);
    const Row row{.index = 2,
                  .digest = digest,
                  .chain = chain,
                  .received = entries[2].received,
                  .origin = entries[2].origin,
                  .run = sample::context(50).run_id};
    change.bind(1, canonical_json(verdict.statement));
    change.bind(2, digest);
    change.bind(3, chain);
    change.bind(4, seal_of(row));
    EXPECT_EQ(change.exec(), 1);
  }
  const VerifyReport report = Ledger::open(forged)->verify();
  expect_found_at(report, 2);
  EXPECT_NE(report.where.find("states BUG_ABSENT"), std::string::npos) << report.where;
}

TEST_F(TamperTest, ReadingADamagedRowNamesItAndVerify) {
  after_sql("UPDATE records SET record = '{' WHERE idx = 3");
  try {
    Ledger::open(path_)->all();
    FAIL() << "read";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIntegrity);
    EXPECT_NE(std::string(e.what()).find("row 3"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("ledger verify"), std::string::npos);
  }
}

}  // namespace
}  // namespace patchbench::ledger
