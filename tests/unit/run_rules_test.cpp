// The rules of runs, each on subjects that start no process; longer than 400 lines: one test a
// rule.
#include <gtest/gtest.h>

#include "ledger/evidence.h"
#include "run/self_test.h"
#include "run/sweep_run.h"
#include "run/window_run.h"
#include "status/newest.h"
#include "status/status_page.h"
#include "status/windows.h"
#include "unit/fake_runs.h"

namespace patchbench {
namespace {

using sample::FakeWorkbench;

TEST(Validate, ARightFixWithItsMutantsRedIsValidated) {
  FakeWorkbench bench;
  const Answer answer = bench.validated();
  EXPECT_EQ(answer.outcome.text(), "FIX_VALIDATED") << answer.outcome.why;
  EXPECT_EQ(answer.digest, ledger::Ledger::open(bench.context.ledger)->all().back().digest);
}

/// What a run with one thing otherwise comes to.
struct Otherwise {
  std::string name, sentinel, why;
  std::function<void(const patchbench::Setup&, const Subject&, Observation&)> change;
};

void PrintTo(const Otherwise& tried, std::ostream* out) { *out << tried.name; }

class ValidateRule : public testing::TestWithParam<Otherwise> {};

TEST_P(ValidateRule, NoFixIsValidated) {
  FakeWorkbench bench;
  bench.runner.change = GetParam().change;
  bench.request.choice.repeats = 2;
  const Answer answer = bench.validated();
  EXPECT_EQ(answer.outcome.text(), GetParam().sentinel);
  EXPECT_NE(answer.outcome.why.find(GetParam().why), std::string::npos) << answer.outcome.why;
}

void see(Observation& o, CaseStatus status) {
  o.status = status;
  o.failure_class = status == CaseStatus::kPresent ? "wrong_result" : "";
  o.reason = status == CaseStatus::kUnresolved ? "it crashed" : "";
}

const Otherwise kOtherwise[] = {
    {"a_red_control", "NONE", "must be right everywhere",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject == SubjectKind::kUpstream && o.role == CaseRole::kControl)
         see(o, CaseStatus::kPresent);
     }},
    {"a_green_upstream", "NONE", "upstream is not red here",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject == SubjectKind::kUpstream) see(o, CaseStatus::kAbsent);
     }},
    {"a_red_case_of_the_fix", "FIX_REJECTED", "patched sum is red",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject == SubjectKind::kPatched && o.case_name == "sum") see(o, CaseStatus::kPresent);
     }},
    {"a_crash_of_the_fix", "NONE", "patched fp32: it crashed",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject == SubjectKind::kPatched && o.case_name == "fp32")
         see(o, CaseStatus::kUnresolved);
     }},
    {"a_flaky_repeat", "NONE", "present in 1/2 repeats",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject == SubjectKind::kPatched && o.repeat == 1) see(o, CaseStatus::kPresent);
     }},
    {"a_mutant_that_passes", "NONE", "mutant:half was not caught",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject == Subject("mutant:half")) see(o, CaseStatus::kAbsent);
     }},
    {"a_region_that_no_case_sees", "NONE", "mutant:region:last_odd_row was not caught",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject.is_region_mutant()) see(o, CaseStatus::kAbsent);
     }},
    {"other_inputs", "NONE", "its inputs are not those of upstream",
     [](const patchbench::Setup&, const Subject& subject, Observation& o) {
       if (subject == SubjectKind::kPatched) o.inputs_sha256 = sha256_hex("others");
     }},
};
INSTANTIATE_TEST_SUITE_P(All, ValidateRule, testing::ValuesIn(kOtherwise),
                         [](const auto& tried) { return tried.param.name; });

TEST(Validate, WithoutAMutantNothingIsShown) {
  FakeWorkbench bench;
  const Answer answer = validate(bench.context, bench.setup(), {.edits = {Edit{}}}, {});
  EXPECT_EQ(answer.outcome.text(), "NONE");
  EXPECT_NE(answer.outcome.why.find("no mutant was run"), std::string::npos) << answer.outcome.why;
}

