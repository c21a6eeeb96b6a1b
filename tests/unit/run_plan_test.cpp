#include "core/run_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace patchbench {
namespace {

using Names = std::vector<std::string>;

Case of(std::string name, CaseRole role, Json axes = {{"rows", 3}}) {
  Case c{
      .name = std::move(name), .role = role, .axes = std::move(axes), .judged_on = {"cpu", "cuda"}};
  return c;
}

/// A pack with a case of each kind, on a CPU.
RunTarget target() {
  RunTarget target;
  Manifest& pack = target.manifest;
  pack.slug = Slug("some_pack");
  pack.kind = "bug";
  pack.subjects = {"upstream", "patched", "mitigated", "op"};
  pack.classes_order = {"wrong_result"};
  target.upstream = {.name = "thing", .red_pin = "1.0"};
  pack.upstreams = {target.upstream};
  target.pin = Pin{.upstream = "thing", .version = "1.0"};
  pack.cases = {
      of("red", CaseRole::kTrigger), of("green", CaseRole::kControl), of("seen", CaseRole::kSurvey),
      of("scaled", CaseRole::kSilent, {{"scaled_from", 2}}), of("large", CaseRole::kTrigger)};
  pack.cases[4].judged_on = {"cuda"};
  pack.explore.seconds = 6;
  pack.explore.spaces = {
      {.body = {{"name", "rows"}}, .count = 40, .like = of("", CaseRole::kDrawn)}};
  return target;
}

Series series() {
  return {{Edit{.name = "0001-right.edit"}},
          {Edit{.name = "mutant-half.edit"}, Edit{.name = "mutant-none.edit"}},
          {Edit{.name = "claimed-once.edit"}}};
}

Names names_of(const RunPlan& plan) {
  Names names;
  for (const PlanStep& step : plan.steps) names.push_back(step.subject.text());
  return names;
}

TEST(Plan, AMutantRunsNoCaseThatIsSeenAloneOrLooksAtARegion) {
  const RunPlan plan = plan_validation(target(), series(), {});
  EXPECT_EQ(names_of(plan), (Names{"upstream", "patched", "mutant:half", "mutant:none"}));
  EXPECT_EQ(plan.steps[1].cases, (Names{"red", "green", "seen", "scaled"}));
  EXPECT_EQ(plan.steps[2].cases, (Names{"red", "green"}));
}

TEST(Plan, ACaseThatTheDeviceCannotJudgeRunsWhereItIsNamed) {
  EXPECT_EQ(plan_validation(target(), series(), {.cases = {"large"}}).steps[2].cases,
            Names{"large"});
  RunTarget on_gpu = target();
  on_gpu.device = {DeviceKind::kCuda, 0};
  EXPECT_EQ(plan_validation(on_gpu, series(), {}).steps[2].cases, (Names{"red", "green", "large"}));
}

TEST(Plan, TheFixAloneIsDrawnForAndHasRegions) {
  const RunPlan plan = plan_validation(target(), series(), {});
  for (const PlanStep& step : plan.steps) {
    const bool is_fix = step.subject == SubjectKind::kPatched;
    EXPECT_EQ(step.draws.count, is_fix ? 40 : 0) << step.subject.text();
    EXPECT_EQ(step.has_regions, is_fix) << step.subject.text();
  }
  EXPECT_EQ(plan.question.num_drawn, 40);
  EXPECT_FALSE(plan.question.is_few);
}

TEST(Plan, AMutantOfAFixStopsWhereItIsRed) {
  const RunPlan plan = plan_validation(target(), series(), {});
  for (const PlanStep& step : plan.steps)
    EXPECT_EQ(step.stops_at_red, step.subject == SubjectKind::kMutant) << step.subject.text();
  RunTarget refactor = target();
  refactor.manifest.kind = "refactor";
  for (const PlanStep& step : plan_validation(refactor, series(), {}).steps)
    EXPECT_FALSE(step.stops_at_red) << step.subject.text();
}

TEST(Plan, EachTreeHasItsOwnEdits) {
  const RunPlan plan = plan_validation(target(), series(), {});
  EXPECT_TRUE(plan.steps[0].edits.empty());
  EXPECT_EQ(plan.steps[1].edits.front().name, "0001-right.edit");
  EXPECT_EQ(plan.steps[3].edits.front().name, "mutant-none.edit");
  EXPECT_THROW(edits_of(series(), "mutant:hlaf", "some_pack"), Error);
}

TEST(Plan, AFixWithoutEditsIsNotJudged) {
  Series none = series();
  none.edits.clear();
  EXPECT_THROW(plan_validation(target(), none, {}), Error);
}

TEST(Plan, DrawsFollowTheChoice) {
  const auto drawn = [](const CaseChoice& choice) {
    return plan_validation(target(), series(), choice);
  };
  EXPECT_EQ(drawn({.cases = {"red"}}).steps[1].draws.count, 0);
  EXPECT_TRUE(drawn({.cases = {"red"}}).question.is_partial);
  EXPECT_EQ(drawn({.cases = {"red"}, .explores = true}).steps[1].draws.count, 40);
  EXPECT_TRUE(drawn({.num_drawn = 5}).question.is_few);
  const RunPlan seeds = drawn({.seeds = {1, 10}});
  EXPECT_EQ(seeds.question.num_drawn, 400);
  // Ten times the manifest's six seconds for each of ten times its count.
  EXPECT_EQ(seeds.steps[1].draws.seconds, 600);
  EXPECT_EQ(drawn({.num_drawn = 5}).steps[1].draws.seconds, 60);
}

TEST(Plan, AnUpstreamIsExploredWhereThatIsAskedFor) {
  EXPECT_EQ(plan_reproduction(target(), SubjectKind::kUpstream, {}, {}).steps[0].draws.count, 0);
  EXPECT_EQ(plan_reproduction(target(), SubjectKind::kUpstream, {}, {.explores = true})
                .steps[0]
                .draws.count,
            40);
}

TEST(Plan, AnOpIsJudgedWithItsOutputsSpoiledOnFewCases) {
  const RunPlan plan = plan_reproduction(target(), SubjectKind::kOp, {}, {.repeats = 3});
  EXPECT_EQ(names_of(plan), (Names{"op", "op"}));
  EXPECT_TRUE(plan.steps[1].is_spoiled);
  EXPECT_EQ(plan.steps[1].cases, (Names{"red", "green"}));
  EXPECT_EQ(plan.steps[1].repeats, 1);
}

TEST(Plan, AMitigationIsComparedWithTheReleaseAndEndsWithItsProgram) {
  const RunPlan plan = plan_reproduction(target(), SubjectKind::kMitigated, {}, {});
  EXPECT_EQ(names_of(plan), (Names{"upstream", "mitigated"}));
  EXPECT_EQ(plan.steps[0].cases, (Names{"red", "green", "scaled"}));
  EXPECT_TRUE(plan.runs_program);
  EXPECT_FALSE(plan_reproduction(target(), "mitigated:exact", {}, {}).runs_program);
  EXPECT_FALSE(
      plan_reproduction(target(), SubjectKind::kMitigated, {}, {.cases = {"red"}}).runs_program);
}

TEST(Plan, ANamedCaseIsForTheSubject) {
  RunTarget at = target();
  at.manifest.cases[1].subjects = {"op"};
  EXPECT_THROW(plan_reproduction(at, SubjectKind::kUpstream, {}, {.cases = {"green"}}), Error);
}

TEST(Plan, AxesThatAreGivenAreTheOnlyCases) {
  const RunPlan plan =
      plan_reproduction(target(), SubjectKind::kOp, {}, {.given = {{{"rows", 9}}}});
  EXPECT_EQ(plan.question.question, Question::kDrawn);
  ASSERT_EQ(plan.steps.size(), 1U);
  EXPECT_TRUE(plan.steps[0].cases.empty());
  EXPECT_EQ(cases_document(target(), plan.steps[0]).at("given").size(), 1U);
}

TEST(Plan, RedDrawnCasesAreTriedOnTheReleaseThatIsCalledFixed) {
  RunTarget at = target();
  const RunPlan plan = plan_validation(at, series(), {});
  Observation red;
  red.subject = SubjectKind::kPatched;
  red.role = CaseRole::kDrawn;
  red.case_name = "drawn_1";
  red.status = CaseStatus::kPresent;
  red.seed = 7;
  red.drawn = {{"space", "rows"}, {"axes", {{"rows", 9}}}};
  EXPECT_TRUE(further_steps(at, plan, {}).empty());
  EXPECT_EQ(further_steps(at, plan, {red, red}).at(0).subject.text(), "upstream");
  at.manifest.explore.fixed = {{"thing", "1.1"}};
  const std::vector<PlanStep> steps = further_steps(at, plan, {red, red});
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].pin, PinRole::kFixed);
  EXPECT_EQ(steps[0].subject.text(), "fixed");
  EXPECT_EQ(steps[0].given.size(), 1U);
  EXPECT_EQ(steps[0].seeds.first, 7U);
  Observation raised = red;
  raised.status = CaseStatus::kUnresolved;
  raised.self_reported = {{"exception", {{"type", "ValueError"}}}};
  const std::vector<PlanStep> both = further_steps(at, plan, {raised});
  ASSERT_EQ(both.size(), 2U);
  EXPECT_NE(both[0].subject.text(), both[1].subject.text());
  red.subject = "mutant:half";
  EXPECT_TRUE(further_steps(at, plan, {red}).empty());
}

