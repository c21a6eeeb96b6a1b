// patchbench::mamba3_mimo_qk_dot and its backward against fp64 autograd, on every device of this
// machine and on its kernel and plain paths; every staging bit for bit like every other.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "mamba3_mimo_smem_2d/op.h"
#include "packs/op_test.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace patchbench::qk_dot_test {
namespace {

using at::Tensor;
using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::mamba3_mimo_smem_2d::mamba3_mimo_qk_dot;
using ops::mamba3_mimo_smem_2d::mamba3_mimo_qk_dot_bwd;
using ops::mamba3_mimo_smem_2d::mamba3_mimo_qk_dot_path;
using ops::mamba3_mimo_smem_2d::QkDotStaging;

struct ProductCase {
  std::string name;
  int64_t batch = 2, seqlen = 48, num_ranks = 4, num_groups = 2, num_heads = 4, head_dim = 64;
  bool has_kernel = true;
};

/// A chunk is 64 / num_ranks tokens.
std::vector<ProductCase> product_cases() {
  return {{.name = "whole_chunks"},
          {.name = "two_ranks", .seqlen = 64, .num_ranks = 2},
          {.name = "eight_ranks", .seqlen = 24, .num_ranks = 8},
          {.name = "two_ranks_wide", .num_ranks = 2, .head_dim = 128},
          {.name = "four_ranks_wide", .head_dim = 128},
          {.name = "eight_ranks_wide", .num_ranks = 8, .head_dim = 128},
          {.name = "tail", .seqlen = 37},
          {.name = "tail_of_one", .seqlen = 17, .num_ranks = 8},
          {.name = "one_token", .batch = 1, .seqlen = 1},
          {.name = "one_group", .num_groups = 1, .num_heads = 16},
          {.name = "as_many_groups", .num_groups = 4},
          {.name = "six_heads", .num_groups = 3, .num_heads = 6},
          {.name = "spans_of_chunks",
           .batch = 1,
           .seqlen = 600,
           .num_ranks = 8,
           .num_groups = 8,
           .num_heads = 8},
          {.name = "one_rank", .num_ranks = 1, .has_kernel = false},
          {.name = "three_ranks", .num_ranks = 3, .has_kernel = false},
          {.name = "narrow", .head_dim = 32, .has_kernel = false},
          {.name = "no_tokens", .seqlen = 0, .has_kernel = false}};
}

struct Operands {
  Tensor q, k, q_bias, k_bias, grad;
  Operands on(const at::Device& device) const {
    return {q.to(device), k.to(device), q_bias.to(device), k_bias.to(device), grad.to(device)};
  }
};

Operands operands_of(const ProductCase& c, at::ScalarType type) {
  const auto draw = [&](const char* name, const std::vector<int64_t>& shape) {
    return harness::Draw(7, c.name + "/" + name).normal(shape);
  };
  const std::vector<int64_t> rows = {c.batch, c.seqlen, c.num_ranks, c.num_groups, c.head_dim},
                             bias = {c.num_heads, c.num_ranks, c.head_dim};
  const at::ScalarType sums = type == at::kDouble ? type : at::kFloat;
  return {draw("q", rows).to(type), draw("k", rows).to(type), draw("q_bias", bias).to(sums),
          draw("k_bias", bias).to(sums),
          draw("grad", {c.batch, c.num_heads, c.seqlen, c.num_ranks, c.num_ranks}).to(type)};
}

/// qk_dot, grad_q, grad_k, grad_q_bias, grad_k_bias.
using Results = std::vector<Tensor>;

Results run(const Operands& o, const QkDotStaging& staging = {}) {
  const auto [grad_q, grad_k, grad_q_bias, grad_k_bias] =
      mamba3_mimo_qk_dot_bwd(o.grad, o.q, o.k, o.q_bias, o.k_bias, staging);
  return {mamba3_mimo_qk_dot(o.q, o.k, o.q_bias, o.k_bias, staging), grad_q, grad_k, grad_q_bias,
          grad_k_bias};
}

/// Head h takes the rows of group h / (H / G); the gradients by autograd.
Results in_fp64(const Operands& given) {
  const auto leaf = [](const Tensor& t) {
    return t.to(at::kDouble).detach().clone().requires_grad_();
  };
  const Tensor q = leaf(given.q), k = leaf(given.k), q_bias = leaf(given.q_bias),
               k_bias = leaf(given.k_bias);
  const int64_t heads = q_bias.size(0) / q.size(3);
  const auto per_head = [&](const Tensor& rows, const Tensor& bias) {
    return rows.repeat_interleave(heads, 3) + bias.transpose(0, 1);
  };
  const Tensor qk_dot =
      at::einsum("bsrhn,bsuhn->bhsru", {per_head(q, q_bias), per_head(k, k_bias)});
  Results results = {qk_dot.detach()};
  for (const Tensor& grad :
       torch::autograd::grad({qk_dot}, {q, k, q_bias, k_bias}, {given.grad.to(at::kDouble)}))
    results.push_back(grad);
  return results;
}

/// Within one rounding to the result's dtype plus the float32 noise of a sum of so many products
/// of unit normals: half an ulp of each partial sum, which add like a random walk.
bool is_rounded_once(const Tensor& got, const Tensor& wanted, int64_t terms) {
  const double noise = static_cast<double>(terms) * 16 * 6e-8;
  const Tensor error = (got.cpu().to(at::kDouble) - wanted).abs();
  const double half = harness::epsilon_of(got.scalar_type()) / 2;
  return error.le(wanted.abs() * half + noise).all().item<bool>();
}

void expect_bitwise(const Results& got, const Results& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Measure m = harness::compare_bitwise(std::to_string(i), got[i].cpu(), wanted[i].cpu());
    EXPECT_TRUE(m.pass) << "result " << i << ": " << m.where;
  }
}

