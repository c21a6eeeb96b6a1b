// patchbench::group_reduce_bwd against fp64 sums, on every device of this machine and on its kernel
// and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "mamba3_mimo_gqa_bwd/op.h"
#include "packs/op_test.h"

namespace patchbench::group_reduce_test {
namespace {

using at::Tensor;
using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::mamba3_mimo_gqa_bwd::group_reduce_bwd;
using ops::mamba3_mimo_gqa_bwd::group_reduce_bwd_path;

struct ReduceCase {
  std::string name;
  int64_t batch = 2, seqlen = 24, num_ranks = 4, num_heads = 8, num_groups = 2, head_dim = 32;
  bool has_kernel = true;
};

std::vector<ReduceCase> reduce_cases() {
  return {{.name = "one_group", .num_groups = 1},
          {.name = "two_groups"},
          {.name = "four_groups", .num_groups = 4},
          {.name = "all_heads", .num_groups = 8},
          {.name = "six_heads", .num_heads = 6, .num_groups = 2, .head_dim = 64},
          {.name = "narrow", .head_dim = 8},
          {.name = "broken_words", .head_dim = 12, .has_kernel = false},
          {.name = "idle_threads", .num_heads = 26, .num_groups = 2, .head_dim = 40},
          {.name = "too_many_heads",
           .seqlen = 2,
           .num_heads = 257,
           .num_groups = 1,
           .head_dim = 8,
           .has_kernel = false},
          {.name = "one_token", .batch = 1, .seqlen = 1},
          {.name = "many_tokens", .batch = 1, .seqlen = 700, .num_ranks = 1, .num_heads = 4},
          {.name = "many_heads", .batch = 1, .seqlen = 70, .num_heads = 128, .num_groups = 1},
          {.name = "wide", .seqlen = 9, .num_heads = 256, .num_groups = 1},
          {.name = "model",
           .batch = 1,
           .seqlen = 96,
           .num_heads = 128,
           .num_groups = 8,
           .head_dim = 128},
          {.name = "no_tokens", .seqlen = 0, .has_kernel = false},
          {.name = "no_ranks", .num_ranks = 0}};
}

Tensor raw_of(const ReduceCase& c, const char* name, at::ScalarType type) {
  return harness::Draw(5, c.name + "/" + name)
      .normal({c.batch, c.seqlen, c.num_ranks, c.num_heads, c.head_dim})
      .to(type);
}

/// The head that a group's sum takes is blocked: h / (H / G).
Tensor group_sums(const Tensor& raw, int64_t num_groups) {
  const auto s = raw.sizes();
  Tensor sums = torch::zeros({s[0], s[1], s[2], num_groups, s[4]}, at::kDouble);
  for (int64_t h = 0; h < s[3]; ++h)
    sums.select(3, h / (s[3] / num_groups)).add_(raw.select(3, h).cpu().to(at::kDouble));
  return sums;
}

Tensor bias_sums(const Tensor& raw) {
  return raw.cpu().to(at::kDouble).sum(at::IntArrayRef{0, 1}).transpose(0, 1);
}

/// Within one rounding to `type` plus the float32 noise of a sum over `terms` unit normals: half
/// an ulp of each partial sum, none of which passes 4 sqrt(terms).
bool is_rounded_once(const Tensor& got, const Tensor& wanted, at::ScalarType type, int64_t terms) {
  const double noise = std::pow(static_cast<double>(terms), 1.5) * 4 * 6e-8;
  const Tensor error = (got.cpu().to(at::kDouble) - wanted).abs();
  return error.le(wanted.abs() * (harness::epsilon_of(type) / 2) + noise).all().item<bool>();
}

using Point = std::tuple<ReduceCase, std::string, at::ScalarType, Form>;
class GroupReduce : public testing::TestWithParam<Point> {};

TEST_P(GroupReduce, SumsHeadsOfAGroupAndBiasesBeforeThat) {
  const auto& [c, device, type, form] = GetParam();
  const Fallback fallback("mamba3_mimo_gqa_bwd", form);
  const Tensor dq = raw_of(c, "dq", type).to(at::Device(device)),
               dk = raw_of(c, "dk", type).to(at::Device(device));
  const bool uses_kernel = dq.is_cuda() && form == Form::kChosen && c.has_kernel;
  EXPECT_EQ(group_reduce_bwd_path(dq, c.num_groups), uses_kernel ? "cuda" : "plain");
  const auto [grad_q, grad_k, bias_q, bias_k] = group_reduce_bwd(dq, dk, c.num_groups);
  const int64_t heads = c.num_heads / c.num_groups, tokens = c.batch * c.seqlen;
  ASSERT_EQ(grad_q.scalar_type(), type);
  ASSERT_EQ(bias_q.scalar_type(), at::kFloat);
  ASSERT_EQ(bias_k.sizes(), (std::vector<int64_t>{c.num_heads, c.num_ranks, c.head_dim}));
  EXPECT_TRUE(is_rounded_once(grad_q, group_sums(dq, c.num_groups), type, heads));
  EXPECT_TRUE(is_rounded_once(grad_k, group_sums(dk, c.num_groups), type, heads));
  EXPECT_TRUE(is_rounded_once(bias_q, bias_sums(dq), at::kFloat, tokens));
  EXPECT_TRUE(is_rounded_once(bias_k, bias_sums(dk), at::kFloat, tokens));
  EXPECT_EQ(c.num_groups == c.num_heads, at::equal(grad_q, dq) && dq.numel() > 0);
  const auto again = group_reduce_bwd(dq, dk, c.num_groups);
  EXPECT_TRUE(at::equal(std::get<1>(again), grad_k) && at::equal(std::get<2>(again), bias_q));
}

INSTANTIATE_TEST_SUITE_P(Cases, GroupReduce,
                         testing::Combine(testing::ValuesIn(reduce_cases()),
                                          testing::ValuesIn(devices()),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(Form::kChosen, Form::kPlain)),
                         op_test::point_name<testing::TestParamInfo<Point>>);

TEST(GroupReduceOp, TakesStridedGradients) {
  const ReduceCase c{.name = "strided"};
  const Tensor dq = raw_of(c, "dq", at::kFloat);
  const Tensor strided = dq.transpose(2, 3).contiguous().transpose(2, 3);
  EXPECT_TRUE(at::equal(std::get<0>(group_reduce_bwd(strided, strided, 2)),
                        std::get<0>(group_reduce_bwd(dq, dq, 2))));
}

TEST(GroupReduceOp, TakesGradientsThatStartOffAWord) {
  for (const std::string& device : devices()) {
    const ReduceCase c{.name = "off_word"};
    const Tensor dq = raw_of(c, "dq", at::kBFloat16).to(at::Device(device));
    const Tensor off = torch::zeros({dq.numel() + 1}, dq.options()).narrow(0, 1, dq.numel());
    const Tensor same = off.copy_(dq.flatten()).view(dq.sizes());
    const auto got = group_reduce_bwd(same, same, 2), wanted = group_reduce_bwd(dq, dq, 2);
    EXPECT_TRUE(at::equal(std::get<0>(got), std::get<0>(wanted))) << device;
    EXPECT_TRUE(at::equal(std::get<3>(got), std::get<3>(wanted))) << device;
  }
}

TEST(GroupReduceOp, RefusesInOneLine) {
  const Tensor raw = torch::zeros({1, 2, 1, 6, 16});
  EXPECT_EQ(refusal([&] { group_reduce_bwd(raw, raw, 4); }),
            "group_reduce_bwd: num_groups must divide num_heads = 6, got 4");
  EXPECT_EQ(
      refusal([&] { group_reduce_bwd(raw[0], raw[0], 2); }),
      "group_reduce_bwd: dq must have 5 axes [batch, seqlen, num_ranks, num_heads, head_dim], "
      "got 4");
  EXPECT_NE(refusal([&] { group_reduce_bwd(raw, raw.to(at::kHalf), 2); }).find("dk must be as dq"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              group_reduce_bwd(raw.to(at::kDouble), raw.to(at::kDouble), 2);
            }).find("got float64"),
            std::string::npos);
}

}  // namespace
}  // namespace patchbench::group_reduce_test
