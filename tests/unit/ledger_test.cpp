#include "ledger/ledger.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "unit/sample_run.h"

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;

/// Code and message of the error that `work` throws.
template <typename Work>
std::pair<ErrorCode, std::string> error_of(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::kInternal, ""};
}

class LedgerTest : public ::testing::Test {
 protected:
  sample::TempFolder folder_;
  fs::path path_ = folder_ / "ledger.db";
};

TEST_F(LedgerTest, ANewOneIsEmptyAndHolds) {
  const auto ledger = Ledger::open(folder_ / "deep" / "er" / "ledger.db");
  EXPECT_TRUE(ledger->all().empty());
  const VerifyReport report = ledger->verify();
  EXPECT_TRUE(report.ok) << report.where;
  EXPECT_EQ(report.count, 0);
  EXPECT_EQ(report.head, std::string(64, '0'));
}

TEST_F(LedgerTest, KeepsRecordsInOrderAcrossOpenings) {
  EXPECT_EQ(Ledger::open(path_)->append(sample::run(1)), 3);
  EXPECT_EQ(Ledger::open(path_)->append(sample::run(2)), 3);
  const auto entries = Ledger::open(path_)->all();
  ASSERT_EQ(entries.size(), 6u);
  std::string chain;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Record expected = sample::run(i < 3 ? 1 : 2)[i % 3];
    EXPECT_EQ(entries[i].index, static_cast<int64_t>(i));
    EXPECT_EQ(entries[i].record.statement, expected.statement);
    EXPECT_EQ(entries[i].digest, expected.digest());
    chain = chain_next(chain, entries[i].digest);
    EXPECT_EQ(entries[i].chain, chain);
    EXPECT_EQ(entries[i].origin, "local");
    EXPECT_EQ(entries[i].signer, "");
    EXPECT_EQ(entries[i].received.size(), 20u);
  }
}

TEST_F(LedgerTest, ARecordThatIsThereIsNotAddedAgain) {
  const auto ledger = Ledger::open(path_);
  EXPECT_EQ(ledger->append(sample::run()), 3);
  std::vector<Record> again = sample::run();
  again.push_back(sample::run(2)[0]);
  EXPECT_EQ(ledger->append(again), 1);
  EXPECT_EQ(ledger->all().size(), 4u);
}

TEST_F(LedgerTest, ABatchIsAllOrNothing) {
  const auto ledger = Ledger::open(path_);
  std::vector<Record> batch = sample::run();
  Record malformed = sample::run(2)[0];
  malformed.statement["predicate"]["context"]["run_id"] = "short";
  batch.push_back(malformed);
  EXPECT_EQ(error_of([&] { ledger->append(batch); }).first, ErrorCode::kUsage);
  EXPECT_TRUE(ledger->all().empty());
}

TEST_F(LedgerTest, AVerdictThatWasNotEarnedIsTurnedDown) {
  const auto ledger = Ledger::open(path_);
  std::vector<Record> batch = sample::run();
  Outcome lie = outcome_of(batch[2]);
  lie.sentinel = Sentinel::kBugAbsent;
  lie.argument.clear();
  batch[2] = make_verdict_record(sample::context(), sample::question(), lie, cited_by(batch[2]));
  const auto [code, message] = error_of([&] { ledger->append(batch); });
  EXPECT_EQ(code, ErrorCode::kIntegrity);
  EXPECT_NE(message.find("states BUG_ABSENT"), std::string::npos) << message;
  EXPECT_TRUE(ledger->all().empty()) << "its observations went in without it";
}

TEST_F(LedgerTest, AVerdictMayFollowItsObservationsLater) {
  const auto ledger = Ledger::open(path_);
  const std::vector<Record> run = sample::run();
  EXPECT_EQ(ledger->append({run[0], run[1]}), 2);
  EXPECT_TRUE(ledger->verify().ok);
  EXPECT_EQ(ledger->append({run[2]}), 1);
  EXPECT_TRUE(ledger->verify().ok);
}

