#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>

#include <fstream>

#include "ledger/archive.h"
#include "ledger/ledger.h"
#include "unit/sample_run.h"

namespace patchbench::ledger {
namespace {

namespace fs = std::filesystem;

std::vector<Finding> findings_of(const Ledger& ledger, const FindingFilter& filter = {}) {
  std::vector<Finding> out;
  ledger.each_finding(filter, [&](const Finding& finding) { out.push_back(finding); });
  return out;
}

class FindingsTest : public ::testing::Test {
 protected:
  sample::TempFolder folder_;
  fs::path path_ = folder_ / "ledger.db";
};

TEST_F(FindingsTest, SayWhatTheVerdictsSay) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run(1));
  const Record verdict = sample::run(1).back();
  const std::vector<Finding> found = findings_of(*ledger);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], finding_of(verdict, verdict.digest()));
  EXPECT_EQ(found[0].sentinel, "BUG_REPRODUCED(wrong_gradients)");
}

TEST_F(FindingsTest, FilterByPackAndTime) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run(1));
  EXPECT_EQ(findings_of(*ledger, {.slug = "other_pack", .before = {}}).size(), 0u);
  EXPECT_EQ(findings_of(*ledger, {.slug = {}, .before = "2026-02-03"}).size(), 0u);
  EXPECT_EQ(findings_of(*ledger, {.slug = {}, .before = "2026-02-04"}).size(), 1u);
}

TEST_F(FindingsTest, AnUnsignedImportDoesNotCount) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run(1), "import");
  EXPECT_FALSE(findings_of(*ledger)[0].is_counted);
}

TEST_F(FindingsTest, ALedgerMadeWithoutThemGetsThem) {
  Ledger::open(path_)->append(sample::run(1));
  {
    SQLite::Database database(path_.string(), SQLite::OPEN_READWRITE);
    database.exec("DROP TABLE findings; DROP TABLE evictions; PRAGMA user_version=1");
  }
  const auto ledger = Ledger::open(path_);
  EXPECT_EQ(findings_of(*ledger).size(), 1u);
  EXPECT_TRUE(ledger->verify().ok) << ledger->verify().where;
}

TEST_F(FindingsTest, AnArchiveHoldsARecordOfBothPlacesOnceAndNoEvictedOne) {
  const auto ledger = Ledger::open(path_);
  ledger->append(sample::run(1));
  ledger->append(sample::run(2));
  const fs::path folder = folder_ / "reports/evidence/liger_flce_none_bwd";
  fs::create_directories(folder);
  std::ofstream(folder / "cpu.jsonl") << [] {
    std::string text;
    for (const Record& record : sample::run(1)) text += canonical_json(record.statement) + "\n";
    return text;
  }();
  const auto count = [&] {
    int num = 0;
    Archive(path_, folder_ / "", {"liger_flce_none_bwd"}).each_finding({}, [&](const Finding&) {
      ++num;
    });
    return num;
  };
  EXPECT_EQ(count(), 2);
  const Entry evicted = *ledger->find(sample::run(2).back().digest());
  ledger->append({make_evict_record(evicted, "wrong", "patchbench", utc_now())});
  EXPECT_EQ(count(), 1);
  const Archive archive(path_, folder_ / "", {"liger_flce_none_bwd"});
  EXPECT_FALSE(archive.find(evicted.digest));
  EXPECT_TRUE(archive.find(sample::run(1).front().digest()));
}

}  // namespace
}  // namespace patchbench::ledger
