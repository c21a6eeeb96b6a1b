// patchbench::sparse_mla against fp64 autograd through the gathered form, on every device of this
// machine.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "harness/compare.h"
#include "packs/op_test.h"
#include "packs/sparse_mla_dims_reference.h"
#include "sparse_mla_dims/op.h"

namespace patchbench::sparse_mla_dims_test {
namespace {

using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using ops::sparse_mla_dims::sparse_mla_backward;
using ops::sparse_mla_dims::sparse_mla_forward;
using ops::sparse_mla_dims::sparse_mla_path;

std::vector<MlaCase> mla_cases() {
  return {{.name = "v32", .head_dim_qk = 576, .head_dim_v = 512},
          {.name = "no_rope", .head_dim_qk = 512, .head_dim_v = 512},
          {.name = "qk320_v256", .head_dim_qk = 320, .head_dim_v = 256},
          {.name = "qk192_v128", .head_dim_qk = 192, .head_dim_v = 128},
          {.name = "qk128_v64", .head_dim_qk = 128, .head_dim_v = 64},
          {.name = "qk80_v64", .head_dim_qk = 80, .head_dim_v = 64},
          {.name = "qk48_v32", .head_dim_qk = 48, .head_dim_v = 32},
          {.name = "narrow_value", .head_dim_qk = 576, .head_dim_v = 16},
          {.name = "smallest", .head_dim_qk = 16, .head_dim_v = 16, .num_heads = 1, .topk = 2},
          {.name = "odd_sizes", .num_heads = 7, .seqlen_k = 33, .topk = 129},
          {.name = "two_head_steps", .batch = 1, .num_heads = 32, .topk = 65},
          {.name = "four_head_steps", .batch = 1, .num_heads = 33, .topk = 65},
          {.name = "many_heads", .batch = 1, .num_heads = 129, .topk = 65},
          {.name = "few_keys", .seqlen_k = 3, .topk = 12},
          {.name = "no_keys", .seqlen_k = 0},
          {.name = "no_slots", .topk = 0},
          {.name = "no_heads", .num_heads = 0},
          {.name = "no_queries", .seqlen_q = 0}};
}

Result result_of(const Problem& p, at::ScalarType type, const at::Device& device,
                 const std::string& delta = "exact", const std::string& staging = "bf16") {
  const auto given = [&](const Tensor& t) { return t.to(type).to(device); };
  const Tensor q = given(p.q), kv = given(p.kv), indices = p.indices.to(device);
  const auto [out, lse, remainder] =
      sparse_mla_forward(q, kv, indices, p.softmax_scale, p.head_dim_v);
  const auto [grad_q, grad_kv] = sparse_mla_backward(given(p.grad_out), out, remainder, lse, q, kv,
                                                     indices, p.softmax_scale, delta, staging);
  return {out, lse, grad_q, grad_kv};
}

using Point = std::tuple<MlaCase, std::string, at::ScalarType, Form>;
class SparseMla : public testing::TestWithParam<Point> {};

TEST_P(SparseMla, IsTheAttentionOverTheNamedKeysWithItsGradients) {
  const auto& [c, device, type, form] = GetParam();
  const Fallback fallback("sparse_mla_dims", form);
  const Problem p = problem_of(c, type);
  const bool may_take_kernel = device != "cpu" && form == Form::kChosen && type == at::kBFloat16;
  const std::string path = sparse_mla_path(p.q.to(type).to(device), c.head_dim_v);
  EXPECT_TRUE(path == "plain" || (may_take_kernel && path == "cuda")) << path;
  const auto wanted = oracle(p).named(), got = result_of(p, type, device).named();
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    ASSERT_EQ(tensor.sizes(), wanted[i].second.sizes()) << name;
    const bool is_lse = name == "lse";
    ASSERT_EQ(tensor.scalar_type(), is_lse && at::elementSize(type) == 2 ? at::kFloat : type)
        << name;
    const double bound = bound_of(is_lse && at::elementSize(type) == 2 ? at::kFloat : type);
    // A nan fails too.
    EXPECT_TRUE(relative(tensor, wanted[i].second) <= bound)
        << name << ": " << relative(tensor, wanted[i].second);
    if (tensor.numel() == 0) continue;
    const harness::Errors errors = harness::errors_of(tensor.cpu(), wanted[i].second);
    const double row_bound = row_bound_of(is_lse && at::elementSize(type) == 2 ? at::kFloat : type);
    EXPECT_TRUE(errors.row <= row_bound) << name << errors.worst_row << ": " << errors.row;
  }
}

TEST_P(SparseMla, RepeatsItsForwardAndGradQBitForBit) {
  const auto& [c, device, type, form] = GetParam();
  const Fallback fallback("sparse_mla_dims", form);
  const Problem p = problem_of(c, type);
  const Result once = result_of(p, type, device), twice = result_of(p, type, device);
  EXPECT_TRUE(at::equal(once.out, twice.out) && at::equal(once.lse, twice.lse));
  EXPECT_TRUE(at::equal(once.grad_q, twice.grad_q));
}

TEST_P(SparseMla, KeepsTheIdentityOfItsGradients) {
  // sum <kv, grad_kv> = sum <q, grad_q> + sum <out, grad_out>: a lost or doubled addition breaks
  // it.
  const auto& [c, device, type, form] = GetParam();
  const Fallback fallback("sparse_mla_dims", form);
  const Problem p = problem_of(c, type);
  const Result r = result_of(p, type, device);
  const auto dot = [](const Tensor& a, const Tensor& b) {
    return (a * b.cpu().to(at::kDouble)).sum().item<double>();
  };
  const double left = dot(p.kv, r.grad_kv), right = dot(p.q, r.grad_q) + dot(p.grad_out, r.out);
  const double size = (p.kv.norm() * r.grad_kv.cpu().to(at::kDouble).norm()).item<double>();
  EXPECT_LE(std::abs(left - right), bound_of(type) * size);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SparseMla,
    testing::Combine(testing::ValuesIn(mla_cases()), testing::ValuesIn(devices()),
                     testing::Values(at::kBFloat16, at::kHalf, at::kFloat, at::kDouble),
                     testing::Values(Form::kChosen, Form::kPlain)),
    op_test::point_name<testing::TestParamInfo<Point>>);

TEST(SparseMlaOp, AgreesWithCentralDifferencesOfItsForward) {
  const Problem p = problem_of({.name = "differences", .num_heads = 2, .topk = 9}, at::kDouble);
  const Result r = result_of(p, at::kDouble, at::kCPU);
  const auto loss = [&] {
    const Tensor out =
        std::get<0>(sparse_mla_forward(p.q, p.kv, p.indices, p.softmax_scale, p.head_dim_v));
    return (out * p.grad_out).sum().item<double>();
  };
  const double step = 1e-5;
  int64_t draw = 0;
  for (const auto& [input, gradient] : {std::pair{p.q, r.grad_q}, std::pair{p.kv, r.grad_kv}}) {
    const harness::Draw places(3, "places" + std::to_string(draw++));
    const Tensor at = places.integers({16}, 0, input.numel());
    for (int64_t i = 0; i < 16; ++i) {
      double* value = input.data_ptr<double>() + at[i].item<int64_t>();
      const double before = *value;
      *value = before + step;
      const double above = loss();
      *value = before - step;
      const double below = loss();
      *value = before;
      EXPECT_NEAR((above - below) / (2 * step),
                  gradient.flatten()[at[i].item<int64_t>()].item<double>(), 1e-8);
    }
  }
}

TEST(SparseMlaOp, WeighsByProbabilitiesWhoseGradientsSumToZero) {
  Problem p = problem_of({.name = "sums"}, at::kDouble);
  p.kv.narrow(3, 0, p.head_dim_v).fill_(1);
  Result r = result_of(p, at::kDouble, at::kCPU);
  // sum_j P_j = 1 where there is a key: the first query of all has none.
  EXPECT_TRUE(at::allclose(r.out.flatten(0, 1).narrow(0, 1, 5), torch::ones({}, at::kDouble)));
  EXPECT_EQ(r.out[0][0].abs().max().item<double>(), 0);
  // sum_j dS_j = 0: the query's gradient vanishes where all keys are one key.
  p.kv = harness::Draw(2, "one_key").normal({1, 1, 1, 96}).expand({2, 80, 1, 96});
  r = result_of(p, at::kDouble, at::kCPU);
  EXPECT_LE(r.grad_q.abs().max().item<double>(), 1e-13);
}

TEST(SparseMlaOp, TakesNothingFromKeysThatNobodyNamed) {
  for (const std::string& device : devices()) {
    Problem p = problem_of({.name = "unnamed"}, at::kFloat);
    p.indices.masked_fill_(p.indices.lt(2), -1);
    const Result wanted = result_of(p, at::kFloat, device);
    p.kv.narrow(1, 0, 1).fill_(std::numeric_limits<double>::infinity());
    p.kv.narrow(1, 1, 1).fill_(std::numeric_limits<double>::quiet_NaN());
    const Result got = result_of(p, at::kFloat, device);
    EXPECT_TRUE(at::equal(got.out, wanted.out) && at::equal(got.grad_q, wanted.grad_q)) << device;
    EXPECT_EQ(got.grad_kv.narrow(1, 0, 2).abs().max().item<double>(), 0) << device;
  }
}

TEST(SparseMlaOp, GivesBackWhatRoundingTookFromItsOutput) {
  for (const std::string& device : devices()) {
    const Problem p = problem_of({.name = "remainder"}, at::kBFloat16);
    const auto bf16 = [&](const Tensor& t) { return t.to(at::kBFloat16).to(device); };
    const auto [out, lse, remainder] = sparse_mla_forward(
        bf16(p.q), bf16(p.kv), p.indices.to(device), p.softmax_scale, p.head_dim_v);
    ASSERT_EQ(remainder.scalar_type(), at::kBFloat16);
    const Tensor size = out.to(at::kFloat).abs();
    EXPECT_TRUE(remainder.abs().le(size / 256).all().item<bool>()) << "half an ulp";
    const Tensor whole = out.to(at::kDouble) + remainder.to(at::kDouble);
    // The plain form rounds nothing else; a kernel rounds P as well.
    EXPECT_LE(relative(whole, oracle(p).out), device == "cpu" ? 1e-5 : bound_of(at::kBFloat16));
    EXPECT_GE(remainder.ne(0).sum().item<int64_t>(), size.gt(0).sum().item<int64_t>() * 9 / 10);
  }
}

/// grad_q's error on bfloat16 with one way to take Delta.
double grad_q_error(const Problem& p, const char* delta, const std::string& device) {
  return relative(result_of(p, at::kBFloat16, device, delta).grad_q, oracle(p).grad_q);
}

TEST(SparseMlaOp, KeepsGradQFromTheRoundingOfItsOutput) {
  for (const std::string& device : devices()) {
    for (const char* data : {"mean", "sink"}) {
      const MlaCase c{.name = data,
                      .head_dim_qk = 192,
                      .head_dim_v = 128,
                      .batch = 1,
                      .seqlen_q = 8,
                      .seqlen_k = 1024,
                      .topk = 512,
                      .data = data};
      const Problem p = problem_of(c, at::kBFloat16);
      const double exact = grad_q_error(p, "exact", device);
      const double rounded = grad_q_error(p, "rounded", device);
      EXPECT_GE(rounded, 5 * exact) << data << " " << device << ": " << rounded << " " << exact;
      // What staging leaves where keys share a mean: dS no longer sums to zero.
      EXPECT_LE(exact, 1e-2) << data << " " << device;
    }
  }
}

TEST(SparseMlaOp, LeavesOneRoundingWhereStagingIsSplit) {
  for (const std::string& device : devices()) {
    const Problem p = problem_of({.name = "staging"}, at::kBFloat16);
    const Result wanted = oracle(p);
    const auto error = [&](const char* staging) {
      const Result r = result_of(p, at::kBFloat16, device, "exact", staging);
      return std::pair{relative(r.grad_q, wanted.grad_q), relative(r.grad_kv, wanted.grad_kv)};
    };
    const auto [bf16_q, bf16_kv] = error("bf16");
    const auto [split_q, split_kv] = error("split");
    // sqrt(2) less, of which 1.2 are asked: the rounding of the result stays.
    EXPECT_GE(bf16_q, 1.2 * split_q) << bf16_q << " " << split_q;
    EXPECT_GE(bf16_kv, 1.2 * split_kv) << bf16_kv << " " << split_kv;
  }
}

/// A kernel's out is a mean with P rounded to bfloat16: it does not fit the P of plain torch.
TEST(SparseMlaOp, TakesAnExactDeltaFromAllKeysWhereItIsPlain) {
  for (const std::string& device : devices()) {
    const Problem p = problem_of({.name = "keys"}, at::kBFloat16);
    const auto given = [&](const Tensor& t) { return t.to(at::kBFloat16).to(device); };
    const Tensor q = given(p.q), kv = given(p.kv), indices = p.indices.to(device);
    const auto [out, lse, remainder] =
        sparse_mla_forward(q, kv, indices, p.softmax_scale, p.head_dim_v);
    const auto grad_q = [&, &lse = lse](const Tensor& mean, const char* delta) {
      const Tensor rest = torch::zeros_like(mean);
      return std::get<0>(sparse_mla_backward(given(p.grad_out), mean, rest, lse, q, kv, indices,
                                             p.softmax_scale, delta, "split"));
    };
    const Tensor other = out * 1.01;
    EXPECT_TRUE(at::equal(grad_q(out, "exact"), grad_q(other, "exact"))) << device;
    EXPECT_FALSE(at::equal(grad_q(out, "rounded"), grad_q(other, "rounded"))) << device;
  }
}

/// 67 MB of float32: more than the L2 of an H200. Four queries name few of the keys; what 70
/// queries name exceeds L2, too, and a cluster then computes the backward.
TEST(SparseMlaOp, TakesMoreKeysThanFitIntoL2) {
  for (const auto& [head_dim_qk, seqlen_q, topk] :
       {std::tuple{512, 4, 130}, std::tuple{576, 4, 130}, std::tuple{512, 70, 640},
        std::tuple{576, 70, 640}}) {
    const Problem p = problem_of({.name = "long",
                                  .head_dim_qk = head_dim_qk,
                                  .head_dim_v = 512,
                                  .batch = 1,
                                  .seqlen_q = seqlen_q,
                                  .num_heads = 65,
                                  .seqlen_k = 32768,
                                  .topk = topk},
                                 at::kBFloat16);
    const auto wanted = oracle(p).named();
    for (const std::string& device : devices()) {
      const auto got = result_of(p, at::kBFloat16, device).named();
      for (size_t i = 0; i < got.size(); ++i) {
        const bool is_lse = got[i].first == "lse";
        EXPECT_LE(relative(got[i].second, wanted[i].second),
                  bound_of(is_lse ? at::kFloat : at::kBFloat16))
            << got[i].first << " " << head_dim_qk << " " << seqlen_q << " " << device;
      }
    }
  }
}

TEST(SparseMlaOp, TakesStridedTensors) {
  for (const std::string& device : devices()) {
    Problem p = problem_of({.name = "strided"}, at::kFloat);
    const Result wanted = result_of(p, at::kFloat, device);
    p.q = p.q.transpose(0, 1).contiguous().transpose(0, 1);
    p.kv = at::cat({p.kv, p.kv}, 3).narrow(3, 0, p.kv.size(3));
    p.grad_out = p.grad_out.transpose(1, 2).contiguous().transpose(1, 2);
    const Result got = result_of(p, at::kFloat, device);
    EXPECT_TRUE(at::equal(got.out, wanted.out) && at::equal(got.grad_q, wanted.grad_q)) << device;
    EXPECT_TRUE(got.grad_q.is_contiguous() && got.grad_kv.is_contiguous()) << device;
  }
}

#ifdef PATCHBENCH_CUDA
TEST(SparseMlaCudaGraph, IsCapturedAndReplaysOnOtherIndices) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const MlaCase c{.name = "graph"};
  const Problem p = problem_of(c, at::kBFloat16);
  const auto given = [](const Tensor& t) { return t.to(at::kBFloat16).cuda(); };
  const Tensor q = given(p.q), kv = given(p.kv), grad_out = given(p.grad_out);
  if (sparse_mla_path(q, c.head_dim_v) != "cuda") GTEST_SKIP() << "no kernel for this GPU";
  const auto attend = [&](const Tensor& indices) {
    const auto [out, lse, remainder] =
        sparse_mla_forward(q, kv, indices, p.softmax_scale, p.head_dim_v);
    return std::vector{out, std::get<0>(sparse_mla_backward(grad_out, out, remainder, lse, q, kv,
                                                            indices, p.softmax_scale))};
  };
  op_test::expect_replays(p.indices.cuda(), attend, [&](int replay) {
    MlaCase other = c;
    other.name += std::to_string(replay);
    return indices_of(other).cuda();
  });
}
#endif

}  // namespace
}  // namespace patchbench::sparse_mla_dims_test