TEST(Validate, SubjectsOfTwoEnvironmentsAreNotCompared) {
  FakeWorkbench bench;
  bench.runner.change_context = [](const patchbench::Setup&, const Subject& subject,
                                   RunContext& run) {
    if (subject == SubjectKind::kPatched) run.environment = "torch-2.15-cp311-0123456789ab";
  };
  try {
    bench.validated();
    FAIL() << "two environments";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("patched ran in another environment"), std::string::npos)
        << e.what();
  }
  EXPECT_EQ(bench.num_records(), 0U);
}

TEST(Validate, AStoppedRunLeavesNoRecord) {
  FakeWorkbench bench;
  bench.runner.change = [](const patchbench::Setup&, const Subject& subject, Observation&) {
    if (subject == Subject("mutant:half")) throw Error(ErrorCode::kInternal, "stopped");
  };
  EXPECT_THROW(bench.validated(), Error);
  EXPECT_EQ(bench.num_records(), 0U);
}

TEST(Validate, AJudgeThatPassesASpoiledOutputIssuesNoSentinel) {
  FakeWorkbench bench;
  bench.runner.change = [](const patchbench::Setup&, const Subject& subject, Observation& o) {
    if (subject == Subject("op_mutant:spoiled_3")) see(o, CaseStatus::kAbsent);
  };
  try {
    bench.validated();
    FAIL() << "the judge is broken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIntegrity) << e.what();
  }
  EXPECT_EQ(bench.num_records(), 0U);
}

TEST(Validate, CasesThatWereNamedStandInTheSentinel) {
  FakeWorkbench bench;
  bench.request.choice.cases = {"fp32", "bf16"};
  EXPECT_EQ(bench.validated().outcome.text(), "FIX_VALIDATED(named_cases)");
}

TEST(Reproduce, ARedTriggerWithoutAControlShowsNothing) {
  FakeWorkbench bench;
  EXPECT_EQ(bench.reproduced().outcome.text(), "BUG_REPRODUCED(wrong_result)");
  bench.request.choice.cases = {"fp32"};
  EXPECT_EQ(bench.reproduced().outcome.text(), "NONE");
}

TEST(Reproduce, AMitigationIsVerifiedBesideTheReleaseAlone) {
  FakeWorkbench bench;
  bench.request.subject = SubjectKind::kMitigated;
  EXPECT_EQ(bench.reproduced().outcome.text(), "MITIGATION_VERIFIED");
  EXPECT_NE(std::find(bench.runner.ran.begin(), bench.runner.ran.end(), "0.8.0 upstream"),
            bench.runner.ran.end());
  EXPECT_EQ(bench.runner.ran.back(), "0.8.0 program");
  bench.runner.program = {{"missing", "mitigations/programs/some_pack.py"}};
  EXPECT_EQ(bench.reproduced().outcome.why, "program missing: mitigations/programs/some_pack.py");
}

TEST(Reproduce, AProgramIsNotStartedForARedMitigationOrSomeCases) {
  FakeWorkbench bench;
  bench.request.subject = SubjectKind::kMitigated;
  bench.request.choice.cases = {"fp32", "bf16"};
  bench.reproduced();
  bench.request.choice.cases.clear();
  bench.runner.change = [](const patchbench::Setup&, const Subject& subject, Observation& o) {
    if (subject == SubjectKind::kMitigated) see(o, CaseStatus::kPresent);
  };
  EXPECT_EQ(bench.reproduced().outcome.text(), "NONE");
  EXPECT_EQ(std::count(bench.runner.ran.begin(), bench.runner.ran.end(), "0.8.0 program"), 0);
}

TEST(Reproduce, AModeOfAMitigationIsASubjectOfItsOwn) {
  FakeWorkbench bench;
  bench.request.subject = "mitigated:exact";
  EXPECT_EQ(bench.reproduced().outcome.text(), "MITIGATION_VERIFIED(exact)");
  EXPECT_EQ(bench.runner.ran.back(), "0.8.0 mitigated:exact");
  bench.request.choice.cases = {"fp32", "bf16"};
  EXPECT_EQ(bench.reproduced().outcome.text(), "MITIGATION_VERIFIED(exact, named_cases)");
}

TEST(Reproduce, AModeThatTheMitigationLacksIsRefusedBeforeAnythingStarts) {
  for (const std::string mode : {"exakt", "auto", ""}) {
    FakeWorkbench bench;
    bench.request.subject = "mitigated:" + mode;
    try {
      bench.reproduced();
      FAIL() << "mode '" << mode << "'";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      EXPECT_EQ(std::string(e.what()),
                "some_pack: --subject mitigated:" + mode + ": the mitigation has no mode '" + mode +
                    (mode == "exakt" ? "'; did you mean exact?" : "'; one of: exact"));
    }
    EXPECT_TRUE(bench.runner.ran.empty());
  }
}

