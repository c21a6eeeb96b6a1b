// patchbench::sparse_mla_fp8 against fp64 sums over the stored values, decoded here bit by bit, on
// every device of this machine and on its kernel and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "harness/compare.h"
#include "packs/fp8_storage_dispatch_reference.h"
#include "packs/op_test.h"

namespace patchbench::sparse_mla_fp8_test {
namespace {

using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::fp8_storage_dispatch::dequantize_mla;
using ops::fp8_storage_dispatch::sparse_mla_fp8_backward;
using ops::fp8_storage_dispatch::sparse_mla_fp8_forward;
using ops::fp8_storage_dispatch::sparse_mla_fp8_path;

std::vector<MlaCase> mla_cases() {
  return {
      {.name = "tensor"},
      {.name = "token", .layout = "token"},
      {.name = "block", .layout = "block"},
      {.name = "block_stored_query", .layout = "block", .is_query_stored = true},
      {.name = "odd_block_scales", .layout = "block", .is_query_stored = true, .block_scale = 1.3},
      // Each key is used eight times and more: on a GPU the keys are dequantised first.
      {.name = "used_often", .layout = "block", .seqlen_q = 13},
      {.name = "used_often_sharp",
       .layout = "block",
       .seqlen_q = 16,
       .num_heads = 65,
       .sharpness = 4},
      {.name = "used_often_odd_scales", .layout = "block", .seqlen_q = 13, .block_scale = 1.3},
      {.name = "used_often_stored_query",
       .layout = "block",
       .seqlen_q = 13,
       .is_query_stored = true},
      {.name = "used_often_stored_query_odd_scales",
       .layout = "block",
       .seqlen_q = 13,
       .num_heads = 65,
       .is_query_stored = true,
       .block_scale = 1.3},
      {.name = "used_often_no_heads", .layout = "block", .seqlen_q = 13, .num_heads = 0},
      {.name = "sharp", .layout = "token", .sharpness = 4},
      // Maxima rise by 2^30: what is summed is brought along tile by tile.
      {.name = "rising", .seqlen_k = 400, .topk = 400, .sharpness = 4, .is_rising = true},
      {.name = "rising_token",
       .layout = "token",
       .seqlen_k = 400,
       .topk = 400,
       .sharpness = 4,
       .is_rising = true},
      {.name = "one_head", .layout = "token", .num_heads = 1, .topk = 33},
      {.name = "many_heads", .layout = "block", .batch = 1, .num_heads = 65, .topk = 70},
      {.name = "many_tiles", .batch = 1, .seqlen_q = 2, .seqlen_k = 300, .topk = 200},
      {.name = "few_keys", .layout = "token", .seqlen_k = 3, .topk = 5},
      {.name = "no_keys", .seqlen_k = 0, .topk = 16},
      {.name = "no_slots", .layout = "block", .topk = 0},
      {.name = "no_heads", .num_heads = 0}};
}

/// What lse [in log2] may be off. Where e4m3 is multiplied, in the kernel with a stored query, a
/// tensor core keeps about 14 bits of a sum, an error in proportion to the logits and so to lse.
/// Without the sum of each 128 columns going to float32 an H200 is off by 2.1e-2 and 3.5e-2 on
/// sharp rows, whose lse is about 20: more than the bound.
Tensor lse_bound(const Problem& p, const Tensor& lse) {
  const Tensor bound = torch::full_like(lse, 1e-3);
  if (sparse_mla_fp8_path(p.k.payload) != "cuda" || !p.q.scale) return bound;
  return at::maximum(bound, std::ldexp(1, -11) * lse.abs());
}

/// The keys' values that the op's forward multiplies. In the kernels a bfloat16 query, or keys that
/// are used often, meet keys in bfloat16, to which block scales that are not powers of two round.
Tensor multiplied_keys(const MlaCase& c, const Problem& p) {
  const Tensor values = stored_values(p.k);
  const bool is_rounded = !p.q.scale || (!p.k.scale && c.seqlen_q * c.topk >= 8 * c.seqlen_k);
  if (sparse_mla_fp8_path(p.k.payload) != "cuda" || !is_rounded) return values;
  return values.to(at::kBFloat16).to(at::kDouble);
}

class SparseMlaFp8 : public testing::TestWithParam<std::tuple<MlaCase, std::string, Form>> {};

TEST_P(SparseMlaFp8, IsTheSumOverTheStoredValues) {
  const auto& [c, device, form] = GetParam();
  const Fallback fallback("fp8_storage_dispatch", form);
  const Problem p = problem_of(c, device);
  const Result wanted = oracle(p, stored_values(p.q), multiplied_keys(c, p));
  const Tensor indices = p.indices.to(device), grad_out = p.grad_out.to(device);
  const auto [out, lse] = sparse_mla_fp8_forward(p.q, p.k, indices, kScale);
  ASSERT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative(out, wanted.out), kKernelBound);
  const Tensor lse_error = (lse.cpu().to(at::kDouble) - wanted.lse).abs();
  EXPECT_TRUE(lse_error.le(lse_bound(p, wanted.lse)).all().item<bool>()) << lse_error.max();
  const auto [grad_q, grad_kv] =
      sparse_mla_fp8_backward(grad_out, out, lse, p.q, p.k, indices, kScale);
  ASSERT_EQ(grad_kv.sizes(), wanted.grad_kv.sizes());
  // Delta is taken from the rounded out, which cancels against dP: more for sharp rows.
  EXPECT_LE(relative(grad_q, wanted.grad_q), 2 * kKernelBound);
  EXPECT_LE(relative(grad_kv, wanted.grad_kv), 2 * kKernelBound);
}

TEST_P(SparseMlaFp8, RepeatsItsForwardAndGradQBitForBit) {
  const auto& [c, device, form] = GetParam();
  const Fallback fallback("fp8_storage_dispatch", form);
  const Problem p = problem_of(c, device);
  const Tensor indices = p.indices.to(device), grad_out = p.grad_out.to(device);
  const auto once = sparse_mla_fp8_forward(p.q, p.k, indices, kScale);
  const auto twice = sparse_mla_fp8_forward(p.q, p.k, indices, kScale);
  EXPECT_TRUE(at::equal(std::get<0>(once), std::get<0>(twice)));
  EXPECT_TRUE(at::equal(std::get<1>(once), std::get<1>(twice)));
  const auto grad_q = [&] {
    return std::get<0>(sparse_mla_fp8_backward(grad_out, std::get<0>(once), std::get<1>(once), p.q,
                                               p.k, indices, kScale));
  };
  EXPECT_TRUE(at::equal(grad_q(), grad_q()));
}

std::string point_name(const testing::TestParamInfo<std::tuple<MlaCase, std::string, Form>>& info) {
  const auto& [c, device, form] = info.param;
  return c.name + "_" + device.substr(0, device.find(':')) + (form == Form::kPlain ? "_plain" : "");
}

INSTANTIATE_TEST_SUITE_P(Cases, SparseMlaFp8,
                         testing::Combine(testing::ValuesIn(mla_cases()),
                                          testing::ValuesIn(devices()),
                                          testing::Values(Form::kChosen, Form::kPlain)),
                         point_name);

TEST(SparseMlaFp8Op, DiffersFromTheDenseAnswerByWhatEightBitsCost) {
  // A result as close as bfloat16 would mean that nobody used the stored values.
  for (const char* layout : {"tensor", "token", "block"}) {
    const MlaCase c{.name = "cost", .layout = layout, .seqlen_k = 256};
    const Problem p = problem_of(c, at::kCPU);
    const Tensor dense = oracle(p, p.query.to(at::kDouble), p.kv.to(at::kDouble)).out;
    const double error =
        relative(std::get<0>(sparse_mla_fp8_forward(p.q, p.k, p.indices, kScale)), dense);
    EXPECT_GE(error, 5e-3) << layout;
    EXPECT_LE(error, 6e-2) << layout;
  }
}

TEST(SparseMlaFp8Op, StoresAtMost57PercentOfBfloat16) {
  const Tensor rows = torch::randn({7, kDim}).to(at::kBFloat16);
  for (const char* layout : {"tensor", "token", "block"}) {
    const Fp8Storage s = quantize_mla(rows, layout);
    const size_t bytes =
        s.payload.nbytes() + (s.scale && s.scale->numel() > 1 ? s.scale->nbytes() : 0);
    EXPECT_LE(static_cast<double>(bytes), 0.57 * static_cast<double>(rows.nbytes())) << layout;
  }
}

TEST(SparseMlaFp8Op, RoundsToTheNearestStoredValue) {
  const Tensor rows = harness::Draw(3, "rows").normal({5, kDim});
  for (const char* layout : {"tensor", "token", "block"}) {
    const Fp8Storage s = quantize_mla(rows, layout);
    const Tensor values = stored_values(s);
    // Half a step of three bits of mantissa, and half the smallest step next to zero.
    const Tensor bound = rows.abs() / 16 + 0.05 / 448 * 16;
    EXPECT_TRUE((values - rows).abs().le(bound).all().item<bool>()) << layout;
    EXPECT_TRUE(at::allclose(dequantize_mla(s).to(at::kDouble), values, 1e-6, 0)) << layout;
  }
}

TEST(SparseMlaFp8Op, RefusesInOneLine) {
  const Problem p = problem_of({.name = "refused"}, at::kCPU);
  const auto refused = [&](const Fp8Storage& q, const Fp8Storage& k, const Tensor& indices) {
    return refusal([&] { sparse_mla_fp8_forward(q, k, indices, kScale); });
  };
  const Fp8Storage dense{p.query, std::nullopt};
  EXPECT_EQ(
      refused(dense, p.k, p.indices),
      "sparse_mla_fp8: q must be stored as float8_e4m3fn, got bfloat16 (both operands stored, "
      "or a bfloat16 query beside a block kv)");
  EXPECT_NE(refused(p.q, {p.k.payload.to(at::kFloat).to(at::kFloat8_e5m2), p.k.scale}, p.indices)
                .find("float8_e5m2"),
            std::string::npos);
  EXPECT_NE(refused(p.q, {p.k.payload, std::nullopt}, p.indices).find("needs kv_scale"),
            std::string::npos);
  EXPECT_NE(refused(p.q, {p.k.payload, torch::ones({5})}, p.indices).find("got 5"),
            std::string::npos);
  EXPECT_NE(refused(p.q, p.k, p.indices.to(at::kLong)).find("dtype int32, got int64"),
            std::string::npos);
  EXPECT_NE(refused({p.q.payload.transpose(1, 2), p.q.scale}, p.k, p.indices.transpose(1, 2))
                .find("topk_indices must have shape"),
            std::string::npos);
  EXPECT_NE(refused({p.q.payload.narrow(3, 0, 512), p.q.scale}, p.k, p.indices).find("576"),
            std::string::npos);
  EXPECT_NE(refusal([&] { quantize_mla(p.kv, "row"); }).find("tensor, token or block"),
            std::string::npos);
}

/// The same values behind one more byte.
Tensor shifted(const Tensor& payload) {
  const Tensor bytes = torch::zeros({payload.numel() + 1}, at::kByte);
  const Tensor behind = bytes.narrow(0, 1, payload.numel());
  behind.copy_(payload.contiguous().view(at::kByte).flatten());
  return behind.view(at::kFloat8_e4m3fn).view(payload.sizes());
}

TEST(SparseMlaFp8Op, RefusesPayloadsBetweenWords) {
  const Problem p = problem_of({.name = "shifted"}, at::kCPU);
  const Fp8Storage q{shifted(p.q.payload), p.q.scale}, k{shifted(p.k.payload), p.k.scale};
  EXPECT_EQ(refusal([&] { sparse_mla_fp8_forward(q, p.k, p.indices, kScale); }),
            "sparse_mla_fp8: q must start at a multiple of 16 bytes, got one at 1 bytes behind; "
            "pass q.clone()");
  const auto [out, lse] = sparse_mla_fp8_forward(p.q, p.k, p.indices, kScale);
  EXPECT_EQ(refusal([&] { sparse_mla_fp8_backward(out, out, lse, p.q, k, p.indices, kScale); }),
            "sparse_mla_fp8: kv must start at a multiple of 16 bytes, got one at 1 bytes behind; "
            "pass kv.clone()");
}

TEST(SparseMlaFp8Op, TakesAGradientThatStartsBetweenWords) {
  for (const std::string& device : devices()) {
    const Problem p = problem_of({.name = "view"}, device);
    const Tensor indices = p.indices.to(device), grad_out = p.grad_out.to(device);
    const auto [out, lse] = sparse_mla_fp8_forward(p.q, p.k, indices, kScale);
    const Tensor held = torch::zeros({grad_out.numel() + 1}, grad_out.options());
    const Tensor view = held.narrow(0, 1, grad_out.numel()).view(grad_out.sizes());
    view.copy_(grad_out);
    const auto grad_q = [&](const Tensor& gradient) {
      return std::get<0>(sparse_mla_fp8_backward(gradient, out, lse, p.q, p.k, indices, kScale));
    };
    EXPECT_TRUE(at::equal(grad_q(view), grad_q(grad_out))) << device;
  }
}

#ifdef PATCHBENCH_CUDA
TEST(SparseMlaFp8CudaGraph, IsCapturedAndReplaysOnOtherIndices) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  for (const int64_t seqlen_q : {3, 16}) {
    const MlaCase c{.name = "graph", .layout = "block", .seqlen_q = seqlen_q};
    const Problem p = problem_of(c, at::Device("cuda:0"));
    if (sparse_mla_fp8_path(p.k.payload) != "cuda") GTEST_SKIP() << "no kernel for this GPU";
    op_test::expect_replays(
        p.indices.cuda(),
        [&](const Tensor& indices) {
          return std::vector{std::get<0>(sparse_mla_fp8_forward(p.q, p.k, indices, kScale))};
        },
        [&](int replay) {
          MlaCase other = c;
          other.name += std::to_string(replay);
          return indices_of(other).cuda();
        });
  }
}
#endif

}  // namespace
}  // namespace patchbench::sparse_mla_fp8_test
