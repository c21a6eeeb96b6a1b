// patchbench::sparse_mla against fp64 autograd through the gathered form, on every device of this
// machine.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "packs/op_test.h"
#include "sparse_mla_dims/op.h"

namespace patchbench::sparse_mla_dims_test {
namespace {

using at::Tensor;
using op_test::devices;
using ops::sparse_mla_dims::sparse_mla;
using ops::sparse_mla_dims::sparse_mla_backward;
using ops::sparse_mla_dims::sparse_mla_forward;

struct MlaCase {
  std::string name;
  int64_t head_dim_qk = 96, head_dim_v = 64;
  int64_t batch = 2, seqlen_q = 3, num_heads = 16, seqlen_k = 80, topk = 64;
  std::string data = "iid";
};

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
          {.name = "many_heads", .batch = 1, .num_heads = 129, .topk = 65},
          {.name = "few_keys", .seqlen_k = 3, .topk = 12},
          {.name = "no_keys", .seqlen_k = 0},
          {.name = "no_slots", .topk = 0},
          {.name = "no_heads", .num_heads = 0},
          {.name = "no_queries", .seqlen_q = 0}};
}

struct Problem {
  Tensor q, kv, grad_out;  ///< fp64, values of the dtype under test
  Tensor indices;
  double softmax_scale = 0;
  int64_t head_dim_v = 0;
};

/// Repeats (more slots than keys, or chance), a share of -1, one index beyond the keys, and no key
/// at all for the first query.
Tensor indices_of(const MlaCase& c) {
  const std::vector<int64_t> shape = {c.batch, c.seqlen_q, 1, c.topk};
  Tensor indices = harness::Draw(2, c.name + "/indices")
                       .integers(shape, 0, std::max<int64_t>(c.seqlen_k, 1))
                       .to(at::kInt);
  indices.masked_fill_(harness::Draw(2, c.name + "/none").mask(shape, 0.1), -1);
  if (c.seqlen_k == 0) indices.fill_(-1);
  if (indices.numel() > 0) {
    indices[0][0].fill_(-1);
    indices[c.batch - 1][c.seqlen_q - 1][0][0] = static_cast<int>(c.seqlen_k) + 3;
  }
  return indices;
}

/// iid: normal. mean: keys share a mean of twice their spread, queries and grad_out one of each
/// head. sink: every query holds key 0, which lies along one direction that all queries point to.
Problem problem_of(const MlaCase& c, at::ScalarType type) {
  const auto normal = [&](const char* name, const std::vector<int64_t>& shape) {
    return harness::Draw(2, c.name + "/" + name).normal(shape);
  };
  Problem p{.indices = indices_of(c),
            .softmax_scale = 1 / std::sqrt(static_cast<double>(c.head_dim_qk)),
            .head_dim_v = c.head_dim_v};
  p.q = normal("q", {c.batch, c.seqlen_q, c.num_heads, c.head_dim_qk});
  p.kv = normal("kv", {c.batch, c.seqlen_k, 1, c.head_dim_qk});
  p.grad_out = normal("grad_out", {c.batch, c.seqlen_q, c.num_heads, c.head_dim_v});
  if (c.data != "iid") {
    const Tensor direction = normal("direction", {c.head_dim_qk});
    if (c.data == "mean") {
      p.q = p.q + normal("mean_q", {c.num_heads, c.head_dim_qk});
      p.kv = p.kv + 2 * direction;
      p.grad_out = p.grad_out + normal("mean_grad", {c.num_heads, c.head_dim_v});
    } else {
      p.q = p.q + direction;
      p.kv.select(1, 0).copy_(direction);
      p.indices.select(3, 0).zero_();
    }
  }
  for (Tensor* tensor : {&p.q, &p.kv, &p.grad_out}) *tensor = tensor->to(type).to(at::kDouble);
  return p;
}

struct Result {
  Tensor out, lse, grad_q, grad_kv;
  std::vector<std::pair<std::string, Tensor>> named() const {
    return {{"out", out}, {"lse", lse}, {"grad_q", grad_q}, {"grad_kv", grad_kv}};
  }
};

/// All of it in fp64, gradients by autograd.
Result oracle(const Problem& p) {
  const Tensor q = p.q.detach().clone().requires_grad_();
  const Tensor kv = p.kv.detach().clone().requires_grad_();
  const Tensor index = p.indices.squeeze(2).to(at::kLong);
  const Tensor is_key = index.ge(0).logical_and(index.lt(kv.size(1)));
  const Tensor none = torch::zeros({q.size(0), 1, kv.size(3)}, at::kDouble);
  const Tensor rows = at::cat({kv.squeeze(2), none}, 1);  // the last one is no key
  std::vector<Tensor> outs, lses;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const Tensor k = at::embedding(rows[b], at::where(is_key[b], index[b], kv.size(1)));
    const Tensor logits = at::einsum("shd,skd->shk", {q[b], k}) * p.softmax_scale;
    const Tensor weight = at::where(is_key[b].unsqueeze(1), logits.exp(), 0.0);
    const Tensor sum = weight.sum(-1, true);
    const Tensor value = at::einsum("shk,skd->shd", {weight, k.narrow(-1, 0, p.head_dim_v)});
    outs.push_back(at::where(sum.gt(0), value / sum.clamp_min(1e-300), 0.0));
    lses.push_back(at::where(sum.gt(0), sum.clamp_min(1e-300).log2(), 0.0).squeeze(-1));
  }
  Result r{at::stack(outs), at::stack(lses), {}, {}};
  const auto grads = torch::autograd::grad({r.out}, {q, kv}, {p.grad_out});
  r.grad_q = grads[0];
  r.grad_kv = grads[1];
  return r;
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

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