TEST(Plan, TheSelfTestKnowsNoLiarWhereNoCaseOfAReleaseCounts) {
  EXPECT_TRUE(plan_self_test(target()).liar);
  RunTarget at = target();
  for (Case& c : at.manifest.cases) c.judged_on = {"cuda"};
  EXPECT_FALSE(plan_self_test(at).liar);
}

TEST(Plan, WithoutOpsOnTheGpuTheJudgesOwnSubjectsRunOnTheCpu) {
  RunTarget at = target();
  at.device = {DeviceKind::kCuda, 1};
  EXPECT_EQ(target_in_process(at).device, at.device);
  at.has_ops = false;
  EXPECT_EQ(target_in_process(at).device, Device{});
}

TEST(Plan, TheRedPinIsThatOfEachRelease) {
  RunTarget at = target();
  at.manifest.upstreams.push_back({.name = "other", .red_pin = "2.0"});
  EXPECT_TRUE(at.is_red_pin());
  at.companions = {{.upstream = "other", .version = "2.1"}};
  EXPECT_FALSE(at.is_red_pin());
  at.companions[0].version = "2.0";
  EXPECT_TRUE(at.is_red_pin());
  at.pin.reset();
  EXPECT_FALSE(at.is_red_pin());
}

TEST(Device, IsSpelledInOneWay) {
  EXPECT_EQ(Device::parse("cuda:12")->text(), "cuda:12");
  EXPECT_EQ(Device::parse("cpu"), Device{});
  for (const char* wrong : {"", "cuda", "cuda:", "cuda:x", "cuda:1000", "CPU"})
    EXPECT_FALSE(Device::parse(wrong)) << wrong;
}

}  // namespace
}  // namespace patchbench