const std::vector<QkDotStaging> kStagings = {
    {"flat", "tma"}, {"flat", "cp_async"}, {"rank3", "tma"}, {"rank3", "cp_async"}};

/// TMA wants rows of 16 bytes: of R * R products flat, of R in rank 3.
std::string wanted_path(const ProductCase& c, const Tensor& q, const QkDotStaging& staging,
                        Form form) {
  const bool is_typed = q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16;
  if (!q.is_cuda() || form == Form::kPlain || !c.has_kernel || !is_typed) return "plain";
#ifdef PATCHBENCH_CUDA
  if (staging.copy == "tma" && at::cuda::getDeviceProperties(q.get_device())->major == 9) {
    const int64_t row = c.num_ranks * (staging.layout == "flat" ? c.num_ranks : 1);
    return row * q.element_size() % 16 == 0 ? "tma" : "tma_operands";
  }
#endif
  static_cast<void>(staging);
  return "cp_async";
}

using Point = std::tuple<ProductCase, std::string, at::ScalarType, Form>;
class QkDot : public testing::TestWithParam<Point> {};

TEST_P(QkDot, IsRightAndTheSameForEveryStaging) {
  const auto& [c, device, type, form] = GetParam();
  const Fallback fallback("mamba3_mimo_smem_2d", form);
  const Operands on_cpu = operands_of(c, type), given = on_cpu.on(at::Device(device));
  const Results wanted = in_fp64(on_cpu), got = run(given);
  const int64_t heads = c.num_heads / c.num_groups, tokens = c.batch * c.seqlen;
  const std::vector<int64_t> terms = {c.head_dim, heads * c.num_ranks, heads * c.num_ranks,
                                      tokens * c.num_ranks, tokens * c.num_ranks};
  const Results inputs = {given.grad, given.q, given.k, given.q_bias, given.k_bias};
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), inputs[i].sizes());
    ASSERT_EQ(got[i].scalar_type(), inputs[i].scalar_type());
    EXPECT_TRUE(is_rounded_once(got[i], wanted[i], terms[i])) << "result " << i;
  }
  expect_bitwise(run(given), got);
  for (const QkDotStaging& staging : kStagings) {
    SCOPED_TRACE(staging.layout + " " + staging.copy);
    EXPECT_EQ(mamba3_mimo_qk_dot_path(given.q, staging), wanted_path(c, given.q, staging, form));
    expect_bitwise(run(given, staging), got);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, QkDot,
                         testing::Combine(testing::ValuesIn(product_cases()),
                                          testing::ValuesIn(devices()),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(Form::kChosen, Form::kPlain)),
                         op_test::point_name<testing::TestParamInfo<Point>>);

class QkDotOn : public testing::TestWithParam<std::string> {};

/// Packed: the first sequence ends inside a chunk, the second is one token.
TEST_P(QkDotOn, PackedSequencesEqualTheirParts) {
  const Operands packed =
      operands_of({.name = "packed", .batch = 1, .seqlen = 60}, at::kBFloat16).on(GetParam());
  const Results whole = run(packed);
  Results parts[3];
  int64_t begin = 0;
  for (const int64_t length : {21, 1, 38}) {
    const auto rows = [&](const Tensor& t) { return t.narrow(1, begin, length); };
    const Results part = run({rows(packed.q), rows(packed.k), packed.q_bias, packed.k_bias,
                              packed.grad.narrow(2, begin, length)});
    for (int i = 0; i < 3; ++i) parts[i].push_back(part[static_cast<size_t>(i)]);
    begin += length;
  }
  expect_bitwise({at::cat(parts[0], 2), at::cat(parts[1], 1), at::cat(parts[2], 1)},
                 {whole[0], whole[1], whole[2]});
}

