#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/sentinel.h"
#include "unit/fake_runs.h"

namespace patchbench {
namespace {

using sample::FakeWorkbench;

/// A drawn case of a subject, as the reproducer writes it.
Observation drawn(const Subject& subject, const std::string& name, CaseStatus status,
                  const std::string& failure_class = "undeclared") {
  Observation o = sample::observation(subject.text(), name, CaseRole::kDrawn, status);
  o.failure_class = status == CaseStatus::kPresent ? failure_class : "";
  o.drawn = {{"space", "rows"}, {"axes", {{"tokens", 3}}}, {"kept", true}};
  return o;
}

Observation summary(const Subject& subject, int num_drawn, int red) {
  Observation o =
      drawn(subject, "drawn_from_rows", red > 0 ? CaseStatus::kPresent : CaseStatus::kAbsent);
  o.drawn = {{"space", "rows"}, {"asked", num_drawn}, {"red", red}};
  return o;
}

/// A validation that declared cases earn, and these.
Outcome validated_with(const std::vector<Observation>& more, bool is_few = false) {
  QuestionContext question{.question = Question::kValidate,
                           .subject = "patched",
                           .is_red_pin = true,
                           .num_drawn = 40,
                           .is_few = is_few,
                           .classes = {"wrong"}};
  std::vector<Observation> all;
  for (const char* subject : {"upstream", "patched", "mutant:half"}) {
    const CaseStatus trigger =
        subject == Subject("patched") ? CaseStatus::kAbsent : CaseStatus::kPresent;
    all.push_back(sample::observation(subject, "t", CaseRole::kTrigger, trigger));
    if (trigger == CaseStatus::kPresent) all.back().failure_class = "wrong";
    all.push_back(sample::observation(subject, "c", CaseRole::kControl, CaseStatus::kAbsent));
  }
  all.insert(all.end(), more.begin(), more.end());
  std::vector<Observation> recorded;
  for (const Observation& o : all)
    recorded.push_back(witness_of(make_observation_record(sample::context(), o)).observation);
  Outcome outcome = sentinel_of(all, question);
  EXPECT_EQ(sentinel_of(recorded, question).text(), outcome.text()) << "what its records give";
  return outcome;
}

TEST(Drawn, GreenCasesAreCountedInTheReason) {
  const Outcome o = validated_with({summary("patched", 40, 0)});
  EXPECT_EQ(o.text(), "FIX_VALIDATED");
  EXPECT_NE(o.why.find("40 drawn cases green"), std::string::npos) << o.why;
}

TEST(Drawn, FewerThanTheManifestAsksForAreSaid) {
  EXPECT_EQ(validated_with({summary("patched", 40, 0)}, true).text(), "FIX_VALIDATED(few_drawn)");
}

TEST(Drawn, NothingIsEarnedWithoutAWholeExploration) {
  EXPECT_EQ(validated_with({}).text(), "NONE");
  EXPECT_EQ(validated_with({summary("patched", 30, 0)}).text(), "NONE");
  EXPECT_EQ(validated_with({summary("upstream", 40, 0)}).text(), "NONE");
  Observation stopped = summary("patched", 40, 0);
  stopped.status = CaseStatus::kUnresolved;
  stopped.reason = "explored 31 of 40 cases in the time it has";
  const Outcome o = validated_with({stopped});
  EXPECT_EQ(o.text(), "NONE");
  EXPECT_NE(o.why.find("explored 31 of 40"), std::string::npos) << o.why;
}

TEST(Drawn, ARedCaseTurnsTheFixDown) {
  const Observation red = drawn("patched", "drawn_1", CaseStatus::kPresent);
  const Outcome o = validated_with({summary("patched", 40, 1), red});
  EXPECT_EQ(o.text(), "FIX_REJECTED");
  EXPECT_NE(o.why.find("drawn_1"), std::string::npos) << o.why;
  EXPECT_NE(o.why.find("{\"tokens\":3}"), std::string::npos) << o.why;
}

TEST(Drawn, WhatTheFixedReleaseShowsTooIsAnotherDefect) {
  const Observation red = drawn("patched", "drawn_1", CaseStatus::kPresent);
  const Outcome o = validated_with(
      {summary("patched", 40, 1), red, drawn("fixed", "drawn_1", CaseStatus::kPresent)});
  EXPECT_EQ(o.text(), "FIX_VALIDATED");
  EXPECT_NE(o.why.find("1 wrong by another defect"), std::string::npos) << o.why;
  EXPECT_EQ(validated_with(
                {summary("patched", 40, 1), red, drawn("fixed", "drawn_1", CaseStatus::kAbsent)})
                .text(),
            "FIX_REJECTED");
}

TEST(Drawn, UpstreamExcusesNoMoreThanAnUndeclaredFailure) {
  const Observation red = drawn("patched", "drawn_1", CaseStatus::kPresent);
  const auto with = [&](const Observation& upstream) {
    return validated_with({summary("patched", 40, 1), red, upstream}).text();
  };
  EXPECT_EQ(with(drawn("upstream", "drawn_1", CaseStatus::kPresent)), "FIX_VALIDATED");
  EXPECT_EQ(with(drawn("upstream", "drawn_1", CaseStatus::kPresent, "wrong")), "FIX_REJECTED");
  EXPECT_EQ(with(drawn("upstream", "drawn_2", CaseStatus::kPresent)), "FIX_REJECTED");
  Observation other_seed = drawn("upstream", "drawn_1", CaseStatus::kPresent);
  other_seed.seed = 2;
  EXPECT_EQ(with(other_seed), "FIX_REJECTED");
  Observation other_inputs = drawn("upstream", "drawn_1", CaseStatus::kPresent);
  other_inputs.inputs_sha256 = sha256_hex("others");
  EXPECT_EQ(with(other_inputs), "FIX_REJECTED");
}

TEST(Drawn, ARedCaseThatNobodyComparedEarnsNothing) {
  const Outcome o =
      validated_with({summary("patched", 40, 2), drawn("patched", "drawn_1", CaseStatus::kPresent),
                      drawn("fixed", "drawn_1", CaseStatus::kPresent)});
  EXPECT_EQ(o.text(), "NONE");
  EXPECT_NE(o.why.find("1 of 2 red drawn cases were not compared"), std::string::npos) << o.why;
}

TEST(Drawn, ACaseThatRaisesEarnsNothingUnlessAReleaseRaisesToo) {
  const auto raised = [](const char* subject) {
    Observation o = drawn(subject, "drawn_1", CaseStatus::kUnresolved);
    o.reason = "raised ValueError";
    o.self_reported = {{"exception", {{"type", "ValueError"}}}};
    return o;
  };
  EXPECT_EQ(validated_with({summary("patched", 40, 1), raised("patched")}).text(), "NONE");
  EXPECT_EQ(validated_with({summary("patched", 40, 1), raised("patched"), raised("fixed")}).text(),
            "FIX_VALIDATED");
}

TEST(Drawn, AnOpThatIsRedOnADrawnCaseIsNotValidated) {
  const QuestionContext question{
      .question = Question::kOp, .subject = "op", .num_drawn = 40, .classes = {"wrong"}};
  std::vector<Observation> all = {
      sample::observation("op", "t", CaseRole::kTrigger, CaseStatus::kAbsent),
      sample::observation("op_mutant:zeros", "t", CaseRole::kTrigger, CaseStatus::kPresent),
      summary("op", 40, 0)};
  EXPECT_EQ(sentinel_of(all, question).text(), "OP_VALIDATED");
  all.back() = summary("op", 40, 1);
  all.push_back(drawn("op", "drawn_1", CaseStatus::kPresent));
  EXPECT_EQ(sentinel_of(all, question).text(), "NONE");
}

TEST(Drawn, AnObservationIsOfOneKind) {
  Observation o = drawn("patched", "drawn_1", CaseStatus::kPresent);
  EXPECT_EQ(Observation::from_json(o.to_json()).to_json(), o.to_json());
  EXPECT_FALSE(o.is_summary() || o.is_passing());
  EXPECT_TRUE(summary("op", 1, 0).is_summary());
  o.drawn.erase("kept");
  EXPECT_TRUE(o.is_passing());
  Json json = o.to_json();
  json.erase("drawn");
  EXPECT_THROW(Observation::from_json(json), Error);
}

/// The pack of the fake workbench with one space; `runner.drawn` says what its cases show.
struct Explored {
  FakeWorkbench bench;
  explicit Explored(const std::string& fixed = R"("fixed": {"liger-kernel": "0.8.1"}, )") {
    bench.repository.replace(sample::PackRepository::kManifest, R"("mitigation": {)",
                             R"("explore": {"seconds": 5, )" + fixed +
                                 R"("spaces": [{"name": "rows", "count": 40, "judged_on": ["cpu"],
                                     "subjects": ["upstream"], "axes": {"dtype": "float32"}}]},
                                 "mitigation": {)");
  }
  int64_t num_runs(const std::string& subject) const {
    return std::count(bench.runner.ran.begin(), bench.runner.ran.end(), subject);
  }
};

