#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/verdict_index.h"
#include "ledger/evidence.h"
#include "ledger/jsonl.h"
#include "ledger/ledger.h"
#include "ledger/record_index.h"
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
  Finding wanted = finding_of(verdict, verdict.digest());
  wanted.made = found[0].made;  // the ledger's order, which no record says of itself
  EXPECT_EQ(found[0], wanted);
  EXPECT_GT(found[0].made.order, 0);
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

/// A run's records, its clock at `started`.
std::vector<Record> run_at(int number, const std::string& started) {
  RunContext context = sample::context(number);
  context.started = started;
  std::vector<Record> records;
  std::vector<std::string> digests;
  for (const Observation& o : sample::red_observations()) {
    records.push_back(make_observation_record(context, o));
    digests.push_back(records.back().digest());
  }
  const QuestionContext question = sample::question();
  records.push_back(make_verdict_record(
      context, question, sentinel_of(sample::red_observations(), question), digests));
  return records;
}

const std::string kYears = "2999-01-01T00:00:00Z", kToday = "2026-02-03T04:05:06Z";

/// The run of the newest of some findings; "" without one.
std::string newest_of(const std::vector<Finding>& findings) {
  VerdictIndex verdict_index;
  for (const Finding& finding : findings) verdict_index.add(finding);
  const Finding* newest =
      findings.empty() ? nullptr : verdict_index.by_key().begin()->second.at("cpu").newest();
  return newest == nullptr ? "" : newest->started;
}

TEST_F(FindingsTest, OfWhatWasMadeHereTheLastIsNewestWhateverItsClock) {
  const auto ledger = Ledger::open(path_);
  ledger->append(run_at(1, kYears));
  EXPECT_EQ(newest_of(findings_of(*ledger)), kYears);
  EXPECT_LE(findings_of(*ledger)[0].made.date, utc_now());
  ledger->append(run_at(2, kToday));
  EXPECT_EQ(newest_of(findings_of(*ledger)), kToday);
  const std::vector<Entry> all = ledger->all();
  EXPECT_LT(all.front().made, all.back().made);
  EXPECT_EQ(all.front().made.date, kToday);
}

TEST_F(FindingsTest, AnImportThatIsDatedAfterItsImportIsNamedAndNeverCounts) {
  const auto ledger = Ledger::open(path_);
  ledger->append(run_at(1, kYears), "import");
  ledger->append(run_at(2, kToday), "import");
  const std::vector<Finding> found = findings_of(*ledger);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].started, kToday);
  const VerifyReport report = ledger->verify();
  EXPECT_TRUE(report.ok);
  ASSERT_EQ(report.ahead.size(), 3u);
  EXPECT_NE(report.ahead[2].find("row 2 "), std::string::npos) << report.ahead[2];
  EXPECT_NE(report.ahead[2].find("is dated " + kYears + ", after it was received on 20"),
            std::string::npos)
      << report.ahead[2];
  EXPECT_EQ(ledger->all().size(), 6u);
  EXPECT_EQ(known(path_, folder_ / "", {}).size(), 3u);
}

TEST_F(FindingsTest, ACommittedRecordThatIsDatedAfterTodayNeverCounts) {
  const fs::path folder = folder_ / "reports/evidence/liger_flce_none_bwd";
  fs::create_directories(folder);
  std::string text;
  for (const auto& [number, started] : {std::pair(1, kYears), std::pair(2, kToday)}) {
    for (const Record& record : run_at(number, started))
      text += canonical_json(record.statement) + "\n";
  }
  std::ofstream(folder / "cpu.jsonl") << text;
  std::vector<Finding> found;
  RecordIndex("", folder_ / "", {"liger_flce_none_bwd"})
      .each_finding({}, [&](const Finding& finding) { found.push_back(finding); });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].started, kToday);
  EXPECT_EQ(known("", folder_ / "", {"liger_flce_none_bwd"}).size(), 3u);
  const VerifyReport report = verify_jsonl(text, "f", {});
  EXPECT_TRUE(report.ok);
  ASSERT_EQ(report.ahead.size(), 3u);
  EXPECT_NE(report.ahead[0].find("row 0 "), std::string::npos) << report.ahead[0];
  EXPECT_NE(report.ahead[0].find(", after today"), std::string::npos) << report.ahead[0];
}

TEST_F(FindingsTest, WhatIsCommittedTooKeepsItsPlaceAmongWhatWasMadeHere) {
  const auto ledger = Ledger::open(path_);
  ledger->append(run_at(1, "2026-02-04T00:00:00Z"));
  ledger->append(run_at(2, kToday));
  const fs::path folder = folder_ / "reports/evidence/liger_flce_none_bwd";
  fs::create_directories(folder);
  std::ofstream(folder / "cpu.jsonl")
      << export_jsonl({ledger->all()[0], ledger->all()[1], ledger->all()[2]});
  std::vector<Finding> found;
  RecordIndex(path_, folder_ / "", {"liger_flce_none_bwd"})
      .each_finding({}, [&](const Finding& one) { found.push_back(one); });
  EXPECT_EQ(found.size(), 2u);
  EXPECT_EQ(newest_of(found), kToday);
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
    RecordIndex(path_, folder_ / "", {"liger_flce_none_bwd"}).each_finding({}, [&](const Finding&) {
      ++num;
    });
    return num;
  };
  EXPECT_EQ(count(), 2);
  const Entry evicted = *ledger->find(sample::run(2).back().digest());
  ledger->append({make_evict_record(evicted, "wrong", "patchbench", utc_now())});
  EXPECT_EQ(count(), 1);
  const RecordIndex archive(path_, folder_ / "", {"liger_flce_none_bwd"});
  EXPECT_FALSE(archive.find(evicted.digest));
  EXPECT_TRUE(archive.find(sample::run(1).front().digest()));
}

}  // namespace
}  // namespace patchbench::ledger