/// What lies behind a sequence's end in memory, here NaN, is not read as its own.
TEST_P(QkDotOn, ReadsNothingBehindTheEnd) {
  const Operands long_one =
      operands_of({.name = "behind", .batch = 1, .seqlen = 40}, at::kBFloat16).on(GetParam());
  const auto short_of = [&] {
    return Operands{long_one.q.narrow(1, 0, 21), long_one.k.narrow(1, 0, 21), long_one.q_bias,
                    long_one.k_bias, long_one.grad.narrow(2, 0, 21).contiguous()};
  };
  const Results before = run(short_of());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  long_one.q.narrow(1, 21, 19).fill_(nan);
  long_one.k.narrow(1, 21, 19).fill_(nan);
  for (const QkDotStaging& staging : kStagings) expect_bitwise(run(short_of(), staging), before);
}

TEST_P(QkDotOn, TakesStridedAndUnalignedOperands) {
  const Operands o = operands_of({.name = "strided"}, at::kBFloat16).on(GetParam());
  Operands strided = o;
  strided.q = o.q.transpose(1, 4).contiguous().transpose(1, 4);
  const Tensor longer = at::cat({o.k.new_zeros({1}), o.k.flatten()});
  strided.k = longer.narrow(0, 1, o.k.numel()).view(o.k.sizes());
  strided.grad = o.grad.mT().contiguous().mT();
  expect_bitwise(run(strided), run(o));
}

std::string device_name(const testing::TestParamInfo<std::string>& point) {
  return point.param.substr(0, point.param.find(':'));
}

INSTANTIATE_TEST_SUITE_P(Devices, QkDotOn, testing::ValuesIn(devices()), device_name);

#ifdef PATCHBENCH_CUDA
TEST(QkDotOp, IsTheSameInAGraphOnCuda) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const Operands o = operands_of({.name = "graph", .seqlen = 37}, at::kBFloat16).on(at::kCUDA);
  const Results wanted = run(o);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const Results captured = run(o);
  graph.capture_end();
  for (const Tensor& t : captured) t.zero_();
  graph.replay();
  torch::cuda::synchronize();
  expect_bitwise(captured, wanted);
}
#endif

TEST(QkDotOp, RefusesInOneLine) {
  const Tensor q = torch::zeros({1, 2, 4, 4, 16}), bias = torch::zeros({6, 4, 16});
  const Tensor eight = torch::zeros({8, 4, 16});
  EXPECT_EQ(refusal([&] { mamba3_mimo_qk_dot(q, q, bias, bias); }),
            "mamba3_mimo_qk_dot: num_groups must divide num_heads = 6, got 4");
  EXPECT_EQ(refusal([&] { mamba3_mimo_qk_dot(q[0], q[0], eight, eight); }),
            "mamba3_mimo_qk_dot: q must have 5 axes [batch, seqlen, num_ranks, num_groups, "
            "head_dim], got 4");
  EXPECT_EQ(refusal([&] { mamba3_mimo_qk_dot(q, q.slice(3, 0, 2), eight, eight); }),
            "mamba3_mimo_qk_dot: k must have shape [1, 2, 4, 4, 16], got [1, 2, 4, 2, 16]");
  EXPECT_EQ(refusal([&] { mamba3_mimo_qk_dot(q, q, eight, eight.to(at::kHalf)); }),
            "mamba3_mimo_qk_dot: k_bias must have dtype float32, got float16");
  EXPECT_EQ(refusal([&] { mamba3_mimo_qk_dot(q, q, eight, eight, {.layout = "rank2"}); }),
            "mamba3_mimo_qk_dot: layout must be flat or rank3, got rank2");
  EXPECT_EQ(refusal([&] { mamba3_mimo_qk_dot(q, q, eight, eight, {.copy = "bulk"}); }),
            "mamba3_mimo_qk_dot: copy must be tma or cp_async, got bulk");
  EXPECT_EQ(
      refusal([&] { mamba3_mimo_qk_dot_bwd(torch::zeros({1, 8, 2, 16}), q, q, eight, eight); }),
      "mamba3_mimo_qk_dot_bwd: grad_qk_dot must have shape [1, 8, 2, 4, 4], got [1, 8, 2, "
      "16]");
}

}  // namespace
}  // namespace patchbench::qk_dot_test
