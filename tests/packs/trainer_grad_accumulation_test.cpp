// The model of pack trainer_grad_accumulation: its right weights against plain autograd, and each
// wrong weight against the factor that it is off by.
#include "trainer_grad_accumulation/model.h"

#include <gtest/gtest.h>

#include "harness/compare.h"

namespace patchbench::trainer_grad_accumulation {
namespace {

using harness::Tensors;

constexpr int64_t kVocab = 11, kHidden = 5;

/// Rows of these lengths, padded with ignored labels.
Tensors inputs_of(const std::vector<int64_t>& lengths) {
  const int64_t seqlen = *std::max_element(lengths.begin(), lengths.end());
  const auto num_rows = static_cast<int64_t>(lengths.size());
  const harness::Draw draw(22, "rows");
  const at::Tensor ids = draw.integers({num_rows, seqlen}, 0, kVocab);
  at::Tensor labels = ids.clone();
  for (int64_t row = 0; row < num_rows; ++row)
    labels[row].slice(0, lengths[static_cast<std::size_t>(row)]).fill_(-100);
  return {{"table", harness::Draw(22, "table").normal({kVocab, kHidden})},
          {"head", harness::Draw(22, "head").normal({kVocab, kHidden})},
          {"ids", ids},
          {"labels", labels}};
}

/// Mean over all tokens that count, by one pass over all rows.
Tensors token_mean(const Tensors& inputs, bool is_shifted) {
  const at::Tensor table = inputs.at("table").detach().requires_grad_(),
                   head = inputs.at("head").detach().requires_grad_();
  const at::Tensor labels = inputs.at("labels");
  at::Tensor logits = table.index({inputs.at("ids")}).matmul(head.t());
  if (is_shifted) logits = logits.slice(1, 0, logits.size(1) - 1);
  const at::Tensor y = is_shifted ? labels.slice(1, 1) : labels, counts = y.ne(-100);
  const at::Tensor each = -logits.log_softmax(-1).gather(-1, y.clamp_min(0).unsqueeze(-1));
  const at::Tensor loss = (each.squeeze(-1) * counts).sum() / counts.sum();
  const auto grads = torch::autograd::grad({loss}, {table, head});
  return {{"loss", loss.detach()}, {"grad_table", grads[0]}, {"grad_head", grads[1]}};
}

void expect_factor(const Tensors& got, const Tensors& wanted, double factor) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted)
    EXPECT_LT(harness::errors_of(got.at(name), tensor * factor).element, 1e-12) << name;
}

const std::vector<int64_t> kUneven = {9, 2, 4}, kEven = {6, 6, 6}, kWithoutLabel = {9, 1, 4};

TEST(TrainerGradAccumulation, SharesOfTheLabelsGiveTheMeanOverTheTokens) {
  for (const auto& lengths : {kUneven, kEven, kWithoutLabel}) {
    for (const int64_t micro_batch : {1, 2, 3}) {
      for (const bool is_shifted : {true, false}) {
        const Tensors inputs = inputs_of(lengths);
        expect_factor(accumulated(inputs, Weight::kShare, {micro_batch, is_shifted}),
                      token_mean(inputs, is_shifted), 1);
      }
    }
  }
}

TEST(TrainerGradAccumulation, TheMeanOfMeansIsRightForEvenRowsAlone) {
  const Tensors even = inputs_of(kEven), uneven = inputs_of(kUneven);
  expect_factor(accumulated(even, Weight::kMeanOfMeans, {}), token_mean(even, true), 1);
  const Tensors got = accumulated(uneven, Weight::kMeanOfMeans, {});
  const Tensors right = token_mean(uneven, true);
  EXPECT_GT(harness::errors_of(got.at("grad_head"), right.at("grad_head")).element, 0.1);
}

TEST(TrainerGradAccumulation, TheSumOfMeansIsTheirMeanTimesTheirNumber) {
  const Tensors inputs = inputs_of(kUneven);
  expect_factor(accumulated(inputs, Weight::kSum, {}),
                accumulated(inputs, Weight::kMeanOfMeans, {}), 3);
}

TEST(TrainerGradAccumulation, ASecondDivisionChangesTheGradientAlone) {
  const Tensors inputs = inputs_of(kUneven), right = token_mean(inputs, true);
  Tensors got = accumulated(inputs, Weight::kShare, {.is_divided_again = true});
  EXPECT_LT(harness::errors_of(got.at("loss"), right.at("loss")).element, 1e-12);
  got.at("loss") = right.at("loss") / 3;
  expect_factor(got, right, 1.0 / 3);
}

TEST(TrainerGradAccumulation, TheFirstLabelOfEachRowIsOffByTheRatioOfTheCounts) {
  const Tensors inputs = inputs_of(kUneven);  // 15 labels, 12 after the shift
  expect_factor(accumulated(inputs, Weight::kFirstCounted, {}), token_mean(inputs, true),
                12.0 / 15);
  expect_factor(accumulated(inputs, Weight::kFirstLeftOut, {.is_shifted = false}),
                token_mean(inputs, false), 15.0 / 12);
}

}  // namespace
}  // namespace patchbench::trainer_grad_accumulation
