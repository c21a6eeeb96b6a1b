// The kernels of patchbench::sparse_mla_fp8, run by a machine of fibers on the host against fp64:
// their layouts, descriptors, index sums and barriers. What a GPU alone can tell, its sums of e4m3
// products among it, the op's test tells on one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "harness/compare.h"
#include "packs/fp8_storage_dispatch_reference.h"
#include "packs/sm90_emulator.h"

// Over the machine's primitives.
#include "fp8_storage_dispatch/sm90_backward.h"
#include "fp8_storage_dispatch/sm90_forward.h"
#include "fp8_storage_dispatch/sm90_keys.h"
#include "fp8_storage_dispatch/sm90_rows_forward.h"

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

Forward forward_of_kernel(const Problem& p, Timing timing, double softmax_scale = kScale) {
  const SparseMla problem = problem_on(p, softmax_scale);
  auto shape = p.q.payload.sizes().vec();
  shape.back() = kDimV;
  // What is not written stays no number.
  const auto none = [&](at::ScalarType type) {
    return torch::full(shape, std::numeric_limits<double>::quiet_NaN(), type);
  };
  Forward r{none(at::kBFloat16), none(at::kFloat).select(3, 0).contiguous()};
  const auto run = problem.kv_scale != nullptr
                       ? problem.kv_scale_stride != 0 ? run_rows<true> : run_rows<false>
                   : problem.q_scale != nullptr ? run_forward<Form::kBlock>
                                                : run_forward<Form::kBlockDenseQuery>;
  run(problem, static_cast<uint16_t*>(r.out.data_ptr()), r.lse.data_ptr<float>(), timing);
  return r;
}

template <bool kIsBlock>
void run_backward(const SparseMla& p, const SparseMlaGrads& g, Timing timing) {
  for (int64_t item = 0; item < num_items(p); ++item) {
    Machine machine(static_cast<size_t>(kBackwardBytes), timing, kBackwardThreads);
    machine.run([&] {
      Operands<kIsBlock> operands(p, g, cta_of(p, item), machine.shared());
      backward_cta(operands);
    });
  }
}

struct Backward {
  Tensor grad_q, grad_kv;
};

/// Of the forward's results; grad_kv before it is rounded.
Backward backward_of_kernel(const Problem& p, const Forward& forward, Timing timing,
                            double softmax_scale = kScale) {
  const SparseMla problem = problem_on(p, softmax_scale);
  const Tensor grad_out = p.grad_out.to(at::kBFloat16);
  Backward r{torch::full(p.q.payload.sizes(), std::numeric_limits<double>::quiet_NaN(),
                         at::TensorOptions(at::kBFloat16)),
             torch::zeros({p.k.payload.size(0), p.k.payload.size(1), 1, kDim}, at::kFloat)};
  const auto run = problem.kv_scale != nullptr ? run_backward<false> : run_backward<true>;
  run(problem,
      {.grad_out = static_cast<const uint16_t*>(grad_out.const_data_ptr()),
       .out = static_cast<const uint16_t*>(forward.out.const_data_ptr()),
       .lse = forward.lse.const_data_ptr<float>(),
       .grad_q = static_cast<uint16_t*>(r.grad_q.data_ptr()),
       .grad_kv = r.grad_kv.data_ptr<float>()},
      timing);
  return r;
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
          {.name = "block_stored_query",
           .layout = "block",
           .batch = 1,
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
  // A nan fails too.
  EXPECT_TRUE(relative(got.out, wanted.out) <= kKernelBound) << relative(got.out, wanted.out);
  EXPECT_TRUE(at::allclose(got.lse.to(at::kDouble), wanted.lse, 0, 1e-4));
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
  EXPECT_TRUE(relative(got.out, wanted.out) <= kKernelBound) << relative(got.out, wanted.out);
  EXPECT_TRUE(at::allclose(got.lse.to(at::kDouble), wanted.lse, 0, 1e-4));
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
      EXPECT_TRUE(relative(got.out, wanted.out) <= kKernelBound) << layout << scale;
      EXPECT_TRUE(at::allclose(got.lse.to(at::kDouble), wanted.lse, 0, 1e-4)) << layout << scale;
      const Backward gradients = backward_of_kernel(p, got, {}, scale);
      expect_gradients(gradients,
                       {.grad_q = wanted.grad_q * (scale / kScale), .grad_kv = wanted.grad_kv},
                       layout);
    }
  }
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

TEST(SparseMlaFp8KernelKeys, AreTheStoredValuesInBfloat16) {
  for (const double block_scale : {1.0, 1.3}) {
    const Problem p =
        problem_of({.name = "keys", .layout = "block", .block_scale = block_scale}, at::kCPU);
    Tensor bytes = p.k.payload.narrow(-1, 0, kDimV);
    for (int64_t i = 0; i < 256; ++i) bytes.flatten(0, 2)[i / 128][i % 128] = i;  // each e4m3
    const Tensor got = torch::full({2, 96, 1, kDim}, 7, at::kBFloat16);
    const int64_t parts = 2 * 96 * kKeyParts;
    for (int64_t part = 0; part < parts + kDequantizeThreads; ++part)
      dequantize_part(problem_on(p, kScale), part, static_cast<uint16_t*>(got.data_ptr()));
    const Tensor wanted = dequantize_mla(p.k).to(at::kBFloat16);
    EXPECT_TRUE(at::allclose(got, wanted, 0, 0, /*equal_nan=*/true)) << block_scale;
  }
}

}  // namespace
}  // namespace patchbench::sparse_mla_fp8_test