TEST_F(LedgerTest, AVerdictBeforeItsObservationsIsTurnedDown) {
  const std::vector<Record> run = sample::run();
  EXPECT_EQ(error_of([&] { Ledger::open(path_)->append({run[2], run[0], run[1]}); }).first,
            ErrorCode::kIntegrity);
}

TEST_F(LedgerTest, LaterObservationsOfTheRunDoNotUnsettleAVerdict) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run());
  const Observation late =
      sample::observation("upstream", "late_fp32", CaseRole::kControl, CaseStatus::kPresent);
  ledger->append({make_observation_record(sample::context(), late)}, "import");
  EXPECT_TRUE(ledger->verify().ok) << ledger->verify().where;
}

TEST_F(LedgerTest, FindsByTheFirstDigitsOfADigest) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run());
  const std::string digest = sample::run()[1].digest();
  for (const std::size_t length : {12u, 64u}) {
    const auto found = ledger->find(digest.substr(0, length));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->digest, digest);
    EXPECT_EQ(found->index, 1);
  }
  EXPECT_FALSE(ledger->find(std::string(64, 'f')));
  for (const std::string& bad :
       {std::string("abc"), std::string("ABCD"), std::string("%%%%"), std::string(65, 'a')}) {
    EXPECT_EQ(error_of([&] { ledger->find(bad); }).first, ErrorCode::kUsage) << bad;
  }
}

TEST_F(LedgerTest, AnAmbiguousPrefixIsAnError) {
  const auto ledger = Ledger::open(path_);
  std::map<std::string, int> num_by_prefix;
  std::string shared;
  for (int i = 0; shared.empty(); ++i) {
    const Record record = make_record("measurement", sample::context(), {{"i", i}});
    ledger->append({record});
    const std::string prefix = record.digest().substr(0, 4);
    if (++num_by_prefix[prefix] == 2) shared = prefix;
  }
  EXPECT_NE(error_of([&] { ledger->find(shared); }).second.find("several"), std::string::npos);
}

TEST_F(LedgerTest, NothingCanBeChangedRemovedOrReplacedThroughSql) {
  Ledger::open(path_)->append(sample::run());
  SQLite::Database database(path_.string(), SQLite::OPEN_READWRITE);
  for (const char* sql : {"UPDATE records SET received = 'x' WHERE idx = 1",
                          "DELETE FROM records WHERE idx = 2", "DELETE FROM records",
                          "INSERT OR REPLACE INTO records SELECT 1, 'd', chain, received, origin, "
                          "run, record, seal FROM records WHERE idx = 1",
                          "INSERT OR REPLACE INTO records SELECT 3, digest, chain, received, "
                          "origin, run, record, seal FROM records WHERE idx = 1",
                          "INSERT INTO records SELECT 9, 'd', chain, received, origin, run, "
                          "record, seal FROM records WHERE idx = 1"}) {
    try {
      database.exec(sql);
      ADD_FAILURE() << "done: " << sql;
    } catch (const SQLite::Exception& e) {
      EXPECT_NE(std::string(e.what()).find("append-only"), std::string::npos)
          << sql << ": " << e.what();
    }
  }
  EXPECT_TRUE(Ledger::open(path_)->verify().ok);
  EXPECT_EQ(Ledger::open(path_)->all().size(), 3u);
}

TEST_F(LedgerTest, IsDurable) {
  const auto ledger = Ledger::open(path_);
  SQLite::Database database(path_.string(), SQLite::OPEN_READONLY);
  EXPECT_EQ(database.execAndGet("PRAGMA journal_mode").getString(), "wal");
}

TEST_F(LedgerTest, SaysThatTruncationWouldGoUnseen) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run());
  EXPECT_NE(ledger->verify().note.find("--expect"), std::string::npos);
  const VerifyReport full = ledger->verify();
  EXPECT_EQ(ledger->verify(full.count, full.head).note, "");
  EXPECT_TRUE(ledger->verify(full.count, full.head).ok);
}