/// Green in the mode that the mitigation takes by itself, red in the one that is named, or the
/// other way round; the red run is the newer one.
void run_in_two_modes(FakeWorkbench& bench, const Subject& green, const Subject& red) {
  bench.request.subject = green;
  bench.reproduced();
  bench.clock.time = "2026-11-02T10:00:00Z";
  bench.runner.change = [](const patchbench::Setup&, const Subject& subject, Observation& o) {
    if (subject == SubjectKind::kMitigated) see(o, CaseStatus::kPresent);
  };
  bench.request.subject = red;
  EXPECT_EQ(bench.reproduced().outcome.text(), "NONE");
}

TEST(Reproduce, AVerdictOfAModeIsNoneOfTheModeWithoutAName) {
  for (const bool is_named_green : {false, true}) {
    FakeWorkbench bench;
    const Subject named = "mitigated:exact", unnamed = SubjectKind::kMitigated;
    run_in_two_modes(bench, is_named_green ? named : unnamed, is_named_green ? unnamed : named);
    const std::string green = is_named_green ? "mitigation exact" : "mitigation",
                      red = is_named_green ? "mitigation" : "mitigation exact",
                      sentinel =
                          is_named_green ? "MITIGATION_VERIFIED(exact)" : "MITIGATION_VERIFIED";
    const PackRecords verdicts = read_pack_records(bench.context, {});
    std::map<std::string, std::string> said;  // in status, windows and pages
    for (const auto& [key, devices] : verdicts.verdict_index.by_key())
      said[key.question.text()] = devices.at("cpu").newest()->sentinel;
    EXPECT_EQ(said, (std::map<std::string, std::string>{{green, sentinel}, {red, "NONE"}}));
    EXPECT_TRUE(windows_of(verdicts, bench.context.manifest("some_pack")).empty());
    const ledger::RecordSet record_set(
        ledger::known(bench.context.ledger, bench.context.root, bench.context.slugs()));
    said.clear();  // in bundles and exports
    for (const NewestVerdict& one : newest_verdicts(record_set, [](const auto&) { return true; }))
      said[one.question_text()] = one.outcome.text();
    EXPECT_EQ(said, (std::map<std::string, std::string>{{green, sentinel}, {red, "NONE"}}));
  }
}

TEST(Claim, ItsContrastMustComeOutTheOtherWay) {
  FakeWorkbench bench;
  const ClaimTest test = *bench.context.manifest("some_pack").scope.front().test;
  const auto answer = [&] {
    return test_claim(bench.context, bench.setup(), test, bench.request.choice).outcome.text();
  };
  bench.request.choice.cases = {"fp32"};
  EXPECT_EQ(answer(), "CLAIM_CONFIRMED");
  bench.runner.change = [](const patchbench::Setup&, const Subject& subject, Observation& o) {
    if (subject == SubjectKind::kPatched) see(o, CaseStatus::kPresent);
  };
  EXPECT_EQ(answer(), "NONE");
  bench.runner.change = [](const patchbench::Setup&, const Subject& subject, Observation& o) {
    see(o, subject == SubjectKind::kPatched ? CaseStatus::kPresent : CaseStatus::kAbsent);
    if (subject == SubjectKind::kLiar) see(o, CaseStatus::kUnresolved);
    if (subject.is_mutant()) see(o, CaseStatus::kPresent);
  };
  EXPECT_EQ(answer(), "CLAIM_REFUTED");
}

TEST(Claim, AChangeAsItWasProposedIsASubjectOfItsOwn) {
  FakeWorkbench bench;
  bench.request.choice.cases = {"fp32"};
  const auto about = [&](const Subject& subject) {
    ClaimTest test;
    test.name = "the_change_is_enough";
    test.subject = subject;
    test.contrast = SubjectKind::kUpstream;
    test.expects = "absent";
    test.failure_class = "wrong_result";
    return test_claim(bench.context, bench.setup(), test, bench.request.choice);
  };
  bench.runner.change = [](const patchbench::Setup&, const Subject& subject, Observation& o) {
    if (subject == SubjectKind::kClaimed) see(o, CaseStatus::kAbsent);
  };
  EXPECT_EQ(about("claimed:once").outcome.text(), "CLAIM_CONFIRMED");
  EXPECT_THROW(about("claimed:twice"), Error);
}

