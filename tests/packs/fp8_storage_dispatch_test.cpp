// patchbench::sparse_mla_fp8 against fp64 sums over the stored values, decoded here bit by bit, on
// every device of this machine and on its kernel and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "fp8_storage_dispatch/op.h"
#include "harness/compare.h"
#include "harness/inputs.h"
#include "packs/op_test.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::sparse_mla_fp8_test {
namespace {

using at::Tensor;
using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::fp8_storage_dispatch::dequantize_mla;
using ops::fp8_storage_dispatch::Fp8Storage;
using ops::fp8_storage_dispatch::quantize_mla;
using ops::fp8_storage_dispatch::sparse_mla_fp8;
using ops::fp8_storage_dispatch::sparse_mla_fp8_backward;
using ops::fp8_storage_dispatch::sparse_mla_fp8_forward;
using ops::fp8_storage_dispatch::sparse_mla_fp8_path;

constexpr int64_t kDim = 576, kDimV = 512;
constexpr double kScale = 1.0 / 24;  // of the logits: 576^-0.5
/// P is rounded to bfloat16 (2^-9), and so is the result.
constexpr double kKernelBound = 5e-3;

struct MlaCase {
  std::string name, layout = "tensor";
  int64_t batch = 2, seqlen_q = 3, num_heads = 16, seqlen_k = 96, topk = 64;
  double sharpness = 1;          ///< factor on the query
  bool is_query_stored = false;  ///< block: the query too, per token
};

struct Problem {
  Tensor query, kv, indices, grad_out;  // fp64, int32
  Fp8Storage q, k;
};

/// topk_indices with repeats, a share of -1, one index beyond the keys and, in row 0 of batch entry
/// 0, no key at all.
Tensor indices_of(const MlaCase& c) {
  const std::vector<int64_t> shape = {c.batch, c.seqlen_q, 1, c.topk};
  const harness::Draw draw(11, c.name + "/indices");
  Tensor indices = draw.integers(shape, 0, std::max<int64_t>(c.seqlen_k, 1)).to(at::kInt);
  indices.masked_fill_(harness::Draw(11, c.name + "/none").mask(shape, 0.1), -1);
  if (c.seqlen_k == 0) indices.fill_(-1);
  if (indices.numel() > 0) {
    indices[0][0].fill_(-1);
    indices[c.batch - 1][c.seqlen_q - 1][0][0] = static_cast<int>(c.seqlen_k) + 3;
  }
  return indices;
}

Problem problem_of(const MlaCase& c, const at::Device& device) {
  const auto normal = [&](const char* name, const std::vector<int64_t>& shape) {
    return harness::Draw(11, c.name + "/" + name).normal(shape).to(at::kBFloat16);
  };
  Problem p;
  p.query = normal("query", {c.batch, c.seqlen_q, c.num_heads, kDim}) * c.sharpness;
  p.kv = normal("kv", {c.batch, c.seqlen_k, 1, kDim});
  p.indices = indices_of(c);
  p.grad_out = normal("grad_out", {c.batch, c.seqlen_q, c.num_heads, kDimV});
  const bool is_dense = c.layout == "block" && !c.is_query_stored;
  p.q = is_dense ? Fp8Storage{p.query.to(device), std::nullopt}
                 : quantize_mla(p.query.to(device), c.layout == "block" ? "token" : c.layout);
  p.k = quantize_mla(p.kv.to(device), c.layout);
  return p;
}

// ---- the oracle ----

/// e4m3fn by its definition: 1 sign, 4 exponent bits of bias 7, 3 of mantissa, no infinity.
double decoded(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return byte & 0x80 ? -size : size;
}

Tensor decode(const Tensor& bytes) {
  const Tensor flat = bytes.cpu().contiguous().view(at::kByte);
  Tensor values = torch::empty(flat.sizes(), at::kDouble);
  for (int64_t i = 0; i < flat.numel(); ++i)
    values.data_ptr<double>()[i] = decoded(flat.data_ptr<uint8_t>()[i]);
  return values;
}

/// The stored values in fp64, [..., 576].
Tensor stored_values(const Fp8Storage& s) {
  const Tensor payload = s.payload.cpu();
  if (payload.scalar_type() == at::kBFloat16) return payload.to(at::kDouble);
  if (s.scale) {
    const Tensor scale = s.scale->cpu().to(at::kDouble);
    const Tensor values = decode(payload);
    return scale.numel() == 1
               ? values * scale.reshape(at::IntArrayRef())
               : values * scale.view(values.sizes().slice(0, values.dim() - 1)).unsqueeze(-1);
  }
  const auto bytes = [&](int64_t first, int64_t count) {
    return payload.narrow(-1, first, count).contiguous();
  };
  const Tensor scales = bytes(512, 16).view(at::kFloat).to(at::kDouble).repeat_interleave(128, -1);
  return at::cat(
      {decode(bytes(0, 512)) * scales, bytes(528, 128).view(at::kBFloat16).to(at::kDouble)}, -1);
}

struct Result {
  Tensor out, lse, grad_q, grad_kv;
};

/// All of it in fp64, gradients by autograd.
Result oracle(const Problem& p, const Tensor& q_values, const Tensor& k_values) {
  const Tensor q = q_values.detach().clone().requires_grad_();
  const Tensor kv = k_values.detach().clone().requires_grad_();
  const int64_t seqlen_k = kv.size(1);
  const Tensor index = p.indices.squeeze(2).to(at::kLong);
  const Tensor is_key = index.ge(0).logical_and(index.lt(seqlen_k));
  std::vector<Tensor> outs, lses;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const Tensor open = is_key[b].unsqueeze(1);
    const Tensor k =
        at::embedding(seqlen_k > 0 ? kv[b].squeeze(1) : torch::zeros({1, kDim}, at::kDouble),
                      index[b].masked_fill(is_key[b].logical_not(), 0));
    const Tensor logits = at::einsum("shd,skd->shk", {q[b], k}) * kScale;
    const Tensor weight = at::where(open, logits.exp(), 0.0);
    const Tensor sum = weight.sum(-1, true);
    const Tensor value = at::einsum("shk,skd->shd", {weight, k.narrow(-1, 0, kDimV)});
    outs.push_back(at::where(sum.gt(0), value / sum.clamp_min(1e-300), 0.0));
    lses.push_back(at::where(sum.gt(0), sum.clamp_min(1e-300).log2(), 0.0).squeeze(-1));
  }
  Result r{at::stack(outs), at::stack(lses), {}, {}};
  const auto grads = torch::autograd::grad({r.out}, {q, kv}, {p.grad_out.to(at::kDouble)}, true,
                                           false, /*allow_unused=*/true);
  r.grad_q = grads[0];
  r.grad_kv = grads[1].defined() ? grads[1] : torch::zeros_like(kv);
  return r;
}

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

