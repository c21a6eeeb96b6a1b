#include "core/scan_report.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/scan_conditions.h"
#include "core/scan_policy.h"
#include "core/scan_rules.h"

namespace patchbench {
namespace {

ScanAnswer answer_of(ScanState state, const std::string& impact) {
  return {.slug = "a",
          .number = 9,
          .upstream = "u",
          .package = "p",
          .version = "1",
          .state = state,
          .classes = {{.name = "c", .impact = impact}}};
}

TEST(ScanExit, AHitComesBeforeWhatIsUnknown) {
  const ScanLimits limits{.fail_on = {failing_impacts().begin(), failing_impacts().end()}};
  ScanReport report;
  EXPECT_EQ(scan_exit(report, limits), 3) << "nothing that a pack asks about";
  report.answers = {answer_of(ScanState::kHit, "memory"), answer_of(ScanState::kNotHit, "")};
  EXPECT_EQ(scan_exit(report, limits), 0) << "listed, and no failure";
  report.answers.push_back(answer_of(ScanState::kUnknown, ""));
  EXPECT_EQ(scan_exit(report, limits), 3);
  report.answers.push_back(answer_of(ScanState::kHit, "crash"));
  EXPECT_EQ(scan_exit(report, limits), 1);
  ScanLimits fixable = limits;
  fixable.only_fixable = true;
  EXPECT_EQ(scan_exit(report, fixable), 3);
  report.answers.back().upgrade = {.release = "2", .cures = {"b"}};
  EXPECT_EQ(scan_exit(report, fixable), 3) << "the release cures another pack";
  report.answers.back().upgrade.cures = {"a"};
  EXPECT_EQ(scan_exit(report, fixable), 1);
  report.answers.back().ignored = "why";
  ScanLimits lenient = limits;
  lenient.allows_unknown = true;
  EXPECT_EQ(scan_exit(report, lenient), 0);
  report = {.unread = {"x"}};
  EXPECT_EQ(scan_exit(report, limits), 3) << "a package that nobody knows is never green";
  report = {.code = {{.slug = "a", .classes = {{.name = "c", .impact = "crash"}}}}};
  EXPECT_EQ(scan_exit(report, limits), 3);
  report.code[0].classes[0].state = SiteState::kMeets;
  EXPECT_EQ(scan_exit(report, limits), 1);
  report.answers = {answer_of(ScanState::kNotHit, "")};
  EXPECT_EQ(scan_exit(report, limits), 0) << "the release is right";
}

TEST(ScanExit, EachClassOfAHitCountsAndAnOpenOneIsUnknown) {
  const ScanLimits limits{.fail_on = {"crash"}};
  ScanReport report{.answers = {answer_of(ScanState::kHit, "silent_wrong")}};
  EXPECT_EQ(scan_exit(report, limits), 0);
  report.answers[0].classes.push_back({.name = "d", .impact = "crash", .open = "another"});
  EXPECT_EQ(scan_exit(report, limits), 3);
  report.answers[0].classes.back().open = "";
  EXPECT_EQ(scan_exit(report, limits), 1);
}

TEST(ScanExit, AConditionThatIsMetFailsAndOneThatIsNotDoesNot) {
  ScanLimits limits{.fail_on = {"crash"}}, met{.fail_on = {"crash"}, .needs_met = true};
  ScanReport report{.answers = {answer_of(ScanState::kHit, "crash")}};
  ScanClass& row = report.answers[0].classes[0];
  row.condition = "when it rains";
  apply_conditions(report);
  EXPECT_EQ(scan_exit(report, limits), 1);
  EXPECT_EQ(scan_exit(report, met), 0);
  EXPECT_NE(passed_note(report, met), "");
  report.ruled_out = {{"a", "c", "f:1", {"another"}}, {"a", "d", "f:2", {"u"}}};
  apply_conditions(report);
  EXPECT_EQ(row.state, ConditionState::kOpen) << "of another upstream, and of another class";
  report.code = {{.slug = "a", .file = "g", .line = 2, .classes = {{"c", "crash"}}}};
  report.ruled_out[0].upstreams = {"u"};
  apply_conditions(report);
  EXPECT_EQ(row.state, ConditionState::kOpen) << "a place that cannot be known";
  report.code[0].classes[0].state = SiteState::kMeets;
  apply_conditions(report);
  EXPECT_EQ(row.where, "g:2");
  EXPECT_EQ(scan_exit(report, met), 1);
  report.code.clear();
  apply_conditions(report);
  EXPECT_EQ(scan_json(report, 0)["answers"][0]["state"], "present");
  EXPECT_TRUE(report.answers[0].product().ends_with("?patchbench_condition_not_met=f%3A1"));
  EXPECT_EQ(scan_exit(report, limits), 0);
  EXPECT_EQ(passed_note(report, met), "");
}

TEST(ScanExit, ARunThatIsAlwaysHitNeedsNoPlace) {
  ScanReport report{.answers = {answer_of(ScanState::kHit, "crash")}};
  apply_conditions(report);
  EXPECT_EQ(scan_exit(report, {.fail_on = {"crash"}, .needs_met = true}), 1);
}

TEST(ScanReport, AReleaseIsRightOnlyWhereNoPackIsHitByIt) {
  ScanAnswer one = answer_of(ScanState::kHit, "crash");
  one.upgrade = {.release = "2", .cures = {"a"}};
  EXPECT_EQ(one.right_release(), "2");
  const ScanReport report{.answers = {one}};
  EXPECT_EQ(report.upgrade_command(), "pip install 'p==2'");
  one.upgrade.brings = {"b"};
  EXPECT_TRUE(one.is_cured());
  EXPECT_EQ(one.right_release(), "");
  one.upgrade = {.release = "2", .cures = {"b"}};
  EXPECT_FALSE(one.is_cured());
  EXPECT_EQ((ScanReport{.answers = {one}}.upgrade_command()), "");
}

TEST(ScanExit, AProductIsAnotherWhereItsFilesAre) {
  ScanAnswer one = answer_of(ScanState::kHit, "crash");
  EXPECT_EQ(one.id() + " " + one.product(), "PATCHBENCH-09-u pkg:pypi/p@1");
  one.version = "1+a/b";
  EXPECT_EQ(one.product(), "pkg:pypi/p@1%2Ba%2Fb");
  one.files_digest = std::string(64, 'f');
  EXPECT_EQ(one.product(), "pkg:pypi/p@1%2Ba%2Fb?patchbench_files=ffffffffffffffff");
  one.without = "q";
  EXPECT_TRUE(one.product().ends_with("ffff&patchbench_without=q")) << one.product();
}

TEST(ScanPolicy, TheLastDayActs) {
  const std::string text = "[[ignore]]\npack = \"a\"\nreason = \"r\"\nuntil = 2026-01-31\n";
  for (const auto& [today, is_ignored] : {std::pair("2026-01-31", true), {"2026-02-01", false}}) {
    ScanReport report{
        .answers = {answer_of(ScanState::kHit, "crash"), answer_of(ScanState::kNotHit, "")}};
    apply_ignored(report, ignored_packs(text, "x", {"a"}), "x", today);
    EXPECT_EQ(report.answers[0].ignored.empty(), !is_ignored) << today;
    EXPECT_EQ(report.answers[1].ignored, "") << "what is right needs no entry";
    EXPECT_EQ(report.notes.empty(), is_ignored);
  }
}

}  // namespace
}  // namespace patchbench