TEST(Explores, AValidationDrawsForTheFixAlone) {
  Explored explored;
  const Answer answer = explored.bench.validated();
  EXPECT_EQ(answer.outcome.text(), "FIX_VALIDATED") << answer.outcome.why;
  EXPECT_EQ(answer.question.num_drawn, 40);
  EXPECT_EQ(explored.bench.runner.drew, (std::vector<std::string>{"patched 40"}));
}

TEST(Explores, ARedCaseIsTriedOnTheFixedRelease) {
  Explored explored;
  explored.bench.runner.red_drawn = {"patched"};
  EXPECT_EQ(explored.bench.validated().outcome.text(), "FIX_REJECTED");
  EXPECT_EQ(explored.num_runs("0.8.1 fixed"), 1);
  explored.bench.runner.red_drawn = {"patched", "fixed"};
  EXPECT_EQ(explored.bench.validated().outcome.text(), "FIX_VALIDATED");
}

TEST(Explores, WithoutAFixedReleaseItIsTriedOnUpstream) {
  Explored explored("");
  explored.bench.runner.red_drawn = {"patched"};
  EXPECT_EQ(explored.bench.validated().outcome.text(), "FIX_REJECTED");
  EXPECT_GT(explored.num_runs("0.8.0 upstream"), 1);
  explored.bench.runner.red_drawn = {"patched", "upstream"};
  EXPECT_EQ(explored.bench.validated().outcome.text(), "FIX_VALIDATED");
}

TEST(Explores, NamedCasesDrawNothing) {
  Explored explored;
  explored.bench.request.choice.cases = {"fp32", "sum"};
  const Answer answer = explored.bench.validated();
  EXPECT_EQ(answer.question.num_drawn, 0);
  EXPECT_TRUE(explored.bench.runner.drew.empty());
}

TEST(Explores, FewerCasesAreSaid) {
  Explored explored;
  explored.bench.request.choice.num_drawn = 20;
  const Answer answer = explored.bench.validated();
  EXPECT_EQ(answer.outcome.text(), "FIX_VALIDATED(few_drawn)") << answer.outcome.why;
}

TEST(Explores, AReleaseIsExploredWhereThatIsAsked) {
  Explored explored;
  explored.bench.reproduced();
  EXPECT_TRUE(explored.bench.runner.drew.empty());
  explored.bench.request.choice.explores = true;
  const Answer answer = explored.bench.reproduced();
  EXPECT_EQ(explored.bench.runner.drew, (std::vector<std::string>{"upstream 40"}));
  EXPECT_EQ(answer.outcome.text(), "BUG_REPRODUCED(wrong_result)") << answer.outcome.why;
}

}  // namespace
}  // namespace patchbench