/// Of a norm. bfloat16: one rounding costs 1.66e-3 in the mean of squares; P or dS and the result
/// are rounded, 2.35e-3 on iid data. float32, float64: sums of up to 576 terms and then topk.
double bound_of(at::ScalarType type) {
  return type == at::kBFloat16 ? 4e-3 : type == at::kFloat ? 5e-6 : 1e-14;
}

using Point = std::tuple<MlaCase, std::string, at::ScalarType>;
class SparseMla : public testing::TestWithParam<Point> {};

TEST_P(SparseMla, IsTheAttentionOverTheNamedKeysWithItsGradients) {
  const auto& [c, device, type] = GetParam();
  const Problem p = problem_of(c, type);
  const auto wanted = oracle(p).named(), got = result_of(p, type, device).named();
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    ASSERT_EQ(tensor.sizes(), wanted[i].second.sizes()) << name;
    const bool is_lse = name == "lse";
    ASSERT_EQ(tensor.scalar_type(), is_lse && type == at::kBFloat16 ? at::kFloat : type) << name;
    const double bound = bound_of(is_lse && type == at::kBFloat16 ? at::kFloat : type);
    // A nan fails too.
    EXPECT_TRUE(relative(tensor, wanted[i].second) <= bound)
        << name << ": " << relative(tensor, wanted[i].second);
    if (tensor.numel() == 0) continue;
    const harness::Errors errors = harness::errors_of(tensor.cpu(), wanted[i].second);
    // A query with one key has no grad_q: what rounding leaves is set against 1e-3 of the largest.
    const double row_bound = (type == at::kBFloat16 ? 3 : 100) * bound;
    EXPECT_TRUE(errors.row <= row_bound) << name << errors.worst_row << ": " << errors.row;
  }
}

TEST_P(SparseMla, RepeatsItsForwardAndGradQBitForBit) {
  const auto& [c, device, type] = GetParam();
  const Problem p = problem_of(c, type);
  const Result once = result_of(p, type, device), twice = result_of(p, type, device);
  EXPECT_TRUE(at::equal(once.out, twice.out) && at::equal(once.lse, twice.lse));
  EXPECT_TRUE(at::equal(once.grad_q, twice.grad_q));
}

TEST_P(SparseMla, KeepsTheIdentityOfItsGradients) {
  // sum <kv, grad_kv> = sum <q, grad_q> + sum <out, grad_out>: a lost or doubled addition breaks
  // it.
  const auto& [c, device, type] = GetParam();
  const Problem p = problem_of(c, type);
  const Result r = result_of(p, type, device);
  const auto dot = [](const Tensor& a, const Tensor& b) {
    return (a * b.cpu().to(at::kDouble)).sum().item<double>();
  };
  const double left = dot(p.kv, r.grad_kv), right = dot(p.q, r.grad_q) + dot(p.grad_out, r.out);
  const double size = (p.kv.norm() * r.grad_kv.cpu().to(at::kDouble).norm()).item<double>();
  EXPECT_LE(std::abs(left - right), bound_of(type) * size);
}

std::string point_name(const testing::TestParamInfo<Point>& info) {
  const auto& [c, device, type] = info.param;
  return c.name + "_" + device.substr(0, device.find(':')) + "_" + c10::getDtypeNames(type).first;
}

INSTANTIATE_TEST_SUITE_P(Cases, SparseMla,
                         testing::Combine(testing::ValuesIn(mla_cases()),
                                          testing::ValuesIn(devices()),
                                          testing::Values(at::kBFloat16, at::kFloat, at::kDouble)),
                         point_name);

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

TEST(SparseMlaOp, IsDifferentiableThroughItsOutput) {
  for (const std::string& device : devices()) {
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      for (const char* delta : {"exact", "rounded"}) {
        const Problem p = problem_of({.name = "autograd"}, type);
        const Tensor q = p.q.to(type).to(device).requires_grad_();
        const Tensor kv = p.kv.to(type).to(device).requires_grad_();
        const auto [out, lse] =
            sparse_mla(q, kv, p.indices.to(device), p.softmax_scale, p.head_dim_v, delta);
        EXPECT_FALSE(lse.requires_grad());
        // The gradient of a sum has stride 0.
        out.sum().backward();
        Problem ones = p;
        ones.grad_out = torch::ones_like(p.grad_out);
        const Result wanted = oracle(ones);
        EXPECT_LE(relative(kv.grad(), wanted.grad_kv), 2 * bound_of(type)) << delta;
        EXPECT_LE(relative(q.grad(), wanted.grad_q), 2 * bound_of(type)) << delta;
      }
    }
  }
}

TEST(SparseMlaOp, PassesItsModesToTheBackward) {
  const Problem p = problem_of({.name = "modes", .batch = 1, .data = "mean"}, at::kBFloat16);
  for (const char* delta : {"exact", "rounded"}) {
    for (const char* staging : {"bf16", "split"}) {
      const Tensor q = p.q.to(at::kBFloat16).requires_grad_(), kv = p.kv.to(at::kBFloat16);
      const Tensor out =
          std::get<0>(sparse_mla(q, kv, p.indices, p.softmax_scale, p.head_dim_v, delta, staging));
      out.backward(p.grad_out.to(at::kBFloat16));
      for (const char* other : {"exact", "rounded"}) {
        for (const char* another : {"bf16", "split"}) {
          const Result r = result_of(p, at::kBFloat16, at::kCPU, other, another);
          const bool is_same = std::string(delta) == other && std::string(staging) == another;
          EXPECT_EQ(at::equal(q.grad(), r.grad_q), is_same) << delta << staging << other << another;
        }
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

}  // namespace
}  // namespace patchbench::sparse_mla_dims_test
