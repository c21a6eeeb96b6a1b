// A fix is validated where its changed lines ran, and nowhere else.
#include <gtest/gtest.h>

#include "core/question.h"
#include "core/run_plan.h"
#include "core/sentinel.h"
#include "core/sentinel_rules.h"

namespace patchbench {
namespace {

using Lines = std::vector<std::string>;

Observation observed(const Subject& subject, CaseRole role, CaseStatus status) {
  Observation o;
  o.slug = "demo";
  o.subject = subject;
  o.case_name = role == CaseRole::kTrigger ? "t" : "c";
  o.role = role;
  o.status = status;
  if (status == CaseStatus::kPresent) o.failure_class = "wrong";
  return o;
}

/// A validation whose fix missed these lines in its declared cases, and those in its drawn ones.
std::vector<Observation> validation(const Lines& declared, const Lines& drawn) {
  constexpr CaseStatus kRed = CaseStatus::kPresent, kGreen = CaseStatus::kAbsent;
  std::vector<Observation> all = {observed("upstream", CaseRole::kTrigger, kRed),
                                  observed("upstream", CaseRole::kControl, kGreen),
                                  observed("patched", CaseRole::kTrigger, kGreen),
                                  observed("patched", CaseRole::kControl, kGreen),
                                  observed("mutant:half", CaseRole::kTrigger, kRed),
                                  observed("mutant:half", CaseRole::kControl, kGreen)};
  const auto said = [](const Lines& missed) {
    return Json{{"lines", {{"num", 9}, {"missed", missed}, {"text", 0}}}};
  };
  all[2].self_reported = all[3].self_reported = said(declared);
  Observation summary = observed("patched", CaseRole::kDrawn, kGreen);
  summary.drawn = {{"asked", 0}};
  summary.self_reported = said(drawn);
  all.push_back(summary);
  return all;
}

QuestionContext asking() {
  return {.question = Question::kValidate,
          .subject = "patched",
          .is_red_pin = true,
          .has_lines = true,
          .classes = {"wrong"}};
}

TEST(ChangedLinesRun, AreEnoughInOneProcess) {
  EXPECT_EQ(sentinel_of(validation({}, {}), asking()).text(), "FIX_VALIDATED");
  EXPECT_EQ(sentinel_of(validation({"a.py:3"}, {}), asking()).text(), "FIX_VALIDATED");
  EXPECT_EQ(sentinel_of(validation({"a.py:3"}, {"a.py:7"}), asking()).text(), "FIX_VALIDATED");
}

TEST(ChangedLinesRun, ALineThatNoProcessRanTakesTheSentinelAndIsNamed) {
  const Outcome o = sentinel_of(validation({"a.py:3", "a.py:7"}, {"a.py:7", "b.py:1"}), asking());
  EXPECT_EQ(o.text(), "NONE");
  EXPECT_EQ(o.why, "lines not run: a.py:7");
}

TEST(ChangedLinesRun, AWaivedLineNeedNotRun) {
  QuestionContext question = asking();
  question.waived_lines = {"a.py:7"};
  EXPECT_EQ(sentinel_of(validation({"a.py:7"}, {"a.py:7"}), question).text(), "FIX_VALIDATED");
  EXPECT_EQ(QuestionContext::from_json(question.to_json()).waived_lines, question.waived_lines);
  EXPECT_TRUE(QuestionContext::from_json(question.to_json()).has_lines);
}

TEST(ChangedLinesRun, WhoDoesNotTellIsNotBelieved) {
  auto all = validation({}, {});
  for (Observation& o : all) o.self_reported = nullptr;
  EXPECT_EQ(sentinel_of(all, asking()).why, "no subject tells which of the changed lines ran");
}

TEST(ChangedLinesRun, AreNotAskedOfNamedCasesNorOfOldRecords) {
  const auto all = validation({"a.py:7"}, {"a.py:7"});
  QuestionContext question = asking();
  question.is_partial = true;
  EXPECT_EQ(sentinel_of(all, question).text(), "FIX_VALIDATED(named_cases)");
  question = asking();
  question.has_lines = false;
  EXPECT_EQ(sentinel_of(all, question).text(), "FIX_VALIDATED");
  EXPECT_FALSE(question.to_json().contains("has_lines"));
}

TEST(ChangedLinesRun, ARejectedFixStaysRejected) {
  auto all = validation({"a.py:7"}, {"a.py:7"});
  all[3].status = CaseStatus::kPresent;
  all[3].failure_class = "wrong";
  EXPECT_EQ(sentinel_of(all, asking()).text(), "FIX_REJECTED");
}

TEST(SmallChanges, AreCountedAndTakeNothingAway) {
  QuestionContext question = asking();
  question.altered = {{"1", "a.py:3 left out"}, {"2", "a.py:7 turned"}, {"3", "a.py:9 exchanged"}};
  auto all = validation({}, {});
  all.push_back(observed("altered:1", CaseRole::kTrigger, CaseStatus::kPresent));
  all.push_back(observed("altered:2", CaseRole::kTrigger, CaseStatus::kAbsent));
  all.push_back(observed("altered:3", CaseRole::kTrigger, CaseStatus::kUnresolved));
  const Outcome o = sentinel_of(all, question);
  EXPECT_EQ(o.text(), "FIX_VALIDATED");
  EXPECT_TRUE(o.why.ends_with("; 2 of 3 small changes of the fix seen")) << o.why;
  EXPECT_EQ(unseen_changes(all, question), Lines{"a.py:7 turned"});
  EXPECT_EQ(QuestionContext::from_json(question.to_json()).altered, question.altered);
  EXPECT_FALSE(asking().to_json().contains("altered"));
}

RunTarget target() {
  RunTarget target;
  target.manifest.slug = Slug("some_pack");
  target.manifest.kind = "bug";
  target.upstream = {.name = "thing", .red_pin = "1.0"};
  target.manifest.upstreams = {target.upstream};
  return target;
}

Edit edit_of(const std::string& path) {
  FileEdit file{.path = path, .blob = "", .result = std::string(40, 'a')};
  file.commands.push_back({.verb = 'a', .lines = {"x = 1"}});
  return {.name = "0001-a.edit", .files = {file}};
}

TEST(ChangedLinesRun, APlanLooksAtThoseOfTheFixAlone) {
  RunTarget of = target();
  of.manifest.waived_lines = {{std::string(40, 'a'), "a.py:1", "why"},
                              {std::string(40, 'b'), "a.py:2", "of another text"}};
  const RunPlan plan = plan_validation(of, {{edit_of("a.py")}, {edit_of("a.py")}, {}}, {});
  EXPECT_TRUE(plan.question.has_lines);
  EXPECT_EQ(plan.question.waived_lines, std::set<std::string>{"a.py:1"});
  for (const PlanStep& step : plan.steps)
    EXPECT_EQ(step.changed.is_null(), !(step.subject == SubjectKind::kPatched));
  EXPECT_FALSE(plan_validation(of, {{edit_of("a.cu")}, {}, {}}, {}).question.has_lines);
}

TEST(NamedCases, NeedOneRedMutantAndSayHowManyWere) {
  QuestionContext question = asking();
  question.is_partial = true;
  std::vector<Observation> all = validation({}, {});
  all.push_back(observed("mutant:other", CaseRole::kTrigger, CaseStatus::kAbsent));
  const Outcome one = sentinel_of(all, question);
  EXPECT_EQ(one.text(), "FIX_VALIDATED(named_cases)");
  EXPECT_NE(one.why.find("1 of 2 mutants red"), std::string::npos) << one.why;
  std::erase_if(all, [](const Observation& o) { return o.subject.text() == "mutant:half"; });
  EXPECT_FALSE(sentinel_of(all, question).sentinel);
}

}  // namespace
}  // namespace patchbench