TEST(Validate, AClaimedChangeIsNeitherAMutantNorPartOfTheFix) {
  FakeWorkbench bench;
  const Answer answer = bench.validated();
  for (const Trial& trial : answer.trials) {
    for (const Observation& o : trial.observations)
      EXPECT_NE(o.subject.kind(), SubjectKind::kClaimed);
  }
  EXPECT_EQ(answer.outcome.text(), "FIX_VALIDATED");
}

/// Red from 0.5.0 up to 0.7.0; the clock's day is the version's.
void red_in_the_middle(const patchbench::Setup& setup, const Subject& subject, Observation& o) {
  const std::string& version = setup.target.pin->version;
  const bool is_red = version >= "0.5.0" && version <= "0.7.0";
  if (subject == SubjectKind::kUpstream && o.role == CaseRole::kTrigger && !is_red)
    see(o, CaseStatus::kAbsent);
}

TEST(Window, ConsecutiveRedReleasesAreOneInterval) {
  FakeWorkbench bench;
  bench.runner.change = red_in_the_middle;
  const WindowAnswer window = measure_window(bench.context, bench.request, {});
  EXPECT_EQ(window.status, 0);
  ASSERT_EQ(window.document["intervals"].size(), 1U) << window.document["intervals"];
  const Json& interval = window.document["intervals"][0];
  EXPECT_EQ(interval["first_bad"], "0.5.0");
  EXPECT_EQ(interval["last_bad"], "0.7.0");
  EXPECT_EQ(interval["first_good_after"], "0.8.0");
}

TEST(Window, AReleaseThatCannotRunIsNamedAndLeavesAGap) {
  FakeWorkbench bench;
  bench.runner.change = red_in_the_middle;
  bench.runner.cannot_run = {"0.6.0"};
  const WindowAnswer window = measure_window(bench.context, bench.request, {});
  EXPECT_EQ(window.status, 3);
  ASSERT_EQ(window.not_run.size(), 1U);
  EXPECT_EQ(window.not_run[0].reason, NotRunReason::kNotRunnableHere);
  EXPECT_EQ(window.document["intervals"][0]["has_gap"], true);
}

TEST(Window, ResumingRunsOnlyWhatTheseCasesOnThisDeviceDoNotAnswer) {
  FakeWorkbench bench;
  bench.runner.change = red_in_the_middle;
  measure_window(bench.context, bench.request, {});
  const auto runs_again = [&] {
    bench.runner.ran.clear();
    measure_window(bench.context, bench.request, {.bisect_commits = false, .resume = true});
    return bench.runner.ran.size();
  };
  EXPECT_EQ(runs_again(), 0U);
  bench.runner.device = "NVIDIA H200 (sm_90)";
  EXPECT_GT(runs_again(), 5U) << "another device";
  bench.runner.device = "cpu";
  bench.repository.replace(sample::PackRepository::kManifest, R"("name": "sum", "role": "silent")",
                           R"("name": "sum_of_rows", "role": "silent")");
  EXPECT_GT(runs_again(), 5U) << "other cases";
}

TEST(Window, AnEdgeIsBisectedOverItsCommits) {
  FakeWorkbench bench;
  for (int i = 0; i < 8; ++i)
    bench.checkouts.commits.push_back(bench.context.pins().resolve(
        "liger-kernel", "git:" + std::string(39, '0') + std::to_string(i)));
  bench.runner.change = [&](const patchbench::Setup& setup, const Subject& subject,
                            Observation& o) {
    const std::string& version = setup.target.pin->version;
    const bool is_red = version.starts_with("git:") ? version.back() < '5' : version <= "0.7.0";
    if (subject == SubjectKind::kUpstream && o.role == CaseRole::kTrigger && !is_red)
      see(o, CaseStatus::kAbsent);
  };
  const WindowAnswer window =
      measure_window(bench.context, bench.request, {.bisect_commits = true, .resume = false});
  ASSERT_EQ(window.document["commits"].size(), 1U) << window.document["commits"];
  EXPECT_EQ(window.document["commits"][0]["result"], std::string(39, '0') + "5");
}

