// What patchbench::flce holds from forward to backward: the gradients of a reduced loss, which are
// scaled, and on CUDA logits of a loss per token, in the memory of grad_weight.
#include <gtest/gtest.h>

#include "harness/meter.h"
#include "packs/liger_flce_none_bwd_reference.h"

namespace patchbench::flce_test {
namespace {

using ops::liger_flce_none_bwd::flce;

FlceCase reduced_case(const std::string& name, const std::string& reduction = "mean") {
  FlceCase c{.name = name, .reduction = reduction};
  c.has_bias = c.has_class_weight = true;
  c.label_smoothing = 0.1;
  c.lse_square_scale = 0.01;
  c.softcap = 2.5;
  c.chunk_bytes = 67 * 5 * 4;  // 5 rows of float32, 10 of bfloat16
  return c;
}

class FlceHeld : public testing::TestWithParam<std::string> {
 protected:
  Tensors leaves(const FlceCase& c) const {
    return leaves_of(moved(inputs_of(c), GetParam()), c.dtype);
  }
  static at::Tensor loss_of(const FlceCase& c, const Tensors& t) {
    return flce(t.at("hidden"), t.at("weight"), t.at("target"), options_of(c, t));
  }
  static std::vector<at::Tensor> gradients(const at::Tensor& loss, const Tensors& t, double factor,
                                           bool keeps_graph) {
    return torch::autograd::grad({loss}, {t.at("hidden"), t.at("weight"), t.at("bias")},
                                 {torch::full({}, factor, loss.options())}, keeps_graph);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, FlceHeld, testing::ValuesIn(devices()),
                         [](const testing::TestParamInfo<std::string>& param) {
                           return param.param.substr(0, param.param.find(':'));
                         });

TEST_P(FlceHeld, ScalesWhatItHoldsOncePerBackward) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    FlceCase c = reduced_case("scaled");
    c.dtype = dtype;
    const Tensors t = leaves(c);
    const at::Tensor loss = loss_of(c, t);
    const auto one = gradients(loss, t, 1, true), eighth = gradients(loss, t, 0.125, true);
    const auto last = gradients(loss, t, 0.125, false);
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(torch::equal(one[i] * 0.125, eighth[i])) << i;
      EXPECT_TRUE(torch::equal(last[i], eighth[i])) << i << ": the last use of a graph";
    }
  }
}

TEST_P(FlceHeld, AddsTheGradientsOfTwoUsesOfOneLoss) {
  const FlceCase c = reduced_case("twice", "sum");
  const Tensors t = leaves(c);
  const at::Tensor loss = loss_of(c, t);
  const auto once = gradients(loss_of(c, t), t, 1, false);
  const auto both = gradients(loss * 0.5 + loss * 2, t, 1, false);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_LT(harness::errors_of(both[i], once[i] * 2.5).element, 1e-6) << i;
  }
}

TEST_P(FlceHeld, LeavesOutWhatNobodyWants) {
  const FlceCase c = reduced_case("frozen");
  const Tensors all = leaves(c);
  const auto whole = gradients(loss_of(c, all), all, 0.7, false);
  const std::vector<std::string> names = {"hidden", "weight", "bias"};
  for (std::size_t wanted = 0; wanted < names.size(); ++wanted) {
    Tensors t = all;
    for (const std::string& name : names) {
      if (name != names[wanted]) t[name] = t[name].detach();
    }
    const auto alone = torch::autograd::grad({loss_of(c, t)}, {t.at(names[wanted])},
                                             {torch::full({}, 0.7, at::Device(GetParam()))});
    EXPECT_TRUE(torch::equal(alone[0], whole[wanted])) << names[wanted];
  }
}

TEST_P(FlceHeld, TakesNoGradientsWithoutGradMode) {
  const FlceCase c = reduced_case("no_grad");
  const Tensors t = leaves(c);
  const torch::NoGradGuard guard;
  const at::Tensor loss = loss_of(c, t);
  EXPECT_FALSE(loss.requires_grad());
}

