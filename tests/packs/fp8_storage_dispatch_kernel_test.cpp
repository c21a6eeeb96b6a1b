// The kernels of patchbench::sparse_mla_fp8, run by a machine of fibers on the host against fp64:
// their layouts, descriptors, index sums and barriers. What a GPU alone can tell, its sums of e4m3
// products among it, the op's test tells on one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "harness/compare.h"
#include "packs/fp8_storage_dispatch_reference.h"
#include "packs/sm90_emulator.h"

// Over the machine's primitives.
#include "fp8_storage_dispatch/sm90_forward.h"
#include "fp8_storage_dispatch/sm90_rows_forward.h"
#include "fp8_storage_dispatch/sm90_stored_query.h"
#include "fp8_storage_dispatch/sm90_widen.h"
#include "sparse_mla_dims/sm90_scaled_backward.h"

namespace patchbench::sparse_mla_fp8_test {
namespace {

using namespace ops::fp8_storage_dispatch;
using sm90_emulator::Machine;
using sm90_emulator::Timing;

SparseMla problem_on(const Problem& p, double softmax_scale) {
  const auto scale = [](const Fp8Storage& s) {
    return s.scale ? s.scale->const_data_ptr<float>() : nullptr;
  };
  const auto stride = [](const Fp8Storage& s) {
    return s.scale && s.scale->numel() > 1 ? int64_t{1} : int64_t{0};
  };
  return {.q = p.q.payload.const_data_ptr(),
          .q_scale = scale(p.q),
          .q_scale_stride = stride(p.q),
          .kv = static_cast<const uint8_t*>(p.k.payload.const_data_ptr()),
          .kv_scale = scale(p.k),
          .kv_scale_stride = stride(p.k),
          .indices = p.indices.const_data_ptr<int32_t>(),
          .batch = p.q.payload.size(0),
          .seqlen_q = p.q.payload.size(1),
          .seqlen_k = p.k.payload.size(1),
          .num_heads = p.q.payload.size(2),
          .topk = p.indices.size(3),
          .softmax_scale = static_cast<float>(softmax_scale)};
}

template <Form kForm>
void run_forward(const SparseMla& p, uint16_t* out, float* lse, Timing timing) {
  for (int64_t z = 0; z < p.batch; ++z) {
    for (int64_t y = 0; y < (p.num_heads + kRows - 1) / kRows; ++y) {
      for (int64_t x = 0; x < p.seqlen_q; ++x) {
        Machine machine(static_cast<size_t>(kForwardBytes), timing);
        machine.run([&] { forward_cta<kForm>(p, out, lse, Cta(p, x, y, z), machine.shared()); });
      }
    }
  }
}

/// CTAs at a time: each takes several items.
constexpr int64_t kRowsGrid = 2;

template <bool kIsToken>
void run_rows(const SparseMla& p, uint16_t* out, float* lse, Timing timing) {
  for (int64_t x = 0; x < kRowsGrid; ++x) {
    Machine machine(static_cast<size_t>(kRowsBytes), timing, kRowsThreads);
    machine.run(
        [&] { rows_forward_cta<kIsToken>(p, out, lse, Items{x, kRowsGrid}, machine.shared()); });
  }
}

struct Forward {
  Tensor out, lse;
};

/// What is not written stays no number.
Forward unwritten(const Problem& p) {
  auto shape = p.q.payload.sizes().vec();
  shape.back() = kDimV;
  const auto none = [&](at::ScalarType type) {
    return torch::full(shape, std::numeric_limits<double>::quiet_NaN(), type);
  };
  return {none(at::kBFloat16), none(at::kFloat).select(3, 0).contiguous()};
}

Forward forward_of_kernel(const Problem& p, Timing timing, double softmax_scale = kScale) {
  const SparseMla problem = problem_on(p, softmax_scale);
  const Forward r = unwritten(p);
  const auto run = problem.kv_scale != nullptr
                       ? problem.kv_scale_stride != 0 ? run_rows<true> : run_rows<false>
                   : problem.q_scale != nullptr ? run_forward<Form::kBlock>
                                                : run_forward<Form::kBlockDenseQuery>;
  run(problem, static_cast<uint16_t*>(r.out.data_ptr()), r.lse.data_ptr<float>(), timing);
  return r;
}

namespace dims = ops::sparse_mla_dims;

void widen(const Tensor& stored, uint16_t* to) {
  const auto* from = static_cast<const uint8_t*>(stored.const_data_ptr());
  if (stored.scalar_type() == at::kByte) {
    for (int64_t part = 0; part < stored.numel() / kBlockRowBytes * kBlockParts; ++part)
      widen_block_part(from, part, to);
  } else {
    for (int64_t part = 0; part < stored.numel() / 16; ++part) widen_part(from, part, to);
  }
}

uint16_t* bits(const Tensor& tensor) { return static_cast<uint16_t*>(tensor.data_ptr()); }

/// Keys in bfloat16, without kv_scale.
Tensor widened_keys(const Problem& p) {
  const Tensor keys = torch::empty({p.k.payload.size(0), p.k.payload.size(1), 1, kDim},
                                   at::TensorOptions(at::kBFloat16));
  widen(p.k.payload, bits(keys));
  return keys;
}

dims::SparseMla wide_problem(const SparseMla& stored, const Tensor& q, const Tensor& keys) {
  return {.q = bits(q),
          .q_stride_batch = q.stride(0),
          .q_stride_query = q.stride(1),
          .q_stride_head = q.stride(2),
          .kv = bits(keys),
          .kv_stride_batch = keys.stride(0),
          .kv_stride_key = keys.stride(1),
          .indices = stored.indices,
          .batch = stored.batch,
          .seqlen_q = stored.seqlen_q,
          .seqlen_k = stored.seqlen_k,
          .num_heads = stored.num_heads,
          .topk = stored.topk,
          .head_dim_qk = kHeadDim,
          .head_dim_v = kHeadDimV,
          .softmax_scale = stored.softmax_scale};
}

/// Of a stored query on keys that were widened once.
Forward forward_of_stored_query(const Problem& p, Timing timing, double softmax_scale = kScale) {
  const SparseMla stored = problem_on(p, softmax_scale);
  const Forward r = unwritten(p);
  const Tensor keys = widened_keys(p);
  const dims::SparseMla problem = wide_problem(stored, p.q.payload, keys);
  for (int64_t x = 0; x < kRowsGrid; ++x) {
    Machine machine(static_cast<size_t>(kStoredQueryBytes), timing, dims::kForwardThreads);
    machine.run([&] {
      dims::forward_cta<kHeadDimV / kColumns / 2>(
          problem, {.out = bits(r.out), .lse = r.lse.data_ptr<float>()}, dims::Items{x, kRowsGrid},
          machine.shared(), StoredQuery{stored.q_scale, stored.q_scale_stride});
    });
  }
  return r;
}

template <int kHeadSteps>
void run_backward(const dims::SparseMla& p, const dims::SparseMlaGrads& g,
                  const dims::SparseMlaScales& scales, Timing timing) {
  for (int64_t item = 0; item < dims::num_items(p); ++item) {
    Machine machine(static_cast<size_t>(dims::kScaledBytes), timing, dims::kBackwardThreads);
    machine.run([&] {
      dims::backward_cta(
          dims::ScaledOperands<kHeadSteps>(p, g, scales, dims::Cta(p, item), machine.shared()));
    });
  }
}

struct Backward {
  Tensor grad_q, grad_kv;
};

/// Of the forward's results, as the op calls the kernel.
Backward backward_of_kernel(const Problem& p, const Forward& forward, Timing timing,
                            double softmax_scale = kScale) {
  const SparseMla stored = problem_on(p, softmax_scale);
  const Tensor grad_out = p.grad_out.to(at::kBFloat16);
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<int64_t> keys = {stored.batch, stored.seqlen_k, 1, kDim};
  Backward r{torch::full(p.q.payload.sizes(), nan, at::TensorOptions(at::kBFloat16)),
             torch::full(keys, nan, at::TensorOptions(at::kBFloat16))};
  const Tensor wide = widened_keys(p), sum = torch::zeros(keys, at::kFloat);
  if (p.q.scale) widen(p.q.payload, bits(r.grad_q));
  const dims::SparseMla problem = wide_problem(stored, p.q.scale ? r.grad_q : p.q.payload, wide);
  const dims::SparseMlaGrads grads{.grad_out = bits(grad_out),
                                   .out = bits(forward.out),
                                   .lse = forward.lse.const_data_ptr<float>(),
                                   .grad_q = bits(r.grad_q),
                                   .grad_kv_sum = sum.data_ptr<float>(),
                                   .grad_kv = bits(r.grad_kv)};
  const dims::SparseMlaScales scales{stored.q_scale, stored.q_scale_stride, stored.kv_scale,
                                     stored.kv_scale_stride};
  const int steps = dims::head_steps(stored.num_heads);
  const auto run = steps == 1 ? run_backward<1> : steps == 2 ? run_backward<2> : run_backward<4>;
  run(problem, grads, scales, timing);
  for (int64_t group = 0; group < sum.numel() / dims::kGroupColumns; ++group)
    dims::store_grad_kv(grads, group);
  return r;
}

/// A nan fails too.
void expect_values(const Forward& got, const Result& wanted, const std::string& what = "") {
  EXPECT_TRUE(relative(got.out, wanted.out) <= kKernelBound)
      << what << relative(got.out, wanted.out);
  EXPECT_TRUE(at::allclose(got.lse.to(at::kDouble), wanted.lse, 0, 1e-4))
      << what << (got.lse.to(at::kDouble) - wanted.lse).abs().max().item<double>();
}

/// Both gradients, as the op's test bounds them.
void expect_gradients(const Backward& got, const Result& wanted, const std::string& what = "") {
  EXPECT_TRUE(relative(got.grad_q, wanted.grad_q) <= 2 * kKernelBound)
      << what << relative(got.grad_q, wanted.grad_q);
  EXPECT_TRUE(relative(got.grad_kv, wanted.grad_kv) <= 2 * kKernelBound)
      << what << relative(got.grad_kv, wanted.grad_kv);
}

std::vector<MlaCase> kernel_cases() {
  return {{.name = "tensor", .batch = 1, .topk = 130},
          {.name = "token", .layout = "token", .seqlen_q = 2, .num_heads = 64},
          {.name = "block", .layout = "block", .batch = 1, .topk = 130},
          // A CTA has two queries that have keys, of different scales.
          {.name = "block_stored_query",
           .layout = "block",
           .batch = 1,
           .seqlen_q = 5,
           .topk = 130,
           .is_query_stored = true},
          {.name = "odd_block_scales",
           .layout = "block",
           .batch = 1,
           .is_query_stored = true,
           .block_scale = 1.3},
          {.name = "sharp", .layout = "token", .batch = 1, .topk = 200, .sharpness = 4},
          // Maxima grow by more than a weight has room for, in either warpgroup's tiles.
          {.name = "growing", .layout = "tensor", .batch = 1, .topk = 330, .sharpness = 40},
          {.name = "rising",
           .layout = "token",
           .batch = 1,
           .seqlen_k = 400,
           .topk = 400,
           .sharpness = 4,
           .is_rising = true},
          {.name = "many_heads",
           .layout = "block",
           .batch = 1,
           .seqlen_q = 2,
           .num_heads = 65,
           .topk = 70,
           .is_query_stored = true},
          {.name = "few_keys", .layout = "token", .seqlen_k = 3, .topk = 5},
          {.name = "no_keys", .seqlen_k = 0, .topk = 16},
          {.name = "no_slots", .layout = "block", .topk = 0}};
}

class SparseMlaFp8Kernel : public testing::TestWithParam<std::tuple<MlaCase, Timing>> {};

TEST_P(SparseMlaFp8Kernel, IsTheSumOverTheStoredValues) {
  const auto& [c, timing] = GetParam();
  const Problem p = problem_of(c, at::kCPU);
  const Result wanted = oracle(p, stored_values(p.q), stored_values(p.k));
  const Forward got = forward_of_kernel(p, timing);
  expect_values(got, wanted);
  if (c.layout == "block" && c.is_query_stored) {
    const Tensor keys = stored_values(p.k).to(at::kBFloat16).to(at::kDouble);
    expect_values(forward_of_stored_query(p, timing), oracle(p, stored_values(p.q), keys),
                  "widened keys: ");
  }
  expect_gradients(backward_of_kernel(p, got, timing), wanted);
}

std::string timing_name(const testing::TestParamInfo<std::tuple<MlaCase, Timing>>& info) {
  const auto& [c, timing] = info.param;
  return c.name + (timing.is_late ? "_late" : "_early") +
         (timing.are_copies_early ? "_products" : "") + (timing.is_backward ? "_backward" : "") +
         (timing.is_first_preferred ? "_preferred" : "");
}

INSTANTIATE_TEST_SUITE_P(Cases, SparseMlaFp8Kernel,
                         testing::Combine(testing::ValuesIn(kernel_cases()),
                                          testing::ValuesIn(sm90_emulator::timings_of_roles())),
                         timing_name);

TEST(SparseMlaFp8KernelMean, IsTakenWithTheWeightsThatWereMultiplied) {
  // Rounding may change a weight by 2^-9 of it. Of a key that has most of the mass that would stay
  // in the row, where the divisor did not know of it; half of it is allowed to other keys.
  for (const MlaCase& c :
       {MlaCase{.name = "one_key", .layout = "token", .num_heads = 1, .seqlen_k = 1, .topk = 5},
        MlaCase{.name = "few_keys_of_blocks", .layout = "block", .seqlen_k = 2, .topk = 12},
        MlaCase{.name = "few_keys_stored_query",
                .layout = "block",
                .seqlen_k = 2,
                .topk = 12,
                .is_query_stored = true}}) {
    const Problem p = problem_of(c, at::kCPU);
    const Tensor wanted = oracle(p, stored_values(p.q), stored_values(p.k)).out;
    const double factor = worst_row_factor(forward_of_kernel(p, {}).out, wanted);
    EXPECT_TRUE(factor <= std::ldexp(1, -10)) << c.name << ": " << factor;
  }
}

/// A scale of a key is in its weight, whatever the others' are; that of one is 0: it has no value,
/// but weight.
TEST(SparseMlaFp8KernelScales, MayDifferByMuchAndBeZero) {
  Problem p = problem_of({.name = "scales", .layout = "token", .batch = 1, .topk = 200}, at::kCPU);
  const Tensor scale = p.k.scale->view({-1});
  for (int64_t i = 0; i < scale.numel(); ++i)
    scale[i] *= std::ldexp(1, static_cast<int>(i % 25) - 20);
  scale[5] = 0;
  const Result wanted = oracle(p, stored_values(p.q), stored_values(p.k));
  const Forward got = forward_of_kernel(p, {});
  expect_values(got, wanted);
}

/// They are factors of the backward's operands, and divided out of its sums.
TEST(SparseMlaFp8KernelScales, AreInEachRowOfTheGradientsOnce) {
  Problem p = problem_of({.name = "rows", .layout = "token", .batch = 1, .topk = 200}, at::kCPU);
  const auto shrink = [](const Tensor& scales, int count, int64_t zero) {
    const Tensor scale = scales.view({-1});
    for (int64_t i = 0; i < scale.numel(); ++i)
      scale[i] *= std::ldexp(1, -static_cast<int>(i % count));
    scale[zero] = 0;
  };
  shrink(*p.k.scale, 25, 5);
  shrink(*p.q.scale, 7, 20);
  const Result wanted = oracle(p, stored_values(p.q), stored_values(p.k));
  const Backward got = backward_of_kernel(p, forward_of_kernel(p, {}), {});
  expect_gradients(got, wanted);
  EXPECT_LE(harness::errors_of(got.grad_q, wanted.grad_q).row, 2 * kKernelBound);
  EXPECT_LE(harness::errors_of(got.grad_kv, wanted.grad_kv).row, 2 * kKernelBound);
}

/// Maxima are taken of products that are not scaled yet.
TEST(SparseMlaFp8KernelScales, OfTheLogitsMayBeNegativeOrZero) {
  for (const double scale : {1.0 / 24, -1.0 / 24, 0.0}) {
    for (const char* layout : {"tensor", "token"}) {
      Problem p = problem_of({.name = "sign", .layout = layout, .batch = 1, .topk = 130}, at::kCPU);
      // Of all rows, or of the first.
      p.q.scale->view({-1})[0] *= -1;
      const Forward got = forward_of_kernel(p, {}, scale);
      // The oracle's scale is fixed: the query has the factor.
      const Result wanted = oracle(p, stored_values(p.q) * (scale / kScale), stored_values(p.k));
      expect_values(got, wanted, layout);
      const Backward gradients = backward_of_kernel(p, got, {}, scale);
      expect_gradients(gradients,
                       {.grad_q = wanted.grad_q * (scale / kScale), .grad_kv = wanted.grad_kv},
                       layout);
    }
  }
}

TEST(SparseMlaFp8KernelScales, OfAStoredQueryMayDifferAndBeNegativeOrZero) {
  Problem p = problem_of({.name = "query", .layout = "block", .topk = 130, .is_query_stored = true},
                         at::kCPU);
  const Tensor scale = p.q.scale->view({-1});
  for (int64_t i = 0; i < scale.numel(); ++i) scale[i] *= static_cast<double>(i % 5) - 2;
  const Result wanted = oracle(p, stored_values(p.q), stored_values(p.k));
  expect_values(forward_of_stored_query(p, {}), wanted);
}

TEST(SparseMlaFp8KernelTurns, AnswersTheSameHoweverItsThreadsTakeThem) {
  const Problem p = problem_of({.name = "turns", .layout = "token", .topk = 200}, at::kCPU);
  const Forward wanted = forward_of_kernel(p, {});
  const Tensor grad_q = backward_of_kernel(p, wanted, {}).grad_q;
  for (const Timing timing : sm90_emulator::timings_of_roles()) {
    const Forward got = forward_of_kernel(p, timing);
    EXPECT_TRUE(at::equal(got.out, wanted.out) && at::equal(got.lse, wanted.lse));
    EXPECT_TRUE(at::equal(backward_of_kernel(p, got, timing).grad_q, grad_q));
  }
}

TEST(SparseMlaFp8KernelWiden, GivesTheStoredValuesInBfloat16) {
  for (const char* layout : {"tensor", "block"}) {
    for (const double block_scale : {1.0, 1.3}) {
      Problem p = problem_of({.name = "keys", .layout = layout}, at::kCPU);
      const Tensor bytes = p.k.payload.view(at::kByte).flatten(0, 2);
      for (int64_t i = 0; i < 256; ++i) bytes[i / 128][i % 128] = i;  // each e4m3
      if (p.k.scale) {
        p.k.scale->fill_(1);
      } else {
        bytes.narrow(-1, kDimV, 16).view(at::kFloat).mul_(block_scale);
      }
      const Tensor got = torch::full({2, 96, 1, kDim}, 7, at::kBFloat16);
      widen(p.k.payload, static_cast<uint16_t*>(got.data_ptr()));
      const Tensor wanted = dequantize_mla(p.k).to(at::kBFloat16);
      EXPECT_TRUE(at::allclose(got, wanted, 0, 0, /*equal_nan=*/true)) << layout << block_scale;
    }
  }
}

}  // namespace
}  // namespace patchbench::sparse_mla_fp8_test
