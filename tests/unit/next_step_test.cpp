#include "run/next_step.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/fake_runs.h"

namespace patchbench {
namespace {

using sample::FakeWorkbench;

Json window_of(const std::vector<std::string>& states) {
  Json releases = Json::array();
  for (std::size_t i = 0; i < states.size(); ++i)
    releases.push_back({{"version", "1." + std::to_string(i)}, {"state", states[i]}});
  return {{"slug", "some_pack"}, {"upstream", "toy"}, {"releases", releases}};
}

TEST(NextStep, EachVerdictHasASentenceOfItsOwnAndACommand) {
  FakeWorkbench bench;
  const patchbench::Setup setup = bench.setup();
  const std::string slug = setup.target.manifest.slug.str();
  const std::vector<Outcome> outcomes = {
      {.sentinel = Sentinel::kBugReproduced, .argument = "wrong_result"},
      {.sentinel = Sentinel::kBugAbsent},
      {.sentinel = Sentinel::kFixValidated},
      {.sentinel = Sentinel::kFixRejected},
      {.sentinel = Sentinel::kEquivalenceShown},
      {.sentinel = Sentinel::kOpValidated},
      {.sentinel = Sentinel::kMitigationVerified},
      {.sentinel = Sentinel::kClaimConfirmed},
      {.sentinel = Sentinel::kClaimRefuted},
      {}};
  std::set<std::string> sentences;
  for (const Outcome& outcome : outcomes) {
    const std::string text = next_step(setup, {}, outcome);
    const auto end = text.find(".\nnext: ");
    ASSERT_NE(end, std::string::npos) << outcome.text() << ":\n" << text;
    EXPECT_TRUE(sentences.insert(text.substr(0, end)).second) << text;
    EXPECT_NE(text.find(slug, end), std::string::npos) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  }
}

TEST(NextStep, WithoutAVerdictTheSentenceIsThatOfTheQuestion) {
  FakeWorkbench bench;
  const patchbench::Setup setup = bench.setup();
  std::set<std::string> sentences;
  for (const Question question : {Question::kReproduce, Question::kValidate, Question::kOp,
                                  Question::kMitigation, Question::kClaim, Question::kDrawn})
    sentences.insert(next_step(setup, {.question = question}, {}));
  EXPECT_EQ(sentences.size(), 6u);
}

TEST(NextStep, AHitReleaseIsNamedInTheCommandWhereItIsNotTheRedPin) {
  FakeWorkbench bench;
  patchbench::Setup setup = bench.setup();
  const Outcome hit{.sentinel = Sentinel::kBugReproduced};
  const std::string at_red_pin = next_step(setup, {}, hit);
  EXPECT_EQ(at_red_pin.find('@'), std::string::npos) << at_red_pin;
  setup.target.pin->version = "0.8.1";
  EXPECT_NE(next_step(setup, {}, hit).find("@0.8.1\n"), std::string::npos);
  setup.target.pin.reset();
  EXPECT_NE(next_step(setup, {}, hit).find("next: patchbench status windows"), std::string::npos);
}

TEST(NextStep, AModeOfAMitigationIsInTheLineThatSwitchesItOn) {
  FakeWorkbench bench;
  const patchbench::Setup setup = bench.setup();
  const Outcome verified{.sentinel = Sentinel::kMitigationVerified, .argument = "dense"};
  EXPECT_NE(next_step(setup, {.subject = "mitigated:dense"}, verified).find(":dense python"),
            std::string::npos);
}

TEST(NextStep, AWindowSaysHowManyReleasesAreHitAndWhetherTheNewestIs) {
  EXPECT_EQ(next_step_of_window(window_of({"absent", "wrong", "absent"})),
            "1 of 3 releases of toy has the bug; the newest does not.\n"
            "next: patchbench status due some_pack\n");
  EXPECT_EQ(next_step_of_window(window_of({"absent", "wrong", "wrong"})),
            "2 of 3 releases of toy have the bug, the newest too.\n"
            "next: patchbench patch rebase some_pack toy@1.2\n");
  EXPECT_EQ(next_step_of_window(window_of({"wrong", "unresolved"})),
            "1 of 2 releases of toy has the bug; 1 was not judged.\n"
            "next: patchbench window some_pack toy --resume\n");
}

/// What `patch check` says of one edit written for 1.1, on 1.0, 1.1 and 1.2.
Json checked(const std::string& at_base, const std::string& newest) {
  return {{"slug", "some_pack"},
          {"upstream", "toy"},
          {"base", "1.1"},
          {"releases",
           {{{"version", "1.0"}, {"state", "applies"}},
            {{"version", "1.1"}, {"state", at_base}},
            {{"version", "1.2"}, {"state", newest}}}}};
}

TEST(NextStep, ACheckOfEditsTellsTheWorstAndNeverCallsTheUnknownCarried) {
  Json edits = {checked("applies", "rebased")};
  const auto is_said = [&](const std::string& sentence, const std::string& command) {
    EXPECT_EQ(next_step_of_check(edits), sentence + "\nnext: patchbench " + command + "\n");
  };
  is_said("Every edit applies to the newest version, or a merge carries it there.",
          "validate some_pack toy@1.2");
  edits.push_back(checked("applies", "landed"));
  is_said("Edits whose change the newest version has already: 1 of 2.", "status due some_pack");
  edits.push_back(checked("not_run", "not_run"));
  is_said("Edits that were not tried, since a version is out of reach: 1 of 3.", "env doctor");
  edits.push_back(checked("applies", "file_gone"));
  edits.push_back(checked("applies", "conflict"));
  is_said("Edits that cannot be carried to the newest version: 2 of 5.",
          "patch rebase some_pack toy@1.2");
  edits.push_back(checked("conflict", "applies"));
  is_said("Edits that do not apply to the release they were written for: 1 of 6.",
          "patch new some_pack toy DIR");
  EXPECT_EQ(next_step_of_check(Json::array()), "");
}

TEST(NextStep, ARebaseTellsOfTheNewestVersion) {
  const auto said = [](const std::vector<std::string>& states) {
    const Json window = window_of(states);
    return next_step_of_rebase(
        {{"slug", "some_pack"}, {"upstream", "toy"}, {"rows", window.at("releases")}});
  };
  EXPECT_EQ(said({"clean"}),
            "The edits are carried to toy 1.0.\n"
            "next: patchbench validate some_pack toy@1.0\n");
  EXPECT_EQ(said({"conflict", "clean", "landed"}),
            "The edits reach 2 of 3 releases. toy 1.2 has the change already.\n"
            "next: patchbench status due some_pack\n");
  EXPECT_EQ(said({"clean", "missing_file"}),
            "The edits reach 1 of 2 releases. The edits cannot be carried to toy 1.1.\n"
            "next: patchbench reproduce some_pack toy@1.1\n");
  EXPECT_EQ(next_step_of_together({{{"clashes", Json::array()}}}),
            "No two packs conflict.\nnext: patchbench patch check --all\n");
  EXPECT_EQ(next_step_of_together({{{"clashes", {{{"one", "a"}, {"other", "b"}}}}}}),
            "Pairs of packs that conflict: 1.\nnext: patchbench patch check --all --sides\n");
}

TEST(NextStep, ASweepCountsWhatHasNoAnswerApart) {
  Json sweep = {{"dir", "there"},
                {"is_cancelled", false},
                {"counts", {{"done", 3}}},
                {"cells",
                 {{{"sentinel", "BUG_REPRODUCED(wrong_result)"}},
                  {{"sentinel", "BUG_ABSENT"}},
                  {{"sentinel", "NONE"}}}}};
  EXPECT_EQ(next_step_of_sweep(sweep),
            "Every cell has a result: the bug in 1, no bug in 1, no answer in 1.\n"
            "next: patchbench status windows\n");
  sweep["counts"]["done"] = 2;
  EXPECT_EQ(next_step_of_sweep(sweep),
            "2 of 3 cells have a result.\nnext: patchbench sweep status --dir there\n");
  sweep["is_cancelled"] = true;
  EXPECT_NE(next_step_of_sweep(sweep).find("a result, and the sweep is cancelled.\n"),
            std::string::npos);
}

}  // namespace
}  // namespace patchbench