SweepPlan plan_of_one() {
  return {.options = {}, .cells = {{"some_pack", "liger-kernel", "0.8.0", "cpu"}}};
}

TEST(Sweep, ACellsFirstResultStands) {
  FakeWorkbench bench;
  const SweepFolder sweep = SweepFolder::create(bench.repository.path("sweep"), plan_of_one());
  run_cell(bench.context, sweep, 0);
  EXPECT_EQ((*sweep.result(0))["sentinel"], "BUG_REPRODUCED(wrong_result)");
  bench.runner.change = red_in_the_middle;
  bench.runner.ran.clear();
  run_cell(bench.context, sweep, 0);
  EXPECT_EQ((*sweep.result(0))["sentinel"], "BUG_REPRODUCED(wrong_result)");
  EXPECT_TRUE(bench.runner.ran.empty());
}

TEST(Sweep, ACellThatCannotRunSaysSoAndABrokenOneSaysNothing) {
  FakeWorkbench bench;
  bench.runner.cannot_run = {"0.8.0"};
  const SweepFolder sweep = SweepFolder::create(bench.repository.path("sweep"), plan_of_one());
  run_cell(bench.context, sweep, 0);
  EXPECT_EQ((*sweep.result(0))["sentinel"], "NOT_RUN:not_runnable_here");
  bench.runner.cannot_run = {};
  bench.runner.change = [](const patchbench::Setup&, const Subject&, Observation&) {
    throw Error(ErrorCode::kInternal, "broken");
  };
  const SweepFolder other = SweepFolder::create(bench.repository.path("other"), plan_of_one());
  EXPECT_THROW(run_cell(bench.context, other, 0), Error);
  EXPECT_FALSE(other.result(0));
}

TEST(Sweep, ASandboxThatBreaksOnceIsNoAnswerAboutTheMachine) {
  FakeWorkbench bench;
  int num_runs = 0;
  bench.runner.change = [&](const patchbench::Setup&, const Subject&, Observation&) {
    if (++num_runs == 1) throw Error(ErrorCode::kNotRunnable, "the engine was killed");
  };
  const SweepFolder sweep = SweepFolder::create(bench.repository.path("sweep"), plan_of_one());
  run_cell(bench.context, sweep, 0);
  EXPECT_EQ((*sweep.result(0))["sentinel"], "BUG_REPRODUCED(wrong_result)");
}

TEST(Sweep, WhatTheLedgerAnswersIsNotRun) {
  FakeWorkbench bench;
  bench.reproduced();
  const SweepFolder sweep = SweepFolder::create(bench.repository.path("sweep"), plan_of_one());
  EXPECT_EQ(run_sweep(bench.context, sweep, false), 0U);
  EXPECT_EQ((*sweep.result(0))["why"], "in the ledger");
}

/// The table without the legend below it, which names each verdict.
std::string status(FakeWorkbench& bench) {
  const std::string text = tested_release_table(read_pack_records(bench.context, {}));
  return text.substr(0, text.find("\nWords:"));
}

TEST(Status, TheNewestRunOnADeviceStands) {
  FakeWorkbench bench;
  bench.validated();
  EXPECT_NE(status(bench).find("FIX_VALIDATED"), std::string::npos) << status(bench);
  bench.clock.time = "2026-11-02T10:00:00Z";
  bench.runner.change = kOtherwise[2].change;
  bench.validated();
  EXPECT_EQ(status(bench).find("FIX_VALIDATED"), std::string::npos) << status(bench);
  EXPECT_NE(status(bench).find("FIX_REJECTED"), std::string::npos) << status(bench);
}