TEST_P(FlceHeld, RaisesForASecondDerivativeOfWhatItHolds) {
  const FlceCase c = reduced_case("second_derivative");
  const Tensors t = leaves(c);
  const auto grads = torch::autograd::grad({loss_of(c, t)}, {t.at("hidden")}, {}, true, true);
  try {
    torch::autograd::grad({grads[0].sum()}, {t.at("hidden")});
    FAIL() << "no second derivative, and no word of it";
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("patchbench::flce_backward"), std::string::npos);
  }
}

TEST_P(FlceHeld, StaysWithinTheToleranceHoweverManyTilesThereAre) {
  for (const int64_t tokens : {10, 80, 81, 400}) {  // 1, 8, 9 and 40 tiles in bfloat16
    FlceCase c = reduced_case("tiles_" + std::to_string(tokens));
    c.tokens = tokens;
    c.dtype = at::kBFloat16;
    const Tensors inputs = inputs_of(c);
    const Tensors here = moved(inputs, GetParam());
    EXPECT_EQ(failure(c, op_of(c, here), oracle_of(c, inputs), plain_of(c, here)), "") << tokens;
  }
}

TEST_P(FlceHeld, GivesNoTokensNoGradient) {
  FlceCase c = reduced_case("empty", "sum");
  c.tokens = 0;
  c.ignored = "none";
  const Tensors t = leaves(c);
  const auto grads = gradients(loss_of(c, t), t, 1, false);
  EXPECT_EQ(grads[0].sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(grads[1].abs().max().item<double>(), 0);
  EXPECT_EQ(grads[2].abs().max().item<double>(), 0);
}

/// 1000 classes in tiles of at most 130, tokens next to 64 features.
FlceCase kept_case(int64_t tokens) {
  FlceCase c{.name = "kept_" + std::to_string(tokens), .tokens = tokens, .hidden = 64};
  c.vocab = 1000;
  c.has_bias = true;
  c.label_smoothing = 0.1;
  c.chunk_bytes = std::max<int64_t>(tokens, c.hidden) * 130 * 4;
  return c;
}

/// Sizes at which kept logits lie before, upon and behind the rows of grad_weight that they end in;
/// and at which none, some and all of the others lie in memory of their own.
TEST_P(FlceHeld, GivesTheGradientsOfMadeLogitsFromKeptOnes) {
  for (const int64_t tokens : {1, 24, 63, 64, 65, 96, 130, 400}) {
    for (const int64_t tiles : {0, 1, 2, 8}) {
      FlceCase c = kept_case(tokens);
      c.keep_bytes = tiles * c.chunk_bytes;
      const Tensors t = leaves(c);
      const std::vector<at::Tensor> wanted = {t.at("hidden"), t.at("weight"), t.at("bias")};
      const at::Tensor loss = loss_of(c, t), grad = t.at("grad_output");
      const auto made = torch::autograd::grad({loss}, wanted, {grad}, true);  // the graph stays
      const auto kept = torch::autograd::grad({loss}, wanted, {grad});
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_LT(harness::errors_of(kept[i], made[i]).element, 3e-6)
            << tokens << " tokens, " << tiles << " tiles, " << i;
      }
    }
  }
}

/// On CUDA a loss per token holds keep_bytes or less; elsewhere nothing is kept.
TEST_P(FlceHeld, HoldsNoMoreThanItMayKeep) {
  for (const int64_t tiles : {1, 3}) {
    FlceCase c = kept_case(400);
    const Tensors t = leaves(c);
    const auto held = [&](int64_t keep_bytes) {
      c.keep_bytes = keep_bytes;
      loss_of(c, t);  // what libraries allocate once is not counted
      const harness::MemoryMeter meter(GetParam());
      const at::Tensor loss = loss_of(c, t);
      return meter.peak_bytes();
    };
    if (GetParam() == "cpu") GTEST_SKIP() << "the resident set is too coarse for these sizes";
    const int64_t added = held(tiles * c.chunk_bytes) - held(0);
    EXPECT_LE(added, tiles * c.chunk_bytes + 1024) << tiles;
    EXPECT_GE(added, (tiles - 1) * c.chunk_bytes) << tiles;
  }
}

}  // namespace
}  // namespace patchbench::flce_test
