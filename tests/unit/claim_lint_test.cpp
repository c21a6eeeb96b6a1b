#include "report/claim_lint.h"

#include <gtest/gtest.h>

#include <map>

#include "core/error.h"
#include "unit/sample_run.h"

namespace patchbench::report {
namespace {

/// Lints with the records of one run: a red trigger, a green control, their verdict.
class ClaimLint : public ::testing::Test {
 protected:
  std::vector<ClaimProblem> lint(const std::string& text) const {
    return lint_claims(text, [this](std::string_view digest) -> const Record* {
      for (const Record& record : records_) {
        if (record.digest().starts_with(digest)) return &record;
      }
      return nullptr;
    });
  }
  /// The numbers that are refused, in order.
  std::vector<std::string> refused(const std::string& text) const {
    std::vector<std::string> out;
    for (const ClaimProblem& p : lint(text)) out.push_back(p.what);
    return out;
  }
  std::string cite(std::size_t i) const { return "[" + records_[i].digest().substr(0, 12) + "]"; }

  // Each observation: error 0.31415926535897931, plain 1.2345678901234567e-7, limit
  // 2.4691357802469134e-7, wall 3.25 s outside and 1.5 s self-reported.
  const std::vector<Record> records_ = sample::run();
  using Texts = std::vector<std::string>;
};

TEST_F(ClaimLint, ANumberIsHeldByTheRecordItsBlockCites) {
  EXPECT_EQ(refused("The error is 0.314, the limit 2.47e-07 " + cite(0) + "."), Texts{});
  EXPECT_EQ(refused("The error is 31.4 % and took 3.25 s or 3250 ms " + cite(0)), Texts{});
  EXPECT_EQ(refused("The error is 0.314."), Texts{"0.314"});
  EXPECT_EQ(refused("The error is 0.315 " + cite(0)), Texts{"0.315"});
  EXPECT_EQ(refused("Text with 0.314\nand its citation " + cite(0)), Texts{});
  EXPECT_EQ(refused("`0.314` [`" + records_[0].digest().substr(0, 12) + "`]"), Texts{});
}

TEST_F(ClaimLint, AVerdictHoldsItsReasonAndNotItsObservations) {
  const std::string why = records_[2].predicate().at("why");
  ASSERT_EQ(why, "1 of 1 triggers present");
  EXPECT_EQ(refused(why + " " + cite(2)), Texts{});
  EXPECT_EQ(refused("error 0.314 " + cite(2)), Texts{"0.314"});
}

TEST(QuantitiesOf, ARecordHoldsTheNumbersOfItsDevicesName) {
  RunContext context = sample::context();
  context.machine["device"] = "NVIDIA H100 80GB HBM3 (sm_90)";
  const Record record = make_verdict_record(
      context, sample::question(), sentinel_of(sample::red_observations(), sample::question()), {});
  const auto find = [&](std::string_view) { return &record; };
  const std::string cited = " [" + record.digest().substr(0, 12) + "]";
  EXPECT_TRUE(lint_claims("on NVIDIA H100 80GB HBM3 (sm_90)" + cited, find).empty());
  EXPECT_EQ(lint_claims("it takes 81GB" + cited, find).size(), 1u);
}

TEST_F(ClaimLint, BlocksDoNotShareTheirCitations) {
  const std::string cited = "error 0.314 " + cite(0) + "\n";
  EXPECT_EQ(refused(cited + "\nerror 0.314"), Texts{"0.314"});
  EXPECT_EQ(refused("- " + cited + "- error 0.314"), Texts{"0.314"});
  EXPECT_EQ(refused("| " + cited + "| error 0.314 |"), Texts{"0.314"});
  EXPECT_EQ(refused("# " + cited + "error 0.314"), Texts{"0.314"});
  EXPECT_EQ(refused("1. " + cited + "2. error 0.314 here"), Texts{"0.314"});
}

TEST_F(ClaimLint, LuckyNumbersAreNotHeld) {
  // The seed is 1, the exit status 0; one digit could be many a rounded measure.
  EXPECT_EQ(refused("0 failures, 1 run, 3 s " + cite(0)), (Texts{"0", "1", "3 s"}));
  EXPECT_EQ(refused("3.25x faster at 3.25 GB " + cite(0)), (Texts{"3.25x", "3.25 GB"}));
  EXPECT_EQ(refused("-0.314 " + cite(0)), Texts{"0.314"});
}

TEST_F(ClaimLint, OnlyFencesThatNameALanguageAreCode) {
  EXPECT_EQ(refused("```sh\nrun --n 77\n```\n"), Texts{});
  EXPECT_EQ(refused("```\nspeedup 77\n```\n"), Texts{"77"});
  EXPECT_EQ(refused("```text\nspeedup 77\n```\n"), Texts{"77"});
  EXPECT_EQ(refused("    ```sh\nspeedup 77\n    ```\n"), Texts{"77"});
  EXPECT_EQ(refused("```sh\nx\n``` \nspeedup 77"), Texts{"77"});
  EXPECT_EQ(refused("````sh\n```\n````\nspeedup 77"), Texts{"77"});
  EXPECT_EQ(refused("```sh\n~~~\nls 5\n```\nspeedup 77"), Texts{"77"});
  EXPECT_EQ(refused("```sh x` 5\nspeedup 77"), (Texts{"5", "77"}));
}

TEST_F(ClaimLint, OnlyCommentsThatNobodySeesAreExempt) {
  EXPECT_EQ(refused("<!-- 77\n78 -->\n"), Texts{});
  EXPECT_EQ(refused("<!-- x --> speedup 77"), Texts{"77"});
  EXPECT_EQ(refused("see `<!--` 77 `-->`"), Texts{"77"});
  EXPECT_EQ(refused("```sh\n<!--\n```\nspeedup 77\n-->"), Texts{"77"});
  EXPECT_EQ(refused("<!--\n```sh\n-->\nspeedup 77"), Texts{"77"});
}

TEST_F(ClaimLint, CitationsMustNameARecord) {
  EXPECT_EQ(refused("error 0.314 [deadbeef00]"), (Texts{"[deadbeef00]", "0.314"}));
  EXPECT_EQ(refused("error 0.314 [" + records_[0].digest().substr(0, 7) + "]"), Texts{"0.314"});
  EXPECT_EQ(refused("0.314 [" + records_[0].digest().substr(0, 8) + ", " + records_[1].digest() +
                    "] 1.5 s"),
            Texts{});
}

TEST_F(ClaimLint, MultiplesInWordsAreRefused) {
  EXPECT_EQ(refused("It is twice as fast."), Texts{"twice as "});
  EXPECT_EQ(refused("It saves a tenfold."), Texts{"tenfold"});
  EXPECT_EQ(refused("The product is formed three times."), Texts{});
}

TEST_F(ClaimLint, ProblemsSayLineAndRemedy) {
  const std::vector<ClaimProblem> got = lint("fine\n\nerror 0.315 " + cite(0));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].line, 3);
  EXPECT_EQ(got[0].todo, "not stated by " + records_[0].digest().substr(0, 12) +
                             "; nearest there: 0.3142; cite the record that does, or leave it out");
}

TEST_F(ClaimLint, UnheldNumbersCanBeLeftOut) {
  const std::vector<Quantity> held = quantities_of(records_[0]);
  EXPECT_EQ(without_unheld("0.314 of 4.7e-2 on 0.8.0", held), "0.314 of … on 0.8.0");
}

}  // namespace
}  // namespace patchbench::report