std::vector<MlaCase> mla_cases() {
  return {{.name = "tensor"},
          {.name = "token", .layout = "token"},
          {.name = "block", .layout = "block"},
          {.name = "block_stored_query", .layout = "block", .is_query_stored = true},
          {.name = "sharp", .layout = "token", .sharpness = 4},
          {.name = "one_head", .layout = "token", .num_heads = 1, .topk = 33},
          {.name = "many_heads", .layout = "block", .batch = 1, .num_heads = 65, .topk = 70},
          {.name = "many_tiles", .batch = 1, .seqlen_q = 2, .seqlen_k = 300, .topk = 200},
          {.name = "few_keys", .layout = "token", .seqlen_k = 3, .topk = 5},
          {.name = "no_keys", .seqlen_k = 0, .topk = 16},
          {.name = "no_slots", .layout = "block", .topk = 0},
          {.name = "no_heads", .num_heads = 0}};
}

class SparseMlaFp8 : public testing::TestWithParam<std::tuple<MlaCase, std::string, Form>> {};

TEST_P(SparseMlaFp8, IsTheSumOverTheStoredValues) {
  const auto& [c, device, form] = GetParam();
  const Fallback fallback("fp8_storage_dispatch", form);
  const Problem p = problem_of(c, device);
  const Result wanted = oracle(p, stored_values(p.q), stored_values(p.k));
  const Tensor indices = p.indices.to(device), grad_out = p.grad_out.to(device);
  const auto [out, lse] = sparse_mla_fp8_forward(p.q, p.k, indices, kScale);
  ASSERT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative(out, wanted.out), kKernelBound);
  EXPECT_TRUE(at::allclose(lse.cpu().to(at::kDouble), wanted.lse, 0, 1e-3));
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

