// The kernels of patchbench::mamba3_mimo_bwd, run by a machine of fibers on the host against fp64
// autograd through the recurrence: their layouts, sums and barriers. What a GPU alone can tell
// stays to be seen there.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "harness/compare.h"
#include "packs/mamba3_mimo_gqa_bwd_emulator.h"
#include "packs/mamba3_mimo_gqa_bwd_oracle.h"

// Over the emulator's primitives.
#include "mamba3_mimo_gqa_bwd/mimo_gradients.cuh"
#include "mamba3_mimo_gqa_bwd/mimo_states.cuh"

namespace patchbench::mamba3_mimo_test {
namespace {

using namespace ops::mamba3_mimo_gqa_bwd;
using sm90_emulator::Timing;

std::vector<MimoCase> kernel_cases() {
  return {on_kernel({.name = "model",
                     .batch = 1,
                     .seqlen = 25,
                     .num_heads = 2,
                     .num_groups = 1,
                     .head_dim_qk = 128,
                     .num_angles = 32}),
          on_kernel({.name = "two_rows", .num_heads = 1, .num_groups = 1, .num_angles = 32}),
          on_kernel({.name = "one_rank", .batch = 1, .seqlen = 70, .num_ranks = 1, .num_heads = 2}),
          on_kernel({.name = "eight_ranks",
                     .batch = 1,
                     .seqlen = 19,
                     .num_ranks = 8,
                     .num_heads = 2,
                     .head_dim_v = 128,
                     .num_angles = 7}),
          on_kernel({.name = "widest",
                     .batch = 1,
                     .seqlen = 33,
                     .num_ranks = 2,
                     .num_heads = 1,
                     .num_groups = 1,
                     .head_dim_qk = 128,
                     .head_dim_v = 128,
                     .num_angles = 64}),
          on_kernel({.name = "bare",
                     .batch = 1,
                     .num_heads = 2,
                     .num_groups = 1,
                     .has_d = false,
                     .has_z = false,
                     .has_o = false}),
          on_kernel({.name = "packed", .num_heads = 2, .lengths = {17, 0, 16, 1, 20}})};
}

template <typename T = void>
T* data_of(const std::optional<Tensor>& tensor) {
  return tensor ? static_cast<T*>(tensor->data_ptr()) : nullptr;
}

/// Runs `kernel` for each CTA of a grid.
void launch(Cta grid, unsigned along_x, size_t shared_bytes, Timing timing,
            const std::function<void()>& kernel) {
  threads_along_x = along_x;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        sm90_emulator::Machine(shared_bytes, timing).run(kernel);
      }
    }
  }
}

/// What launch_mimo_backward launches.
template <int kN, int kP, int kRanks>
void run_kernels(const MimoBackward& problem, Timing timing) {
  const auto count = [](int64_t value) { return static_cast<unsigned>(value); };
  const unsigned heads = count(problem.num_heads), chunks = count(problem.num_chunks);
  if (problem.cu_seqlens != nullptr)
    launch({1, 1, 1}, kThreads, 0, timing, [&] { plan_kernel(problem); });
  launch({heads, chunks, 1}, kThreads, added_bytes<kN, kP>(problem), timing,
         [&] { added_kernel<kN, kP, kRanks>(problem); });
  launch({kN * kP / (kPassThreads * kPassElements), heads, count(2 * problem.num_sequences)},
         kPassThreads, 0, timing, [&] { pass_kernel(problem); });
  launch({heads, chunks, 1}, kThreads, chunk_bytes<kN, kP>(problem), timing,
         [&] { chunk_kernel<kN, kP, kRanks>(problem); });
  launch({count((problem.num_sums() + kSumColumns) / kSumColumns), heads, 1}, kSumColumns, 0,
         timing, [&] { sum_kernel(problem); });
  const int64_t steps = problem.num_chunks * problem.num_heads * problem.chunk_tokens();
  launch({count((steps + kThreads - 1) / kThreads), 1, 1}, kThreads, 0, timing,
         [&] { steps_kernel(problem); });
}

/// Takes the extents of kernel_cases() alone: each kernel takes seconds to compile.
void run_all(const MimoBackward& problem, Timing timing) {
  const auto extents = std::tuple(problem.head_dim_qk, problem.head_dim_v, problem.num_ranks);
  if (extents == std::tuple(64, 64, 1)) return run_kernels<64, 64, 1>(problem, timing);
  if (extents == std::tuple(64, 64, 4)) return run_kernels<64, 64, 4>(problem, timing);
  if (extents == std::tuple(64, 128, 8)) return run_kernels<64, 128, 8>(problem, timing);
  if (extents == std::tuple(128, 64, 4)) return run_kernels<128, 64, 4>(problem, timing);
  if (extents == std::tuple(128, 128, 2)) return run_kernels<128, 128, 2>(problem, timing);
  throw std::logic_error("kernel_cases() has extents that are not compiled");
}

