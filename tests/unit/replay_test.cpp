#include "core/replay.h"

#include <gtest/gtest.h>

#include <limits>

#include "unit/sample_run.h"

namespace patchbench {
namespace {

using How = Replayed::How;

Observation green() {
  return sample::observation("upstream", "masked_fp32", CaseRole::kTrigger, CaseStatus::kAbsent);
}

Replayed within(const Observation& recorded, const Observation& now) {
  return compare_replay(recorded, now, Determinism::kWithinTolerance);
}

TEST(Replay, SameBitsAreBitwise) {
  EXPECT_EQ(within(green(), green()).how, How::kBitwise);
  EXPECT_EQ(compare_replay(green(), green(), Determinism::kBitwise).how, How::kBitwise);
}

TEST(Replay, OtherBitsAreWithinToleranceUnlessTheRecordComparesBits) {
  Observation now = green();
  now.outputs_sha256 = sha256_hex("other bits");
  now.measures[0].got += now.measures[0].limit / 2;
  EXPECT_EQ(within(green(), now).how, How::kWithinTolerance);
  const Replayed strict = compare_replay(green(), now, Determinism::kBitwise);
  EXPECT_EQ(strict.how, How::kDiffers);
  EXPECT_EQ(strict.why, "its outputs differ bit for bit");
}

TEST(Replay, AnErrorBeyondTheLimitDiffersThoughTheBitsAreSaidToBeTheSame) {
  Observation recorded = green();
  recorded.measures[2].got += 2 * recorded.measures[2].limit;
  const Replayed found = within(recorded, green());
  EXPECT_EQ(found.how, How::kDiffers);
  EXPECT_NE(found.why.find("grad_weight row: error"), std::string::npos) << found.why;
}

TEST(Replay, ThePlainErrorCountsToo) {
  Observation recorded = green();
  recorded.measures[0].plain = 1;
  EXPECT_NE(within(recorded, green()).why.find("plain error 1 recorded"), std::string::npos);
}

TEST(Replay, OtherInputsOrAnotherAnswerDiffer) {
  Observation recorded = green();
  recorded.inputs_sha256 = sha256_hex("other inputs");
  EXPECT_EQ(within(recorded, green()).why, "its inputs are others");
  const Observation red =
      sample::observation("upstream", "masked_fp32", CaseRole::kTrigger, CaseStatus::kPresent);
  EXPECT_EQ(within(red, green()).why, "present wrong_gradients recorded, absent now");
  recorded = green();
  recorded.measures[1].pass = false;
  EXPECT_EQ(within(recorded, green()).why, "grad_input: failed recorded, passed now");
}

TEST(Replay, TheDecidingLayerOfAPassMayChangeAndThatOfAFailureMayNot) {
  Observation recorded = green(), now = green();
  recorded.measures[0].layer = "element";
  EXPECT_EQ(within(recorded, now).how, How::kBitwise);
  recorded.measures[0].pass = now.measures[0].pass = false;
  EXPECT_EQ(within(recorded, now).why, "loss: layer element failed as recorded, row now");
  now.measures.pop_back();
  EXPECT_EQ(within(recorded, now).why, "4 measures recorded, 3 now");
}

TEST(Replay, WhatIsNotFiniteIsOnlyLikeItself) {
  Observation recorded = green(), now = green();
  recorded.measures[0].got = now.measures[0].got = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(within(recorded, now).how, How::kBitwise);
  now.measures[0].got = std::numeric_limits<double>::infinity();
  EXPECT_EQ(within(recorded, now).how, How::kDiffers);
}

}  // namespace
}  // namespace patchbench
