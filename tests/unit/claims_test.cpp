#include <gtest/gtest.h>

#include "report/table.h"
#include "unit/pack_repository.h"

namespace patchbench::cli {
namespace {

const std::string kDummy(64, 'a');

class ClaimsTest : public ::testing::Test {
 protected:
  /// The manifest's confirmed row cites the verdict of a run of some_pack.
  ClaimsTest() {
    const std::vector<Record> records = sample::run_of("some_pack");
    verdict_ = records.back().digest();
    repository_.put_evidence("some_pack", records);
    repository_.replace(sample::PackRepository::kManifest, kDummy, verdict_);
  }
  sample::Ended claims(const std::vector<std::string>& words = {}, bool json = false) {
    return status({"claims"}, words, json);
  }
  sample::Ended status(std::vector<std::string> arguments, const std::vector<std::string>& words,
                       bool json = false) {
    arguments.insert(arguments.begin(), "status");
    arguments.insert(arguments.end(), words.begin(), words.end());
    return repository_.run(add_status_command, arguments, json);
  }

  sample::PackRepository repository_;
  std::string verdict_;
};

TEST_F(ClaimsTest, RowsComeWithWhatTheirRecordsSay) {
  const sample::Ended got = claims();
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_NE(got.out.find(verdict_.substr(0, 12) + " 2026-02-03 cpu, reproduce 0.8.0 upstream:"),
            std::string::npos)
      << got.out;
  EXPECT_NE(got.out.find("BUG_REPRODUCED(wrong_gradients)"), std::string::npos);
  EXPECT_NE(got.out.find("why: not run yet"), std::string::npos);
  EXPECT_NE(got.out.find("3 claims: 1 claimed, 1 confirmed, 1 not_claimed"), std::string::npos);
  std::istringstream lines(got.out);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(report::display_width(line), 80) << line;
}

TEST_F(ClaimsTest, ARecordThatIsNotThereIsAnError) {
  repository_.replace(sample::PackRepository::kManifest, verdict_, kDummy);
  const sample::Ended got = claims();
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_NE(got.err.find("packs/some_pack/manifest.json: /scope/1: record aaaaaaaaaaaa is neither "
                         "in reports/evidence nor in the ledger"),
            std::string::npos)
      << got.err;
}

TEST_F(ClaimsTest, ARecordOfAnotherPackIsAnError) {
  const std::vector<Record> others = sample::run_of("other_pack");
  std::vector<Record> records = sample::run_of("some_pack");
  records.insert(records.end(), others.begin(), others.end());
  repository_.put_evidence("some_pack", records);
  repository_.replace(sample::PackRepository::kManifest, verdict_, others.back().digest());
  EXPECT_NE(claims().err.find("is a record of other_pack"), std::string::npos);
}

TEST_F(ClaimsTest, AnEvictedRecordResolvesNoMore) {
  std::vector<Record> records = sample::run_of("some_pack");
  ledger::Entry entry;
  entry.digest = verdict_;
  entry.record = records.back();
  records.push_back(ledger::make_evict_record(entry, "wrong seed", "test", "2026-02-04T00:00:00Z"));
  repository_.put_evidence("some_pack", records);
  EXPECT_EQ(claims().exit_code, 1);
}

TEST_F(ClaimsTest, AVerdictWithoutASentinelAloneBacksNothing) {
  std::vector<Observation> status = {
      sample::observation("upstream", "sum_fp32", CaseRole::kControl, CaseStatus::kUnresolved)};
  status[0].slug = "some_pack";
  RunContext where = sample::context(2);
  where.slug = "some_pack";
  const Record observed = make_observation_record(where, status[0]);
  const Record none = make_verdict_record(
      where, sample::question(), sentinel_of(status, sample::question()), {observed.digest()});
  ASSERT_FALSE(outcome_of(none).sentinel);
  repository_.put_evidence("some_pack", {observed, none});
  repository_.replace(sample::PackRepository::kManifest, verdict_, none.digest());
  EXPECT_NE(claims().err.find("none of its records earned a sentinel"), std::string::npos);
}

TEST_F(ClaimsTest, AVerdictOfTheClaimMustAgreeWithTheRow) {
  std::vector<Record> records = sample::run_of("some_pack");
  RunContext where = sample::context(2);
  where.slug = "some_pack";
  QuestionContext question = sample::question();
  question.question = Question::kClaim;
  question.claim = "result";
  question.contrast = "patched";
  question.failure_class = "wrong_result";
  const Outcome refuted{Sentinel::kClaimRefuted, "", "seen otherwise", ""};
  records.push_back(make_verdict_record(where, question, refuted, {records.front().digest()}));
  repository_.put_evidence("some_pack", records);
  repository_.replace(
      sample::PackRepository::kManifest, "\"verdict\": \"claimed\", ",
      "\"verdict\": \"confirmed\", \"records\": [\"" + records.back().digest() + "\"], ");
  EXPECT_NE(claims().err.find("says CLAIM_REFUTED of the claim that is called confirmed"),
            std::string::npos);
  repository_.replace(sample::PackRepository::kManifest, "\"verdict\": \"confirmed\", \"records\"",
                      "\"verdict\": \"refuted\", \"records\"");
  EXPECT_EQ(claims().err, "");
}

TEST_F(ClaimsTest, OpenRowsWithoutAReasonAreCounted) {
  repository_.replace(sample::PackRepository::kManifest, "\"why\": \"not run yet\", ", "");
  const sample::Ended got = claims();
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_NE(got.out.find("why: not said"), std::string::npos);
  EXPECT_NE(got.out.find("; 1 open without a reason"), std::string::npos);
}

TEST_F(ClaimsTest, JsonAndMarkdownHoldEveryRow) {
  const Json got = claims({}, true).json();
  EXPECT_EQ(got.at("claims").size(), 3u);
  EXPECT_EQ(got.at("claims").at(1).at("records").at(0).at("digest"), verdict_);
  EXPECT_EQ(got.at("counts").at("confirmed"), 1);
  EXPECT_NE(status({"--markdown"}, {"claims"})
                .out.find("| `the sum is right on 1.0` | ours | `any` | confirmed |"),
            std::string::npos);
  EXPECT_NE(status({"--markdown"}, {"claims"}, true).error.find("choose one"), std::string::npos);
  EXPECT_NE(claims({"som_pack"}).error.find("did you mean some_pack?"), std::string::npos);
}

}  // namespace
}  // namespace patchbench::cli
