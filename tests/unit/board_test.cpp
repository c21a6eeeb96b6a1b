#include "core/board.h"

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
          .beside = "",
          .asked = "reproduce",
          .device = device,
          .sentinel = sentinel,
          .started = started,
          .manifest_sha256 = manifest,
          .digest = digest,
          .is_isolated = true,
          .made = {started, 0, digest}};
}

Board board_of(const std::vector<Finding>& findings) {
  Board board;
  for (const Finding& one : findings) board.add(one);
  return board;
}

const Place kPlace{"some_pack", "up", "1.0", "", "reproduce"};

TEST(Board, TheNewestFindingStandsWhateverTheOrder) {
  const Finding old = finding("1.0", "cpu", "NONE", 1),
                late = finding("1.0", "cpu", "BUG_ABSENT", 2);
  for (const auto& order : {std::vector{old, late}, std::vector{late, old}})
    EXPECT_EQ(board_of(order).places().at(kPlace).at("cpu").newest()->sentinel, "BUG_ABSENT");
}

TEST(Board, UnsignedImportsStandApartAndNeverVote) {
  Finding foreign = finding("1.0", "A100", "BUG_ABSENT", 3);
  foreign.is_counted = false;
  const Board board = board_of({finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1), foreign});
  const Cell& cell = board.places().at(kPlace).at("A100");
  EXPECT_EQ(cell.newest(), nullptr);
  EXPECT_EQ(cell.newest_apart()->sentinel, "BUG_ABSENT");
  EXPECT_EQ(quorum_of(board, kPlace).size(), 1u);
  EXPECT_TRUE(disagreements_of(board).empty());
}

TEST(Board, ManifestsThatAskTheSameAreOneManifest) {
  const std::vector<Finding> findings = {finding("1.0", "H200", "BUG_REPRODUCED(wrong)", 1, "m"),
                                         finding("1.0", "H200", "BUG_ABSENT", 2, "prose")};
  EXPECT_TRUE(disagreements_of(board_of(findings)).empty());
  JudgedDigests judged;
  for (const char* manifest : {"m", "prose"}) judged.add(manifest, "same");
  Board board(judged);
  for (const Finding& one : findings) board.add(one);
  EXPECT_EQ(disagreements_of(board).size(), 1u);
}

TEST(Board, AQuorumCountsRunsByDevice) {
  const Board board = board_of({finding("1.0", "H200", "BUG_REPRODUCED(wrong)", 1),
                                finding("1.0", "H200", "BUG_REPRODUCED(wrong)", 2, "newer"),
                                finding("1.0", "A100", "BUG_REPRODUCED(wrong)", 1),
                                finding("1.0", "A100", "NONE", 2)});
  const std::vector<Votes> votes = quorum_of(board, kPlace);
  ASSERT_EQ(votes.size(), 2u);
  EXPECT_EQ(votes[0].device + std::to_string(votes[0].runs), "A1001");
  EXPECT_EQ(votes[1].device + std::to_string(votes[1].runs), "H2002");
}

TEST(Board, AQuorumSaysHowManyRunsHadNoSandbox) {
  Finding open = finding("1.0", "H200", "BUG_ABSENT", 2);
  open.is_isolated = false;
  const std::vector<Votes> votes =
      quorum_of(board_of({finding("1.0", "H200", "BUG_ABSENT", 1), open}), kPlace);
  ASSERT_EQ(votes.size(), 1u);
  EXPECT_EQ(votes[0].runs, 2);
  EXPECT_EQ(votes[0].unisolated, 1);
}

TEST(Board, DevicesThatAnswerDifferentlyDisagree) {
  const Board board = board_of(
      {finding("1.0", "H200", "BUG_ABSENT", 1), finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1)});
  ASSERT_EQ(disagreements_of(board).size(), 1u);
  EXPECT_EQ(disagreements_of(board)[0].votes.size(), 2u);
}

TEST(Board, RunsOfOneManifestThatAnswerDifferentlyDisagreeAndOfTwoDoNot) {
  const Finding red = finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1);
  EXPECT_EQ(disagreements_of(board_of({red, finding("1.0", "cpu", "BUG_ABSENT", 2)})).size(), 1u);
  EXPECT_TRUE(
      disagreements_of(board_of({red, finding("1.0", "cpu", "BUG_ABSENT", 2, "x")})).empty());
}

TEST(Board, NoAnswerContradictsNobody) {
  const Board board =
      board_of({finding("1.0", "H200", "NONE", 1), finding("1.0", "A100", "NOT_RUN:no_gpu", 1),
                finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1)});
  EXPECT_TRUE(disagreements_of(board).empty());
}

TEST(Board, StatesFollowTheReleasesAndKeepTheirGaps) {
  const Board board = board_of(
      {finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1), finding("1.2", "cpu", "BUG_ABSENT", 1),
       finding("1.3", "cpu", "NONE", 1), finding("1.1", "H200", "BUG_ABSENT", 1)});
  std::string states;
  for (const ReleaseState& s :
       states_of(board, "some_pack", "up", "cpu", {"1.0", "1.1", "1.2", "1.3"}))
    states += s.state.text() + " ";
  EXPECT_EQ(states, "wrong not_measured absent unresolved ");
}

TEST(Board, ChangesAreWhatIsNewOrSaysSomethingElse) {
  const Finding before = finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 1);
  const Board old = board_of({before, finding("1.1", "cpu", "NONE", 1)});
  const Board now =
      board_of({before, finding("1.0", "cpu", "BUG_REPRODUCED(wrong)", 3),
                finding("1.1", "cpu", "BUG_ABSENT", 3), finding("1.2", "cpu", "BUG_ABSENT", 3)});
  std::string text;
  for (const Change& c : changes_between(old, now))
    text += c.place.version + " " + c.before + ">" + c.now + ";";
  EXPECT_EQ(text, "1.1 NONE>BUG_ABSENT;1.2 >BUG_ABSENT;");
  EXPECT_TRUE(changes_between(now, now).empty());
}

}  // namespace
}  // namespace patchbench
