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
  const std::string slug = setup.manifest.slug.str();
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
  EXPECT_EQ(at_red_pin.find("--upstream"), std::string::npos) << at_red_pin;
  setup.pin->version = "0.8.1";
  EXPECT_NE(next_step(setup, {}, hit).find("--upstream 0.8.1\n"), std::string::npos);
  setup.pin.reset();
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
            "next: patchbench patch rebase some_pack --upstream toy --to 1.2\n");
  EXPECT_EQ(next_step_of_window(window_of({"wrong", "unresolved"})),
            "1 of 2 releases of toy has the bug; 1 was not judged.\n"
            "next: patchbench window some_pack --of toy --resume\n");
}

}  // namespace
}  // namespace patchbench
