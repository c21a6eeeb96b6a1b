// Longer than 400 lines: every sentinel with what earns it and what does not.
#include "core/sentinel.h"
#include "core/question.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.h"

namespace patchbench {
namespace {

/// One observation of the little pack used here: class "wrong" is primary, "ignored" the second.
Observation observed(const Subject& subject, const std::string& case_name, CaseRole role,
                     CaseStatus what, const std::string& failure_class = "") {
  Observation o;
  o.slug = "demo";
  o.subject = subject;
  o.case_name = case_name;
  o.role = role;
  o.status = what;
  o.failure_class = what == CaseStatus::kPresent && failure_class.empty() ? "wrong" : failure_class;
  if (what == CaseStatus::kUnresolved) o.reason = "crashed";
  return o;
}

std::vector<Observation> run_of(const std::string& subject, CaseStatus trigger, CaseStatus silent,
                                CaseStatus control) {
  return {observed(subject, "t1", CaseRole::kTrigger, trigger),
          observed(subject, "t2", CaseRole::kTrigger, trigger),
          observed(subject, "s", CaseRole::kSilent, silent),
          observed(subject, "c", CaseRole::kControl, control)};
}

std::vector<Observation> joined(std::vector<std::vector<Observation>> parts) {
  std::vector<Observation> all;
  for (auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

QuestionContext asking(Question question, const std::string& subject = "upstream") {
  return {.question = question,
          .subject = subject,
          .is_red_pin = true,
          .classes = {"wrong", "ignored"}};
}

constexpr CaseStatus P = CaseStatus::kPresent, A = CaseStatus::kAbsent, U = CaseStatus::kUnjudged,
                     X = CaseStatus::kUnresolved, N = CaseStatus::kUnsupported;

TEST(Reproduce, RedTriggersAndGreenControlsAreTheBug) {
  const Outcome o = sentinel_of(run_of("upstream", P, A, A), asking(Question::kReproduce));
  EXPECT_EQ(o.text(), "BUG_REPRODUCED(wrong)");
  EXPECT_EQ(o.alias, "");
}

TEST(Reproduce, OneRedTriggerIsEnough) {
  auto all = run_of("upstream", A, A, A);
  all[1] = observed("upstream", "t2", CaseRole::kTrigger, P);
  EXPECT_EQ(sentinel_of(all, asking(Question::kReproduce)).text(), "BUG_REPRODUCED(wrong)");
}

TEST(Reproduce, SecondClassHasItsAliasAndMayTouchSilentCases) {
  auto all = run_of("upstream", P, P, A);
  for (auto& o : all) {
    if (o.status == P) o.failure_class = "ignored";
  }
  const Outcome o = sentinel_of(all, asking(Question::kReproduce));
  EXPECT_EQ(o.text(), "BUG_REPRODUCED(ignored)");
  EXPECT_EQ(o.alias, "IGNORED");
}

TEST(Reproduce, PrimaryClassOnASilentCaseIsNoSentinel) {
  EXPECT_FALSE(sentinel_of(run_of("upstream", P, P, A), asking(Question::kReproduce)).sentinel);
}

TEST(Reproduce, AllTriggersAbsentIsBugAbsentAndSaysSoOnTheRedPin) {
  const Outcome o = sentinel_of(run_of("upstream", A, A, A), asking(Question::kReproduce));
  EXPECT_EQ(o.text(), "BUG_ABSENT");
  EXPECT_NE(o.why.find("expected to be red"), std::string::npos);
}

/// Nothing here may earn a sentinel: each row is one way in which a run shows nothing.
TEST(Reproduce, NothingIsEarnedWithout) {
  const auto why = [](std::vector<Observation> all) {
    const Outcome o = sentinel_of(all, asking(Question::kReproduce));
    EXPECT_FALSE(o.sentinel) << o.text();
    EXPECT_EQ(o.text(), "NONE");
    return o.why;
  };
  EXPECT_NE(why(run_of("upstream", P, A, P)).find("must be right everywhere"), std::string::npos);
  EXPECT_NE(why(run_of("upstream", P, A, N)).find("control c is unsupported"), std::string::npos);
  EXPECT_NE(why(run_of("upstream", X, A, A)).find("unresolved"), std::string::npos);
  EXPECT_NE(why(run_of("upstream", P, X, A)).find("crashed"), std::string::npos);
  EXPECT_NE(why(run_of("upstream", U, A, A)).find("could not be judged"), std::string::npos);
  EXPECT_NE(why(run_of("upstream", N, A, A)).find("could not be judged"), std::string::npos);
  EXPECT_NE(why({}).find("no trigger"), std::string::npos);
  EXPECT_NE(why({observed("upstream", "t", CaseRole::kTrigger, P)}).find("no control"),
            std::string::npos);
  EXPECT_NE(why(run_of("patched", P, A, A)).find("no trigger"), std::string::npos);
  auto undeclared = run_of("upstream", P, A, A);
  undeclared[0].failure_class = "undeclared";
  EXPECT_NE(why(undeclared).find("not declared"), std::string::npos);
  auto uncounted = run_of("upstream", P, A, A);
  for (auto& o : uncounted) o.counts = false;
  EXPECT_NE(why(uncounted).find("no trigger"), std::string::npos);
}

TEST(Reproduce, RepeatsOfOtherInputsAreNoRepeats) {
  auto all = joined({run_of("upstream", P, A, A), run_of("upstream", P, A, A)});
  all.back().inputs_sha256 = std::string(64, 'b');
  const Outcome o = sentinel_of(all, asking(Question::kReproduce));
  EXPECT_FALSE(o.sentinel);
  EXPECT_NE(o.why.find("different inputs"), std::string::npos) << o.why;
}

TEST(Reproduce, MixedRepeatsAreUnresolvedWithTheirCount) {
  auto all = joined(
      {run_of("upstream", P, A, A), run_of("upstream", P, A, A), run_of("upstream", A, A, A)});
  const Outcome o = sentinel_of(all, asking(Question::kReproduce));
  EXPECT_FALSE(o.sentinel);
  EXPECT_NE(o.why.find("2/3"), std::string::npos) << o.why;
  EXPECT_EQ(sentinel_of(joined({run_of("upstream", P, A, A), run_of("upstream", P, A, A)}),
                        asking(Question::kReproduce))
                .text(),
            "BUG_REPRODUCED(wrong)");
}

TEST(Validate, RedGreenAndEveryMutantRedIsAValidatedFix) {
  const auto all = joined(
      {run_of("upstream", P, A, A), run_of("patched", A, A, A), run_of("mutant:half", P, A, A)});
  EXPECT_EQ(sentinel_of(all, asking(Question::kValidate)).text(), "FIX_VALIDATED");
}

TEST(Validate, ARedCaseOfAnyRoleRejectsTheFixAndIsNamed) {
  for (const auto& patched :
       {run_of("patched", P, A, A), run_of("patched", A, P, A), run_of("patched", A, A, P)}) {
    const Outcome o =
        sentinel_of(joined({run_of("upstream", P, A, A), patched, run_of("mutant:half", P, A, A)}),
                    asking(Question::kValidate));
    EXPECT_EQ(o.text(), "FIX_REJECTED");
    EXPECT_NE(o.why.find("is red"), std::string::npos);
  }
  auto other = run_of("patched", A, A, A);
  other[0] = observed("patched", "t1", CaseRole::kTrigger, P, "undeclared");
  EXPECT_EQ(
      sentinel_of(joined({run_of("upstream", P, A, A), other, run_of("mutant:half", P, A, A)}),
                  asking(Question::kValidate))
          .text(),
      "FIX_REJECTED");
}

TEST(Validate, NothingIsEarnedWithout) {
  const auto green = run_of("patched", A, A, A);
  const auto red = run_of("upstream", P, A, A);
  const auto mutant = run_of("mutant:half", P, A, A);
  const auto why = [](const std::vector<Observation>& all) {
    const Outcome o = sentinel_of(all, asking(Question::kValidate));
    EXPECT_FALSE(o.sentinel) << o.text();
    return o.why;
  };
  EXPECT_NE(why(joined({run_of("upstream", A, A, A), green, mutant})).find("not red here"),
            std::string::npos);
  EXPECT_NE(why(joined({red, green})).find("no mutant"), std::string::npos);
  EXPECT_NE(
      why(joined({red, green, run_of("mutant:half", A, A, A)})).find("mutant:half was not caught"),
      std::string::npos);
  EXPECT_NE(why(joined({red, green, mutant, run_of("mutant:other", A, A, A)})).find("mutant:other"),
            std::string::npos);
  EXPECT_NE(why(joined({red, green, run_of("mutant:half", X, A, A)})).find("not caught"),
            std::string::npos);
  EXPECT_NE(why(joined({red, run_of("patched", X, A, A), mutant})).find("crashed"),
            std::string::npos);
  EXPECT_NE(why(joined({red, run_of("patched", U, A, A), mutant})).find("not judged green"),
            std::string::npos);
  EXPECT_NE(why(joined({red, mutant})).find("not judged green"), std::string::npos);
}

TEST(Validate, ComparesOnlyWhatWasGivenTheSameInputs) {
  const auto with_inputs = [](std::vector<Observation> all, char digit) {
    for (auto& o : all) o.inputs_sha256 = std::string(64, digit);
    return all;
  };
  const auto red = with_inputs(run_of("upstream", P, A, A), 'a');
  const auto green = with_inputs(run_of("patched", A, A, A), 'a');
  const auto mutant = with_inputs(run_of("mutant:half", P, A, A), 'a');
  const auto question = asking(Question::kValidate);
  EXPECT_EQ(sentinel_of(joined({red, green, mutant}), question).text(), "FIX_VALIDATED");
  const Outcome patched = sentinel_of(joined({red, with_inputs(green, 'b'), mutant}), question);
  EXPECT_FALSE(patched.sentinel);
  EXPECT_NE(patched.why.find("patched c: its inputs"), std::string::npos) << patched.why;
  EXPECT_FALSE(sentinel_of(joined({red, green, with_inputs(mutant, 'b')}), question).sentinel);
}

TEST(Op, IsValidatedOnlyWithItsMutantsRed) {
  const auto question = asking(Question::kOp, "op");
  EXPECT_EQ(
      sentinel_of(joined({run_of("op", A, A, A), run_of("op_mutant:zeros", P, P, P)}), question)
          .text(),
      "OP_VALIDATED");
  EXPECT_FALSE(sentinel_of(run_of("op", A, A, A), question).sentinel);
  EXPECT_FALSE(
      sentinel_of(joined({run_of("op", A, A, P), run_of("op_mutant:zeros", P, P, P)}), question)
          .sentinel);
}

TEST(Op, ASpoiledOutputThatWasTurnedAwayIsCaughtButOneThatPassesEveryTriggerIsNot) {
  const auto question = asking(Question::kOp, "op");
  auto refused = run_of("op_mutant:missing_tensor", X, X, X);
  EXPECT_FALSE(sentinel_of(joined({run_of("op", A, A, A), refused}), question).sentinel);
  for (auto& o : refused) o.outputs_sha256 = "ab";
  EXPECT_EQ(sentinel_of(joined({run_of("op", A, A, A), refused}), question).text(), "OP_VALIDATED");
  EXPECT_FALSE(
      sentinel_of(joined({run_of("op", A, A, A), run_of("op_mutant:zeros", A, A, P)}), question)
          .sentinel);
}

TEST(Op, ASpoilingThatChangedNothingIsNoMutant) {
  const auto question = asking(Question::kOp, "op");
  auto unchanged = run_of("op_mutant:scaled", X, X, X);
  for (auto& o : unchanged) {
    o.outputs_sha256 = "ab";
    o.unresolved = Unresolved::kNoEffect;
  }
  const auto green = run_of("op", A, A, A);
  EXPECT_EQ(
      sentinel_of(joined({green, unchanged, run_of("op_mutant:zeros", P, P, P)}), question).text(),
      "OP_VALIDATED");
  EXPECT_FALSE(sentinel_of(joined({green, unchanged}), question).sentinel) << "none is left";
}

TEST(Mitigation, NeedsTheUnmitigatedUpstreamRed) {
  const auto question = asking(Question::kMitigation, "mitigated");
  EXPECT_EQ(
      sentinel_of(joined({run_of("upstream", P, A, A), run_of("mitigated", A, A, A)}), question)
          .text(),
      "MITIGATION_VERIFIED");
  EXPECT_FALSE(sentinel_of(run_of("mitigated", A, A, A), question).sentinel);
  auto other = run_of("mitigated", A, A, A);
  for (auto& o : other) o.inputs_sha256 = std::string(64, 'b');
  EXPECT_FALSE(sentinel_of(joined({run_of("upstream", P, A, A), other}), question).sentinel);
}

TEST(Mitigation, NeedNotAnswerWhatTheReleaseLacks) {
  const auto run = [](CaseStatus upstream, CaseStatus mitigated) {
    auto all = joined({run_of("upstream", P, A, A), run_of("mitigated", A, A, A)});
    all.push_back(observed("upstream", "t3", CaseRole::kTrigger, upstream));
    all.push_back(observed("mitigated", "t3", CaseRole::kTrigger, mitigated));
    return sentinel_of(all, asking(Question::kMitigation, "mitigated")).text();
  };
  EXPECT_EQ(run(N, N), "MITIGATION_VERIFIED");
  EXPECT_EQ(run(P, N), "NONE");
}

TEST(Mitigation, NamesTheRedTriggersItWasNotGivenAndNeedsOneThatItWas) {
  const auto question = asking(Question::kMitigation, "mitigated");
  const auto mitigated = run_of("mitigated", A, A, A);
  auto upstream = run_of("upstream", P, A, A);
  upstream.push_back(observed("upstream", "t3", CaseRole::kTrigger, P));
  const Outcome outcome = sentinel_of(joined({upstream, mitigated}), question);
  EXPECT_EQ(outcome.text(), "MITIGATION_VERIFIED");
  EXPECT_TRUE(outcome.why.ends_with(" cases green; left: t3")) << outcome.why;
  // The only red one is not the mitigation's.
  for (Observation& o : upstream) {
    if (o.role == CaseRole::kTrigger && o.case_name != "t3") o.status = A;
  }
  EXPECT_EQ(sentinel_of(joined({upstream, mitigated}), question).why,
            "no trigger that is red on upstream was run");
}

TEST(Memory, NeedsCorrectnessAndAPeakUnderTheBound) {
  auto question = asking(Question::kMemory, "op");
  const auto green = joined({run_of("op", A, A, A), run_of("op_mutant:zeros", P, P, P)});
  question.bound_bytes = 100;
  EXPECT_FALSE(sentinel_of(green, question).sentinel);
  question.measured_bytes = 101;
  EXPECT_FALSE(sentinel_of(green, question).sentinel);
  question.measured_bytes = 100;
  EXPECT_EQ(sentinel_of(green, question).text(), "MEMORY_SAVE_VERIFIED");
  EXPECT_FALSE(sentinel_of(run_of("op", P, A, A), question).sentinel);
}

TEST(Memory, MayBeBoundedInItsGrowthToo) {
  auto question = asking(Question::kMemory, "op");
  question.bound_bytes = question.measured_bytes = 100;
  question.bound_growth = 2.2;
  const auto green = joined({run_of("op", A, A, A), run_of("op_mutant:zeros", P, P, P)});
  EXPECT_FALSE(sentinel_of(green, question).sentinel);
  question.measured_growth = 3.8;
  EXPECT_FALSE(sentinel_of(green, question).sentinel);
  question.measured_growth = 2.1;
  EXPECT_EQ(sentinel_of(green, question).text(), "MEMORY_SAVE_VERIFIED");
}

/// upstream, patched and one mutant, each with a number of products on the control.
Outcome cost_of(Json upstream, Json patched, Json mutant, CaseStatus patched_control = A) {
  auto all = joined({run_of("upstream", P, A, A), run_of("patched", A, A, patched_control),
                     run_of("mutant:half", P, A, A)});
  for (auto& o : all) {
    if (o.case_name != "c") continue;
    const Json& said = o.subject == "upstream"  ? upstream
                       : o.subject == "patched" ? patched
                                                : mutant;
    if (!said.is_null()) o.self_reported = {{"numbers", {{"products", said}}}};
  }
  auto question = asking(Question::kRegression, "patched");
  question.ratios_max = {{"c", {{"products", 1.03}}}};
  return sentinel_of(all, question);
}

TEST(Regression, IsRuledOutWhereNoBoundedNumberGrowsAndAMutantsDoes) {
  EXPECT_EQ(cost_of(100, 103, 104).text(), "NO_REGRESSION");
  EXPECT_EQ(cost_of(100, 90, 104).text(), "NO_REGRESSION");
}

TEST(Regression, IsNotRuledOutWithout) {
  const auto why = [](const Outcome& o) {
    EXPECT_EQ(o.text(), "NONE");
    return o.why;
  };
  EXPECT_NE(why(cost_of(100, 104, 104)).find("over 1.03 times"), std::string::npos);
  EXPECT_NE(why(cost_of(100, 100, 103)).find("no mutant went over"), std::string::npos);
  EXPECT_NE(why(cost_of(100, 100, {})).find("no mutant went over"), std::string::npos);
  EXPECT_NE(why(cost_of({}, 100, 104)).find("upstream reports no"), std::string::npos);
  EXPECT_NE(why(cost_of(100, {}, 104)).find("patched reports no"), std::string::npos);
  EXPECT_NE(why(cost_of(100, "100", 104)).find("patched reports no"), std::string::npos);
  EXPECT_NE(why(cost_of(100, 100, 104, P)).find("patched c is red"), std::string::npos);
  EXPECT_NE(why(cost_of(100, 100, 104, X)).find("crashed"), std::string::npos);
  auto question = asking(Question::kRegression, "patched");
  EXPECT_NE(why(sentinel_of(run_of("upstream", P, A, A), question)).find("was not judged green"),
            std::string::npos);
}

/// The same observations in any order give the same outcome, and no random mix of observations
/// without a red upstream ever earns FIX_VALIDATED.
/// The claim "t1 and t2 are absent on `upstream`", against `patched`.
Outcome claim_over(std::vector<Observation> subject, std::vector<Observation> contrast,
                   CaseStatus expects = A) {
  QuestionContext context = asking(Question::kClaim);
  context.contrast = "patched";
  context.expects = expects;
  context.failure_class = "wrong";
  return sentinel_of(joined({std::move(subject), std::move(contrast)}), context);
}

TEST(Claim, IsConfirmedWhereTheContrastShowsTheOpposite) {
  EXPECT_EQ(claim_over(run_of("upstream", A, A, A), run_of("patched", P, A, A)).text(),
            "CLAIM_CONFIRMED");
  EXPECT_EQ(claim_over(run_of("upstream", P, P, P), run_of("patched", A, A, A), P).text(),
            "CLAIM_CONFIRMED");
}

TEST(Claim, IsRefutedByOneCaseOnWhichTheContrastIsAsClaimed) {
  auto one_red = run_of("upstream", A, A, A);
  one_red[1] = observed("upstream", "t2", CaseRole::kTrigger, P);
  const Outcome o = claim_over(one_red, run_of("patched", A, A, A));
  EXPECT_EQ(o.text(), "CLAIM_REFUTED(wrong)");
  EXPECT_NE(o.why.find("t2"), std::string::npos);
  EXPECT_EQ(claim_over(run_of("upstream", A, A, A), run_of("patched", P, P, P), P).text(),
            "CLAIM_REFUTED");
}

TEST(Claim, IsNotDecidedWithout) {
  const auto right = run_of("upstream", A, A, A), red = run_of("upstream", P, P, P);
  // A check that cannot come out the other way shows nothing.
  EXPECT_FALSE(claim_over(right, run_of("patched", A, A, A)).sentinel);
  EXPECT_FALSE(claim_over(red, run_of("patched", P, P, P)).sentinel);
  EXPECT_FALSE(claim_over(red, run_of("patched", X, X, X)).sentinel);
  EXPECT_FALSE(claim_over(red, {}).sentinel);
  EXPECT_FALSE(claim_over({}, run_of("patched", P, P, P)).sentinel);
  EXPECT_FALSE(claim_over(run_of("upstream", U, A, A), run_of("patched", P, P, P)).sentinel);
  // Red in a class that the claim does not speak of is another matter.
  auto other = red;
  for (Observation& o : other) o.failure_class = "ignored";
  EXPECT_FALSE(claim_over(other, run_of("patched", A, A, A)).sentinel);
  auto other_inputs = run_of("patched", A, A, A);
  for (Observation& o : other_inputs) o.inputs_sha256 = std::string(64, 'b');
  EXPECT_FALSE(claim_over(red, other_inputs).sentinel);
}

TEST(Survey, IsPartOfNoSentinelButOfAClaim) {
  auto all = run_of("upstream", A, A, A);
  all.push_back(observed("upstream", "survey", CaseRole::kSurvey, P));
  EXPECT_EQ(sentinel_of(all, asking(Question::kReproduce)).text(), "BUG_ABSENT");
  EXPECT_EQ(claim_over({observed("upstream", "survey", CaseRole::kSurvey, P)},
                       {observed("patched", "survey", CaseRole::kSurvey, A)}, P)
                .text(),
            "CLAIM_CONFIRMED");
}

/// A run of a refactor: what each subject put out on the compared cases, and its code.
std::vector<Observation> with_outputs(std::vector<Observation> all, char digit, char code) {
  all.push_back(observed(all.front().subject, "code", CaseRole::kCode, U));
  for (Observation& o : all) {
    const char of = o.role == CaseRole::kCode ? code : digit;
    if (o.role != CaseRole::kTrigger) o.outputs_sha256 = std::string(64, of);
  }
  return all;
}

Outcome refactored(const std::vector<Observation>& patched,
                   const std::vector<Observation>& mutant) {
  const auto upstream = with_outputs(run_of("upstream", P, A, A), 'a', 'c');
  return sentinel_of(joined({upstream, patched, mutant}),
                     asking(Question::kEquivalence, "patched"));
}

TEST(Equivalence, IsProvedByEqualCodeAndShownByEqualOutputs) {
  const auto mutant = with_outputs(run_of("mutant:twice", P, A, A), 'a', 'c');
  const auto patched = [](char outputs, char code) {
    return with_outputs(run_of("patched", A, A, A), outputs, code);
  };
  EXPECT_EQ(refactored(patched('a', 'c'), mutant).text(), "EQUIVALENCE_PROVED");
  const Outcome shown = refactored(patched('a', 'd'), mutant);
  EXPECT_EQ(shown.text(), "EQUIVALENCE_SHOWN");
  EXPECT_NE(shown.why.find("the code of code is not equal"), std::string::npos) << shown.why;
  auto no_code = patched('a', 'c');
  no_code.pop_back();
  EXPECT_EQ(refactored(no_code, mutant).text(), "EQUIVALENCE_SHOWN");
  EXPECT_EQ(refactored(patched('b', 'c'), mutant).text(), "FIX_REJECTED");
  EXPECT_EQ(refactored(with_outputs(run_of("patched", P, A, A), 'a', 'c'), mutant).text(),
            "FIX_REJECTED");
}

TEST(Equivalence, CatchesAMutantByItsOutputsAndEarnsNothingWithout) {
  const auto patched = with_outputs(run_of("patched", A, A, A), 'a', 'c');
  EXPECT_EQ(refactored(patched, with_outputs(run_of("mutant:m", A, A, A), 'b', 'c')).text(),
            "EQUIVALENCE_PROVED");
  const auto why = [&](const std::vector<Observation>& other,
                       const std::vector<Observation>& mutant) {
    const Outcome o = refactored(other, mutant);
    EXPECT_FALSE(o.sentinel) << o.text();
    return o.why;
  };
  // Other code alone is not a fault: the compiler may have done as well.
  EXPECT_NE(why(patched, with_outputs(run_of("mutant:m", A, A, A), 'a', 'd')).find("not caught"),
            std::string::npos);
  EXPECT_NE(why(patched, {}).find("no mutant"), std::string::npos);
  const auto mutant = with_outputs(run_of("mutant:m", P, A, A), 'a', 'c');
  auto silent = patched;
  for (Observation& o : silent) o.outputs_sha256.clear();
  EXPECT_NE(why(silent, mutant).find("not compared"), std::string::npos);
  auto repeated = joined({patched, with_outputs(run_of("patched", A, A, A), 'b', 'c')});
  EXPECT_NE(why(repeated, mutant).find("different outputs"), std::string::npos);
}

TEST(Validate, CodeStaysUpstreamsAndTellsAMutant) {
  const auto upstream = with_outputs(run_of("upstream", P, A, A), 'a', 'c');
  const auto question = [&](char patched_code, char mutant_code) {
    return sentinel_of(
        joined({upstream, with_outputs(run_of("patched", A, A, A), 'b', patched_code),
                with_outputs(run_of("mutant:m", A, A, A), 'b', mutant_code)}),
        asking(Question::kValidate));
  };
  EXPECT_EQ(question('c', 'd').text(), "FIX_VALIDATED");
  EXPECT_NE(question('c', 'c').why.find("not caught"), std::string::npos);
  const Outcome other = question('d', 'e');
  EXPECT_FALSE(other.sentinel);
  EXPECT_NE(other.why.find("nothing shows that its code"), std::string::npos) << other.why;
}

TEST(Equivalence, CodeCasesArePartOfNoOtherQuestion) {
  auto all = run_of("upstream", P, A, A);
  all.push_back(observed("upstream", "code", CaseRole::kCode, X));
  EXPECT_EQ(sentinel_of(all, asking(Question::kReproduce)).text(), "BUG_REPRODUCED(wrong)");
}

TEST(Sentinel, IsOrderIndependentAndNeverGreenByChance) {
  std::mt19937 random(7);
  const std::vector<CaseStatus> all_statuses = {P, A, U, N, X};
  for (int round = 0; round < 2000; ++round) {
    std::vector<Observation> all;
    for (const std::string subject : {"upstream", "patched", "mutant:half"}) {
      for (auto& o : run_of(subject, all_statuses[random() % 5], all_statuses[random() % 5],
                            all_statuses[random() % 5]))
        all.push_back(o);
    }
    const Outcome first = sentinel_of(all, asking(Question::kValidate));
    std::shuffle(all.begin(), all.end(), random);
    EXPECT_EQ(sentinel_of(all, asking(Question::kValidate)).text(), first.text());
    if (first.sentinel != Sentinel::kFixValidated) continue;
    for (const auto& o : all) {
      if (o.subject == "patched") {
        EXPECT_EQ(o.status, A);
      }
      if (o.subject == "upstream" && o.role == CaseRole::kTrigger) {
        EXPECT_EQ(o.status, P);
      }
    }
  }
}

TEST(Question, RoundTripsThroughJson) {
  auto question = asking(Question::kMemory, "op");
  question.bound_bytes = 5;
  question.measured_bytes = 4;
  EXPECT_EQ(QuestionContext::from_json(question.to_json()).to_json(), question.to_json());
  question.bound_growth = 2.2;
  EXPECT_EQ(QuestionContext::from_json(question.to_json()).to_json(), question.to_json());
  auto cost = asking(Question::kRegression, "patched");
  cost.ratios_max = {{"c", {{"products", 1.03}}}};
  EXPECT_EQ(QuestionContext::from_json(cost.to_json()).ratios_max, cost.ratios_max);
  auto claim = asking(Question::kClaim, "mutant:half");
  claim.claim = "it_holds";
  claim.contrast = "patched";
  claim.expects = P;
  claim.failure_class = "ignored";
  const QuestionContext read = QuestionContext::from_json(claim.to_json());
  EXPECT_EQ(read.claim + read.contrast.text() + read.failure_class, "it_holdspatchedignored");
  EXPECT_EQ(read.expects, P);
  EXPECT_THROW(QuestionContext::from_json(Json::object()), Error);
}

TEST(Verdict, IsObservationTimesExpectation) {
  EXPECT_EQ(verdict_of(P, Expectation::kPresent), Verdict::kReproduced);
  EXPECT_EQ(verdict_of(A, Expectation::kPresent), Verdict::kUnexpectedlyAbsent);
  EXPECT_EQ(verdict_of(P, Expectation::kAbsent), Verdict::kNotFixed);
  EXPECT_EQ(verdict_of(A, Expectation::kAbsent), Verdict::kValidated);
  EXPECT_EQ(verdict_of(P, Expectation::kNothing), Verdict::kObservedPresent);
  EXPECT_EQ(verdict_of(U, Expectation::kPresent), Verdict::kUnjudged);
  EXPECT_EQ(verdict_of(N, Expectation::kAbsent), Verdict::kUnsupported);
  EXPECT_EQ(verdict_of(X, Expectation::kAbsent), Verdict::kUnresolved);
}

/// A validation in which all is as it should be, asked with the regions of the inputs.
std::vector<Observation> validation() {
  return joined(
      {run_of("upstream", P, A, A), run_of("patched", A, A, A), run_of("mutant:half", P, A, A)});
}
QuestionContext asking_with_regions() {
  QuestionContext question = asking(Question::kValidate, "patched");
  question.has_regions = true;
  return question;
}

TEST(Regions, AMutantThatACaseOfAnyRoleCaughtIsEnough) {
  auto all = validation();
  all.push_back(observed("mutant:region:ties", "c", CaseRole::kControl, P));
  EXPECT_EQ(sentinel_of(all, asking_with_regions()).text(), "FIX_VALIDATED");
}

TEST(Regions, AMutantThatPassedTakesTheSentinel) {
  auto all = validation();
  all.push_back(observed("mutant:region:tiny_gradient", "t1", CaseRole::kTrigger, A));
  const Outcome o = sentinel_of(all, asking_with_regions());
  EXPECT_EQ(o.text(), "NONE");
  EXPECT_EQ(o.why, "mutant:region:tiny_gradient was not caught: case t1 does not see it");
}

TEST(Regions, ARegionThatNoCaseIsInTakesTheSentinelUnlessCasesWereNamed) {
  auto all = validation();
  all.push_back(observed("mutant:region:ties", "t1", CaseRole::kTrigger, N));
  all.back().reason = "no case is in this region";
  QuestionContext question = asking_with_regions();
  EXPECT_EQ(sentinel_of(all, question).why,
            "mutant:region:ties was not caught: no case is in this region");
  question.is_partial = true;
  EXPECT_EQ(sentinel_of(all, question).text(), "FIX_VALIDATED(named_cases)");
  all.back().status = A;
  EXPECT_EQ(sentinel_of(all, question).text(), "NONE");
}

TEST(Regions, OfARefactorOtherOutputsAreEnough) {
  const auto with_outputs = [](std::vector<Observation> run, char digit) {
    for (Observation& o : run) o.outputs_sha256 = std::string(64, digit);
    return run;
  };
  auto all = joined({with_outputs(run_of("upstream", P, A, A), 'a'),
                     with_outputs(run_of("patched", A, A, A), 'a'),
                     with_outputs(run_of("mutant:half", P, A, A), 'b')});
  all.push_back(observed("mutant:region:ties", "c", CaseRole::kControl, A));
  all.back().outputs_sha256 = std::string(64, 'c');
  QuestionContext question = asking_with_regions();
  question.question = Question::kEquivalence;
  EXPECT_EQ(sentinel_of(all, question).text(), "EQUIVALENCE_SHOWN");
  all.back().outputs_sha256 = std::string(64, 'a');
  EXPECT_EQ(sentinel_of(all, question).text(), "NONE");
}

TEST(Regions, RecordsOfBeforeAreReadAsTheyWere) {
  auto all = validation();
  all.push_back(observed("mutant:region:ties", "t1", CaseRole::kTrigger, A));
  EXPECT_EQ(sentinel_of(all, asking(Question::kValidate, "patched")).text(), "FIX_VALIDATED");
  EXPECT_FALSE(asking(Question::kValidate).to_json().contains("has_regions"));
  const QuestionContext question = QuestionContext::from_json(asking_with_regions().to_json());
  EXPECT_TRUE(question.has_regions && !question.is_partial);
}

TEST(Regions, ARegionMutantAloneIsNoMutantEdit) {
  auto all = joined({run_of("upstream", P, A, A), run_of("patched", A, A, A)});
  all.push_back(observed("mutant:region:ties", "t1", CaseRole::kTrigger, P));
  EXPECT_EQ(sentinel_of(all, asking_with_regions()).text(), "NONE");
}

TEST(Regions, AMitigationIsAskedForThem) {
  auto all = joined({run_of("upstream", P, A, A), run_of("mitigated", A, A, A)});
  all.push_back(observed("mitigated_mutant:region:ties", "t1", CaseRole::kTrigger, A));
  QuestionContext question = asking(Question::kMitigation, "mitigated");
  EXPECT_EQ(sentinel_of(all, question).text(), "MITIGATION_VERIFIED");
  question.has_regions = true;
  EXPECT_EQ(sentinel_of(all, question).text(), "NONE");
}

TEST(Regions, NamedCasesAreSaidInWhatAnOpOrAMitigationEarns) {
  auto op = joined({run_of("op", A, A, A), run_of("op_mutant:half", P, A, A)});
  QuestionContext question = asking(Question::kOp, "op");
  question.is_partial = true;
  EXPECT_EQ(sentinel_of(op, question).text(), "OP_VALIDATED(named_cases)");
  const auto all = joined({run_of("upstream", P, A, A), run_of("mitigated", A, A, A)});
  question = asking(Question::kMitigation, "mitigated");
  EXPECT_EQ(sentinel_of(all, question).text(), "MITIGATION_VERIFIED");
  question.is_partial = true;
  EXPECT_EQ(sentinel_of(all, question).text(), "MITIGATION_VERIFIED(named_cases)");
}

}  // namespace
}  // namespace patchbench