MimoBackward problem_for(const MimoInputs& in, const Tensor& grad_out, const MimoGradients& g) {
  MimoBackward p{.q = data_of(in.q),
                 .k = data_of(in.k),
                 .v = data_of(in.v),
                 .z = data_of(in.z),
                 .grad_out = data_of(grad_out),
                 .trap = data_of(in.trap),
                 .adt = data_of<float>(in.adt),
                 .dt = data_of<float>(in.dt),
                 .q_bias = data_of<float>(in.q_bias),
                 .k_bias = data_of<float>(in.k_bias),
                 .mimo_v = data_of<float>(in.mimo_v),
                 .mimo_z = data_of<float>(in.mimo_z),
                 .mimo_o = data_of<float>(in.mimo_o),
                 .angles = data_of<float>(in.angles),
                 .d = data_of<float>(in.d),
                 .cu_seqlens = data_of<int32_t>(in.cu_seqlens),
                 .grad_v = data_of(g.v),
                 .grad_z = in.z ? data_of(g.z) : nullptr,
                 .grad_trap = data_of(g.trap),
                 .grad_adt = data_of<float>(g.adt),
                 .grad_dt = data_of<float>(g.dt),
                 .grad_mimo_v = data_of<float>(g.mimo_v),
                 .grad_mimo_z = in.mimo_z ? data_of<float>(g.mimo_z) : nullptr,
                 .grad_mimo_o = in.mimo_o ? data_of<float>(g.mimo_o) : nullptr,
                 .grad_angles = data_of<float>(g.angles),
                 .grad_d = in.d ? data_of<float>(g.d) : nullptr,
                 .batch = in.q.size(0),
                 .seqlen = in.q.size(1),
                 .num_ranks = in.q.size(2),
                 .num_groups = in.q.size(3),
                 .num_heads = in.v.size(2),
                 .head_dim_qk = in.q.size(4),
                 .head_dim_v = in.v.size(3),
                 .num_angles = in.angles.size(3)};
  const int64_t tokens = p.chunk_tokens();
  p.num_sequences = in.cu_seqlens ? in.cu_seqlens->size(0) - 1 : p.batch;
  p.num_chunks = in.cu_seqlens ? p.num_sequences + p.seqlen / tokens
                               : p.batch * ((p.seqlen + tokens - 1) / tokens);
  return p;
}

MimoGradients run(MimoInputs in, const Tensor& grad_out, Timing timing) {
  for (Tensor* leaf : leaves_of(in))
    if (leaf) *leaf = leaf->contiguous();
  // Elements that nobody writes are NaN.
  const auto none = [](std::vector<int64_t> shape, at::ScalarType type) {
    return torch::full(shape, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions(type));
  };
  const auto like = [&](const std::optional<Tensor>& t) {
    return t ? none(t->sizes().vec(), t->scalar_type()) : torch::empty({0});
  };
  MimoGradients g{
      {},         {},        like(in.v),      like(in.adt),    like(in.dt),     like(in.trap),
      {},         {},        like(in.mimo_v), like(in.mimo_z), like(in.mimo_o), like(in.angles),
      like(in.d), like(in.z)};
  MimoBackward p = problem_for(in, grad_out, g);
  const Tensor raw = none({2, p.batch, p.seqlen, p.num_ranks, p.num_heads, p.head_dim_qk},
                          at::kBFloat16),
               states =
                   none({2, p.num_chunks, p.num_heads, p.head_dim_v, p.head_dim_qk}, at::kBFloat16),
               decays = none({p.num_chunks, p.num_heads}, at::kFloat),
               partials = none({p.num_chunks, p.num_heads, p.num_partials()}, at::kFloat),
               steps = none({2, p.batch, p.num_heads, p.seqlen}, at::kFloat),
               spans = torch::zeros({p.num_chunks, 4}, at::kInt),
               first_chunks = torch::zeros({p.num_sequences + 1}, at::kInt);
  p.raw_q = data_of(raw[0]);
  p.raw_k = data_of(raw[1]);
  p.states = data_of(states[0]);
  p.grad_states = data_of(states[1]);
  p.decays = data_of<float>(decays);
  p.partials = data_of<float>(partials);
  p.grad_steps = data_of<float>(steps[0]);
  p.grad_own = data_of<float>(steps[1]);
  p.spans = data_of<int32_t>(spans);
  p.first_chunks = data_of<int32_t>(first_chunks);
  run_all(p, timing);
  std::tie(g.q, g.k, g.q_bias, g.k_bias) = group_reduce_bwd(raw[0], raw[1], p.num_groups);
  return g;
}

class MimoKernels : public testing::TestWithParam<std::tuple<MimoCase, Timing>> {};

TEST_P(MimoKernels, GiveTheGradientOfTheRecurrence) {
  const auto& [c, timing] = GetParam();
  const Problem p = problem_of(c, at::kBFloat16);
  const auto got = named(run(inputs_on(p, at::kBFloat16, at::kCPU),
                             p.grad_out.to(at::kBFloat16).contiguous(), timing));
  const auto wanted = oracle(p);
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    ASSERT_EQ(tensor.sizes(), wanted[i].sizes()) << name;
    const double error = relative(tensor, wanted[i]) / harness::epsilon_of(at::kBFloat16);
    // A nan fails too. Operands and results are rounded to half an epsilon at most.
    EXPECT_TRUE(error <= 1) << name << ": " << error << " epsilons";
  }
}

std::string kernel_name(const testing::TestParamInfo<std::tuple<MimoCase, Timing>>& info) {
  const auto& [c, timing] = info.param;
  return c.name + (timing.is_late ? "_late" : "_early") + (timing.is_backward ? "_backward" : "");
}

INSTANTIATE_TEST_SUITE_P(Cases, MimoKernels,
                         testing::Combine(testing::ValuesIn(kernel_cases()),
                                          testing::Values(Timing{}, Timing{.is_late = true,
                                                                           .is_backward = true})),
                         kernel_name);

}  // namespace
}  // namespace patchbench::mamba3_mimo_test
