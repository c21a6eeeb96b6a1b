// The kernels of patchbench::mamba3_siso_rotary_bwd, run by a machine of fibers on the host against
// fp64 autograd: their layouts, trades, sums and barriers. What a GPU alone can tell stays to be
// seen there.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "harness/compare.h"
#include "mamba3_siso_bwd_cse_rotary_reference.h"
#include "packs/sm90_emulator.h"

// Over the machine's primitives.
#include "mamba3_siso_bwd_cse/rotary_cta.h"

namespace patchbench::mamba3_siso_rotary_test {
namespace {

using ops::mamba3_siso_bwd_cse::RotaryBackward;
using sm90_emulator::Machine;
using sm90_emulator::Timing;
namespace rotary = ops::mamba3_siso_bwd_cse::rotary;

TEST(RotaryBlocks, AreAsLongAsTheGpuAtHandIsFilled) {
  RotaryBackward problem;
  problem.batch = 2;
  problem.num_groups = 8;
  problem.seqlen = 6144;
  // 768 blocks of 128 tokens: three waves of 114 multiprocessors with two CTAs each, not of 132.
  EXPECT_EQ(ops::mamba3_siso_bwd_cse::rotary_block_tokens(problem, 114), 128);
  EXPECT_EQ(ops::mamba3_siso_bwd_cse::rotary_block_tokens(problem, 132), 64);
  problem.seqlen = 64;
  EXPECT_EQ(ops::mamba3_siso_bwd_cse::rotary_block_tokens(problem, 132), 32);
}

struct KernelCase {
  RotaryCase problem;
  int64_t block_tokens = 64;
};

std::vector<KernelCase> kernel_cases() {
  return {{{.name = "model"}},
          {{.name = "all_turned", .seqlen = 70, .num_angles = 64}},
          {{.name = "narrow", .head_dim_qk = 64, .num_angles = 16}, 32},
          {{.name = "narrow_all_turned", .seqlen = 70, .head_dim_qk = 64, .num_angles = 32}},
          {{.name = "whole_blocks", .batch = 1, .seqlen = 128, .num_groups = 1}},
          {{.name = "odd_heads", .seqlen = 70, .num_groups = 1, .num_heads = 3}, 128},
          {{.name = "own_groups", .seqlen = 33, .num_groups = 2, .num_heads = 2}, 32},
          {{.name = "many_heads", .batch = 1, .seqlen = 9, .num_groups = 1, .num_heads = 20}},
          {{.name = "one_token", .batch = 1, .seqlen = 1, .num_groups = 1, .num_heads = 1}}};
}

/// Runs `body` for each CTA of a grid.
template <typename Body>
void run_grid(const std::vector<int64_t>& extents, size_t bytes, Timing timing, const Body& body) {
  for (int64_t z = 0; z < extents[2]; ++z) {
    for (int64_t y = 0; y < extents[1]; ++y) {
      for (int64_t x = 0; x < extents[0]; ++x) {
        Machine machine(bytes, timing);
        machine.run([&] { body(x, y, z, machine.shared()); });
      }
    }
  }
}

template <int kN, int kR>
void run_kernels(const RotaryBackward& p, Timing timing) {
  using shape_t = rotary::Shape<kN, kR>;
  const auto bytes = static_cast<size_t>(shape_t::bytes(p.num_heads / p.num_groups));
  const auto ctas_of = [](int64_t threads) {
    return (threads + rotary::kThreads - 1) / rotary::kThreads;
  };
  run_grid({p.num_groups, p.num_blocks, p.batch}, bytes, timing,
           [&](int64_t x, int64_t y, int64_t z, unsigned char* shared) {
             rotary::turn_cta<kN, kR>(p, x, y, z, shared);
           });
  run_grid({ctas_of(p.num_heads * shape_t::kColumns), 1, 1}, 0, timing,
           [&](int64_t x, int64_t, int64_t, unsigned char*) { rotary::sum_cta<kN, kR>(p, x); });
  run_grid({ctas_of(p.num_heads * kR / 2), p.num_blocks, p.batch}, 0, timing,
           [&](int64_t x, int64_t y, int64_t z, unsigned char*) {
             rotary::angle_cta<kN, kR>(p, x, y, z);
           });
}

RotaryGradients run(const KernelCase& c, const Call& call, Timing timing) {
  const auto& [in, grad] = call;
  const auto like = [](const Tensor& t) { return torch::full_like(t, NAN); };
  const RotaryGradients to{like(in.q),      like(in.k),  like(in.q_bias), like(in.k_bias),
                           like(in.angles), like(in.dt), like(in.trap)};
  RotaryBackward p;
  p.batch = c.problem.batch;
  p.seqlen = c.problem.seqlen;
  p.num_groups = c.problem.num_groups;
  p.num_heads = c.problem.num_heads;
  p.head_dim_qk = c.problem.head_dim_qk;
  p.num_angles = c.problem.num_angles;
  p.block_tokens = c.block_tokens;
  p.num_blocks = (p.seqlen + p.block_tokens - 1) / p.block_tokens;
  const Tensor cumsum = like(in.angles.to(at::kFloat)), scale = like(in.dt), gamma = like(in.dt);
  const Tensor sums = torch::full(
      {p.batch, p.num_blocks, p.num_heads, 2 * p.head_dim_qk + p.num_angles}, NAN, at::kFloat);
  p.q = in.q.const_data_ptr();
  p.k = in.k.const_data_ptr();
  p.q_bias = in.q_bias.const_data_ptr<float>();
  p.k_bias = in.k_bias.const_data_ptr<float>();
  p.angles = in.angles.const_data_ptr();
  p.angles_cumsum = in.angles_cumsum.const_data_ptr();
  p.dt = in.dt.const_data_ptr<float>();
  p.trap = in.trap.const_data_ptr<float>();
  p.grad_q_rotated = grad.q_rotated.const_data_ptr();
  p.grad_k_scaled = grad.k_scaled.const_data_ptr();
  p.grad_qk_dot = grad.qk_dot.const_data_ptr<float>();
  p.grad_q = to.q.mutable_data_ptr();
  p.grad_k = to.k.mutable_data_ptr();
  p.grad_q_bias = to.q_bias.mutable_data_ptr<float>();
  p.grad_k_bias = to.k_bias.mutable_data_ptr<float>();
  p.grad_angles = to.angles.mutable_data_ptr();
  p.grad_dt = to.dt.mutable_data_ptr<float>();
  p.grad_trap = to.trap.mutable_data_ptr<float>();
  p.grad_cumsum = cumsum.mutable_data_ptr<float>();
  p.grad_scale = scale.mutable_data_ptr<float>();
  p.grad_gamma = gamma.mutable_data_ptr<float>();
  p.sums = sums.mutable_data_ptr<float>();
  const bool is_half = 2 * p.num_angles == p.head_dim_qk;
  if (p.head_dim_qk == 64) {
    is_half ? run_kernels<64, 32>(p, timing) : run_kernels<64, 16>(p, timing);
  } else {
    is_half ? run_kernels<128, 64>(p, timing) : run_kernels<128, 32>(p, timing);
  }
  return to;
}

class RotaryKernels : public testing::TestWithParam<KernelCase> {};

TEST_P(RotaryKernels, GiveTheGradientsWhateverTurnTheirThreadsTake) {
  const KernelCase& c = GetParam();
  const Call p = problem_of(c.problem, at::kBFloat16);
  const Call call = call_on(p, at::kBFloat16, at::kCPU);
  const auto wanted = named(oracle(p));
  const auto got = named(run(c, call, {}));
  const auto again = named(run(c, call, {.is_late = true, .is_backward = true}));
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    const double error = relative(tensor, wanted[i].second) / harness::epsilon_of(at::kBFloat16);
    // A nan fails too. Results are rounded to half an epsilon at most.
    EXPECT_TRUE(error <= 0.5) << name << ": " << error << " epsilons";
    EXPECT_TRUE(harness::compare_bitwise(name, again[i].second, tensor).pass) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RotaryKernels, testing::ValuesIn(kernel_cases()),
                         [](const auto& point) { return point.param.problem.name; });

}  // namespace
}  // namespace patchbench::mamba3_siso_rotary_test
