#include "core/verdict_index.h"

#include <gtest/gtest.h>

namespace patchbench {
namespace {

Finding finding(const std::string& version, const std::string& device, const std::string& sentinel,
                int day, const std::string& manifest = "m") {
  const std::string started = "2026-01-0" + std::to_string(day) + "T00:00:00Z",
                    digest = version + device + sentinel + std::to_string(day);
  return {.slug = "some_pack",
          .upstream = "up",
          .version = version,
          .companions = "",
          .question = "reproduce",
          .device = device,
          .sentinel = sentinel,
          .started = started,
          .manifest_sha256 = manifest,
          .digest = digest,
          .is_isolated = true,
          .made = {started, 0, digest}};
}

VerdictIndex verdict_index_of(const std::vector<Finding>& findings) {
  VerdictIndex verdict_index;
  for (const Finding& one : findings) verdict_index.add(one);
  return verdict_index;
}

const VerdictKey kKey{"some_pack", "up", "1.0", "", "reproduce"};

TEST(VerdictIndex, TheNewestFindingStandsWhateverTheOrder) {
  const Finding old = finding("1.0", "cpu", "NONE", 1),
                late = finding("1.0", "cpu", "BUG_ABSENT", 2);
  for (const auto& order : {std::vector{old, late}, std::vector{late, old}})
    EXPECT_EQ(verdict_index_of(order).by_key().at(kKey).at("cpu").newest()->sentinel, "BUG_ABSENT");
}

TEST(VerdictIndex, UnsignedImportsStandApartAndNeverVote) {
  Finding foreign = finding("1.0", "A100", "BUG_ABSENT", 3);
  foreign.is_counted = false;
  const VerdictIndex verdict_index =
      verdict_index_of({finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1), foreign});
  const Cell& cell = verdict_index.by_key().at(kKey).at("A100");
  EXPECT_EQ(cell.newest(), nullptr);
  EXPECT_EQ(cell.newest_unsigned()->sentinel, "BUG_ABSENT");
  EXPECT_EQ(quorum_of(verdict_index, kKey).size(), 1u);
  EXPECT_TRUE(disagreements_of(verdict_index).empty());
}

TEST(VerdictIndex, ManifestsThatAskTheSameAreOneManifest) {
  const std::vector<Finding> findings = {finding("1.0", "H200", "BUG_REPRODUCED(wrong)", 1, "m"),
                                         finding("1.0", "H200", "BUG_ABSENT", 2, "prose")};
  EXPECT_TRUE(disagreements_of(verdict_index_of(findings)).empty());
  JudgedDigests judged;
  for (const char* manifest : {"m", "prose"}) judged.add(manifest, "same");
  VerdictIndex verdict_index(judged);
  for (const Finding& one : findings) verdict_index.add(one);
  EXPECT_EQ(disagreements_of(verdict_index).size(), 1u);
}

TEST(VerdictIndex, AQuorumCountsRunsByDevice) {
  const VerdictIndex verdict_index = verdict_index_of(
      {finding("1.0", "H200", "BUG_REPRODUCED(wrong)", 1),
       finding("1.0", "H200", "BUG_REPRODUCED(wrong)", 2, "newer"),
       finding("1.0", "A100", "BUG_REPRODUCED(wrong)", 1), finding("1.0", "A100", "NONE", 2)});
  const std::vector<Agreement> agreements = quorum_of(verdict_index, kKey);
  ASSERT_EQ(agreements.size(), 2u);
  EXPECT_EQ(agreements[0].device + std::to_string(agreements[0].runs), "A1001");
  EXPECT_EQ(agreements[1].device + std::to_string(agreements[1].runs), "H2002");
}

TEST(VerdictIndex, AQuorumSaysHowManyRunsHadNoSandbox) {
  Finding open = finding("1.0", "H200", "BUG_ABSENT", 2);
  open.is_isolated = false;
  const std::vector<Agreement> agreements =
      quorum_of(verdict_index_of({finding("1.0", "H200", "BUG_ABSENT", 1), open}), kKey);
  ASSERT_EQ(agreements.size(), 1u);
  EXPECT_EQ(agreements[0].runs, 2);
  EXPECT_EQ(agreements[0].unisolated, 1);
}

TEST(VerdictIndex, DevicesThatAnswerDifferentlyDisagree) {
  const VerdictIndex verdict_index = verdict_index_of(
      {finding("1.0", "H200", "BUG_ABSENT", 1), finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1)});
  ASSERT_EQ(disagreements_of(verdict_index).size(), 1u);
  EXPECT_EQ(disagreements_of(verdict_index)[0].agreements.size(), 2u);
}

TEST(VerdictIndex, RunsOfOneManifestThatAnswerDifferentlyDisagreeAndOfTwoDoNot) {
  const Finding red = finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1);
  EXPECT_EQ(
      disagreements_of(verdict_index_of({red, finding("1.0", "cpu", "BUG_ABSENT", 2)})).size(), 1u);
  EXPECT_TRUE(disagreements_of(verdict_index_of({red, finding("1.0", "cpu", "BUG_ABSENT", 2, "x")}))
                  .empty());
}

TEST(VerdictIndex, NoAnswerContradictsNobody) {
  const VerdictIndex verdict_index = verdict_index_of(
      {finding("1.0", "H200", "NONE", 1), finding("1.0", "A100", "NOT_RUN:no_gpu", 1),
       finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1)});
  EXPECT_TRUE(disagreements_of(verdict_index).empty());
}

TEST(VerdictIndex, StatesFollowTheReleasesAndKeepTheirGaps) {
  const VerdictIndex verdict_index = verdict_index_of(
      {finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1), finding("1.2", "cpu", "BUG_ABSENT", 1),
       finding("1.3", "cpu", "NONE", 1), finding("1.1", "H200", "BUG_ABSENT", 1)});
  std::string states;
  for (const ReleaseState& s :
       states_of(verdict_index, "some_pack", "up", "cpu", {"1.0", "1.1", "1.2", "1.3"}))
    states += s.state.text() + " ";
  EXPECT_EQ(states, "wrong not_measured absent unresolved ");
}

TEST(VerdictIndex, ChangesAreWhatIsNewOrSaysSomethingElse) {
  const Finding before = finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1);
  const VerdictIndex old = verdict_index_of({before, finding("1.1", "cpu", "NONE", 1)});
  const VerdictIndex now = verdict_index_of(
      {before, finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 3),
       finding("1.1", "cpu", "BUG_ABSENT", 3), finding("1.2", "cpu", "BUG_ABSENT", 3)});
  std::string text;
  for (const Change& c : changes_between(old, now))
    text += c.key.version + " " + c.before + ">" + c.now + ";";
  EXPECT_EQ(text, "1.1 NONE>BUG_ABSENT;1.2 >BUG_ABSENT;");
  EXPECT_TRUE(changes_between(now, now).empty());
}

}  // namespace
}  // namespace patchbench