TEST(Status, TheScenariosOfAPackAreToldByDevice) {
  FakeWorkbench bench;
  bench.repository.replace(
      sample::PackRepository::kManifest, R"("mitigation": {)",
      R"("scenarios": {"waived": {"threads": {"cpu": "one thread"}, "frozen": "nothing is trained"}},
         "mitigation": {)");
  std::vector<Manifest> packs = read_pack_records(bench.context, {}).packs;
  packs.resize(1);
  const std::string table = looked_at_table(packs);
  EXPECT_NE(table.find("| both | both | both | both |  | both | both | both | both | both | both |"
                       " GPU | CPU | both | both | both | both | both | GPU | GPU |"),
            std::string::npos)
      << table;
}

TEST(Status, ThePackTableHasOneLineForAPackWithAVerdict) {
  FakeWorkbench bench;
  const auto table = [&bench] { return pack_table(read_pack_records(bench.context, {})); };
  EXPECT_EQ(std::ranges::count(table(), '\n'), 2) << table();
  bench.reproduced();
  bench.validated();
  EXPECT_EQ(std::ranges::count(table(), '\n'), 3) << table();
  EXPECT_NE(table().find("| no release |"), std::string::npos) << table();
}

/// A release with two failure classes, of which the sentinel names the harmless one.
struct TwoClasses : FakeWorkbench {
  TwoClasses() {
    repository.replace(sample::PackRepository::kManifest, R"("name": "sum", "role": "silent")",
                       R"("name": "sum", "role": "trigger")");
    repository.replace(
        sample::PackRepository::kManifest, R"("mitigation": {)",
        R"("impact": {"wrong_result": "speed", "another_class": "crash"}, "mitigation": {)");
    runner.change = [](const patchbench::Setup&, const Subject&, Observation& o) {
      if (o.case_name == "sum" && o.status == CaseStatus::kPresent)
        o.failure_class = "another_class";
    };
  }
  std::string table() { return pack_table(read_pack_records(context, {})); }
};

TEST(Status, ThePackTableSaysWhatTheWorstClassDoes) {
  TwoClasses bench;
  EXPECT_EQ(bench.reproduced().outcome.text(), "BUG_REPRODUCED(wrong_result)");
  EXPECT_NE(bench.table().find("| a second way to fail (`crash`) |"), std::string::npos)
      << bench.table();
  EXPECT_NE(status(bench).find("BUG_REPRODUCED(another_class, wrong_result)"), std::string::npos)
      << status(bench);
}

TEST(Status, APackWithoutAMitigationForItsWorstClassSaysSo) {
  TwoClasses bench;
  bench.reproduced();
  bench.repository.replace(
      sample::PackRepository::kManifest,
      R"("modes": ["exact"], "needs": ["liger-kernel>=0.8.0"], "exactness": "exact for every input")",
      R"("not_needed": {"why": "stay at 0.7", "records": [")" + std::string(64, 'a') + "\"]}");
  EXPECT_NE(bench.table().find("| none: stay at 0.7 |"), std::string::npos) << bench.table();
}

TEST(Status, AMitigationThatWasVerifiedWithoutASandboxIsMarkedInThePackTable) {
  TwoClasses bench;
  bench.reproduced();
  bench.request.subject = SubjectKind::kMitigated;
  bench.reproduced();
  EXPECT_NE(bench.table().find("| verified on cpu |"), std::string::npos) << bench.table();
  bench.clock.time = "2026-11-02T10:00:00Z";
  bench.runner.change_context = [](const patchbench::Setup&, const Subject&, RunContext& context) {
    context.sandbox = {context.sandbox.kind(), false};
  };
  bench.reproduced();
  EXPECT_NE(bench.table().find("| verified on cpu (unisolated) |"), std::string::npos)
      << bench.table();
}

TEST(Status, AnotherDevicesRunIsARowOfItsOwn) {
  FakeWorkbench bench;
  bench.validated();
  bench.runner.device = "NVIDIA H200 (sm_90)";
  bench.runner.change = kOtherwise[2].change;
  bench.validated();
  EXPECT_NE(status(bench).find("| cpu |  | FIX_VALIDATED"), std::string::npos) << status(bench);
  EXPECT_NE(status(bench).find("| NVIDIA H200 (sm_90) |  | FIX_REJECTED"), std::string::npos)
      << status(bench);
}

TEST(SelfTest, OfAJudgeWithoutCudaRunsTheJudgesOwnSubjectsOnTheCpu) {
  FakeWorkbench bench;
  std::set<std::string> own, others;
  bench.runner.change = [&](const patchbench::Setup& setup, const Subject& subject,
                            Observation& o) {
    (subject.is_in_process() ? own : others).insert(setup.target.device.text());
    o.outputs_sha256 = std::string(64, '0');
  };
  patchbench::Setup setup = bench.setup();
  setup.target.device = {DeviceKind::kCuda, 0};
  setup.target.has_ops = false;
  ensure_self_test(bench.context, setup);
  EXPECT_EQ(own, std::set<std::string>{"cpu"});
  EXPECT_EQ(others, std::set<std::string>{"cuda:0"});
}

}  // namespace
}  // namespace patchbench