TEST(SparseMlaFp8Op, PassesGradientsStraightThroughTheRounding) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const MlaCase c{.name = "autograd", .layout = "token"};
    const Problem p = problem_of(c, at::kCPU);
    const Tensor query = p.query.to(dtype).requires_grad_(), kv = p.kv.to(dtype).requires_grad_();
    const auto [out, lse] = sparse_mla_fp8(query, kv, p.indices, "token", kScale);
    EXPECT_FALSE(lse.requires_grad());
    out.backward(p.grad_out);
    const Result wanted = oracle(p, stored_values(p.q), stored_values(p.k));
    EXPECT_EQ(query.grad().scalar_type(), dtype);
    EXPECT_LE(relative(query.grad(), wanted.grad_q), 2 * kKernelBound);
    EXPECT_LE(relative(kv.grad(), wanted.grad_kv), 2 * kKernelBound);
  }
}

TEST(SparseMlaFp8Op, HasAFakeImplementation) {
  const auto meta = [](std::vector<int64_t> shape, at::ScalarType type) {
    return torch::empty(shape, at::TensorOptions(type).device(at::kMeta));
  };
  const Fp8Storage q{meta({2, 3, 8, kDim}, at::kFloat8_e4m3fn), meta({1}, at::kFloat)};
  const Fp8Storage k{meta({2, 9, 1, kDim}, at::kFloat8_e4m3fn), meta({2, 9, 1}, at::kFloat)};
  const Tensor indices = meta({2, 3, 1, 4}, at::kInt);
  const auto [out, lse] = sparse_mla_fp8_forward(q, k, indices, kScale);
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{2, 3, 8, kDimV}));
  EXPECT_EQ(lse.sizes(), (std::vector<int64_t>{2, 3, 8}));
  const auto [grad_q, grad_kv] = sparse_mla_fp8_backward(out, out, lse, q, k, indices, kScale);
  EXPECT_EQ(grad_q.scalar_type(), at::kBFloat16);
  EXPECT_EQ(grad_kv.sizes(), (std::vector<int64_t>{2, 9, 1, kDim}));
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

#ifdef PATCHBENCH_CUDA
TEST(SparseMlaFp8CudaGraph, IsCapturedAndReplaysOnOtherIndices) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const MlaCase c{.name = "graph", .layout = "block"};
  const Problem p = problem_of(c, at::Device("cuda:0"));
  if (sparse_mla_fp8_path(p.k.payload) != "cuda") GTEST_SKIP() << "no kernel for this GPU";
  Tensor buffer = p.indices.cuda();
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
  sparse_mla_fp8_forward(p.q, p.k, buffer, kScale);
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const Tensor out = std::get<0>(sparse_mla_fp8_forward(p.q, p.k, buffer, kScale));
  graph.capture_end();
  for (int replay = 0; replay < 3; ++replay) {
    MlaCase other = c;
    other.name += std::to_string(replay);
    const Tensor indices = indices_of(other).cuda();
    buffer.copy_(indices);
    graph.replay();
    c10::cuda::device_synchronize();
    EXPECT_TRUE(at::equal(out, std::get<0>(sparse_mla_fp8_forward(p.q, p.k, indices, kScale))));
  }
}
#endif

}  // namespace
}  // namespace patchbench::sparse_mla_fp8_test