TEST_F(LedgerTest, AnExpectationHoldsWhileTheLedgerGrows) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run(1));
  const VerifyReport before = ledger->verify();
  ledger->append(sample::run(2));
  EXPECT_TRUE(ledger->verify(before.count, before.head).ok);
  EXPECT_TRUE(ledger->verify(0, std::string(64, '0')).ok);
  const VerifyReport other = ledger->verify(before.count + 1, before.head);
  EXPECT_FALSE(other.ok);
  EXPECT_NE(other.where.find("another history"), std::string::npos);
  const VerifyReport cut = ledger->verify(7, before.head);
  EXPECT_FALSE(cut.ok);
  EXPECT_NE(cut.where.find("cut off: 6 records, 7 expected"), std::string::npos) << cut.where;
}

TEST_F(LedgerTest, EvictingAppendsAndHidesFromReadersOnly) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run());
  const Entry entry = ledger->all()[2];
  ledger->append({make_evict_record(entry, "measured on a broken driver", "patchbench 0.1.0",
                                    "2026-03-01T00:00:00Z")});
  EXPECT_EQ(evicted_digests(ledger->all()), std::set<std::string>{entry.digest});
  EXPECT_TRUE(ledger->find(entry.digest));
  EXPECT_EQ(ledger->all().size(), 4u);
  EXPECT_TRUE(ledger->verify().ok);
}

TEST_F(LedgerTest, AnUnsignedImportNeitherCountsNorEvicts) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run(1));
  ledger->append(sample::run(2), "import");
  const Entry local = ledger->all()[2], imported = ledger->all()[5];
  EXPECT_TRUE(counts_for_quorum(local));
  EXPECT_FALSE(counts_for_quorum(imported));
  ledger->append({make_evict_record(local, "because", "patchbench 0.1.0", "2026-03-01T00:00:00Z")},
                 "import");
  EXPECT_TRUE(evicted_digests(ledger->all()).empty());
}

TEST_F(LedgerTest, AFileThatIsNoLedgerIsLeftAlone) {
  std::ofstream(path_) << "dear diary, this is no database at all, whatever its name says\n";
  EXPECT_EQ(error_of([&] { Ledger::open(path_); }).first, ErrorCode::kIntegrity);
  const fs::path other = folder_ / "other.db";
  SQLite::Database(other.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
      .exec("CREATE TABLE songs (title TEXT)");
  const auto [code, message] = error_of([&] { Ledger::open(other); });
  EXPECT_EQ(code, ErrorCode::kIntegrity);
  EXPECT_NE(message.find("no patchbench ledger"), std::string::npos);
  SQLite::Database database(other.string(), SQLite::OPEN_READONLY);
  EXPECT_EQ(database.execAndGet("PRAGMA journal_mode").getString(), "delete")
      << "a foreign file was changed";
}

TEST_F(LedgerTest, APathThatCannotBeOpenedIsNamed) {
  fs::create_directory(path_);
  const auto [code, message] = error_of([&] { Ledger::open(path_); });
  EXPECT_EQ(code, ErrorCode::kInternal);
  EXPECT_TRUE(message.starts_with(path_.string() + ": ")) << message;
}

TEST(LedgerPath, FollowsTheVariableThenTheStateFolderThenHome) {
  ::setenv("PATCHBENCH_LEDGER", "/a/b.db", 1);
  EXPECT_EQ(Ledger::default_path(), "/a/b.db");
  ::unsetenv("PATCHBENCH_LEDGER");
  ::setenv("XDG_STATE_HOME", "/state", 1);
  EXPECT_EQ(Ledger::default_path(), "/state/patchbench/ledger.db");
  ::setenv("XDG_STATE_HOME", "relative", 1);
  ::setenv("HOME", "/home/u", 1);
  EXPECT_EQ(Ledger::default_path(), "/home/u/.local/state/patchbench/ledger.db");
}

}  // namespace
}  // namespace patchbench::ledger
