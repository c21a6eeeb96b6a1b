// sm_90's kernel of patchbench::mamba3_siso_bwd, run by a machine of fibers on the host against the
// plain form in fp32: its layouts, descriptors, sums and barriers. What a GPU alone can tell stays
// to be seen there.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "mamba3_siso_bwd_cse/op.h"
#include "packs/sm90_emulator.h"

// Over the machine's primitives.
#include "mamba3_siso_bwd_cse/sm90_walk.h"

namespace patchbench::mamba3_siso_kernel_test {
namespace {

using namespace ops::mamba3_siso_bwd_cse;
using at::Tensor;
using sm90_emulator::Machine;
using sm90_emulator::Timing;

TEST(SisoWalk, TakesWholeRowsWhereTheyFillTheGpuAtHand) {
  SisoBackward problem;
  problem.batch = 1;
  problem.num_heads = 100;
  problem.num_chunks = 64;
  // 100 rows fill three quarters of a GPU with 114 CTAs (H100 PCIe), not of one with 264.
  EXPECT_EQ(chunks_per_slot(problem, 114), 64);
  EXPECT_EQ(chunks_per_slot(problem, 264), 32);
  EXPECT_EQ(chunks_per_slot(problem, 78), 16);
}

struct WalkCase {
  std::string name;
  int64_t batch = 1, seqlen = 150, num_heads = 2, head_dim_qk = 128, head_dim_v = 64;
  int64_t chunks_per_cta = 3;
  std::vector<int64_t> lengths = {};  ///< packed into batch 1
  bool has_d = true, has_final = true;
  double steepest = 0.3;
  bool has_chunks_inside = false;  ///< of the rows of the states
};

std::vector<WalkCase> walk_cases() {
  return {{.name = "model"},
          {.name = "whole_chunks", .batch = 2, .seqlen = 128, .num_heads = 1, .chunks_per_cta = 2},
          {.name = "wide_v", .num_heads = 1, .head_dim_v = 128},
          {.name = "narrow_qk", .head_dim_qk = 64},
          {.name = "narrow_qk_wide_v", .num_heads = 1, .head_dim_qk = 64, .head_dim_v = 128},
          {.name = "steep", .has_d = false, .has_final = false, .steepest = 30},
          {.name = "one_token", .seqlen = 1, .chunks_per_cta = 1},
          {.name = "no_tokens", .seqlen = 0, .chunks_per_cta = 1},
          {.name = "segments", .seqlen = 270, .chunks_per_cta = 2},
          {.name = "single_chunks", .chunks_per_cta = 1},
          {.name = "chunks_inside", .has_chunks_inside = true},
          {.name = "segments_inside",
           .batch = 2,
           .head_dim_v = 128,
           .chunks_per_cta = 2,
           .has_chunks_inside = true},
          {.name = "packed", .chunks_per_cta = 2, .lengths = {33, 64, 1, 130}},
          {.name = "packed_empty", .num_heads = 1, .lengths = {0, 70, 0, 64, 3, 0}}};
}

struct Problem {
  SisoInputs inputs;
  SisoSaved saved;
  std::vector<int64_t> begins;  ///< of sequences; the end last. Dense: 0, seqlen
};

Problem problem_of(WalkCase c) {
  Problem p{.begins = {0}};
  for (const int64_t length : c.lengths) p.begins.push_back(p.begins.back() + length);
  if (c.lengths.empty()) {
    p.begins.push_back(c.seqlen);
  } else {
    c.seqlen = p.begins.back();
  }
  const auto draw = [&](const char* name) { return harness::Draw(4, c.name + "/" + name); };
  const auto normal = [&](const char* name, int64_t width) {
    return draw(name).normal({c.batch, c.seqlen, c.num_heads, width}).to(at::kBFloat16);
  };
  SisoInputs& in = p.inputs;
  in.q = normal("q", c.head_dim_qk);
  in.k = normal("k", c.head_dim_qk) / 4;
  in.v = normal("v", c.head_dim_v);
  const std::vector<int64_t> scalars = {c.batch, c.num_heads, c.seqlen};
  in.adt = draw("adt").uniform(scalars, -c.steepest, -1e-4).to(at::kFloat);
  in.qk_dot = draw("qk_dot").normal(scalars).to(at::kFloat);
  if (c.has_d) in.d = draw("d").normal({c.num_heads}).to(at::kFloat);
  if (!c.lengths.empty()) in.cu_seqlens = torch::tensor(p.begins, at::kLong).to(at::kInt);
  const int64_t sequences = c.lengths.empty() ? c.batch : static_cast<int64_t>(c.lengths.size());
  const std::vector<int64_t> state = {sequences, c.num_heads, c.head_dim_v, c.head_dim_qk};
  const Tensor initial = draw("initial").normal(state).to(at::kFloat);
  p.saved.grad_out = normal("grad_out", c.head_dim_v);
  p.saved.states = std::get<2>(mamba3_siso_forward(in, initial));
  if (c.has_chunks_inside)
    p.saved.states = p.saved.states.transpose(2, 3).contiguous().transpose(2, 3);
  if (c.has_final) p.saved.grad_final_state = draw("final").normal(state).to(at::kFloat);
  return p;
}

/// The plain form's gradients of these inputs, which are exact in fp32.
SisoGradients plain(SisoInputs in, SisoSaved saved) {
  for (Tensor* tensor : {&in.q, &in.k, &in.v, &saved.grad_out, &saved.states})
    *tensor = tensor->to(at::kFloat);
  return mamba3_siso_bwd(in, saved);
}

/// What the scan leaves: the gradient at a chunk's end is that of the initial state of the tokens
/// behind it.
void fill_chunks(const Problem& p, Tensor& grad_states, Tensor& spans) {
  std::vector<int32_t> flat;
  int64_t chunk = 0;
  for (size_t i = 0; i + 1 < p.begins.size(); ++i) {
    const int64_t end = p.begins[i + 1];
    for (int64_t first = p.begins[i]; first < end; first += kChunk, ++chunk) {
      const int64_t length = std::min(end - first, kChunk), rest = end - first - length;
      for (const int64_t value : {first, length, (first - p.begins[i]) / kChunk})
        flat.push_back(static_cast<int32_t>(value));
      SisoInputs in = p.inputs;
      in.cu_seqlens.reset();
      const auto tail = [&](const Tensor& t, int64_t axis) {
        return t.narrow(axis, first + length, rest).contiguous();
      };
      for (Tensor* tensor : {&in.q, &in.k, &in.v}) *tensor = tail(*tensor, 1);
      for (Tensor* tensor : {&in.adt, &in.qk_dot}) *tensor = tail(*tensor, 2);
      SisoSaved saved{.grad_out = tail(p.saved.grad_out, 1),
                      .states = p.saved.states.narrow(2, 0, (rest + kChunk - 1) / kChunk)};
      if (p.saved.grad_final_state)
        saved.grad_final_state =
            p.inputs.cu_seqlens ? p.saved.grad_final_state->narrow(0, static_cast<int64_t>(i), 1)
                                : *p.saved.grad_final_state;
      grad_states.select(2, chunk).copy_(plain(in, saved).initial_state);
    }
  }
  flat.resize(static_cast<size_t>(3 * p.saved.states.size(2)), 0);
  spans = torch::tensor(flat, at::kInt);
}

template <typename T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

template <int kN, int kP>
void run_walk(const SisoBackward& problem, Timing timing) {
  const int64_t segments =
      (problem.num_chunks + problem.chunks_per_cta - 1) / problem.chunks_per_cta;
  for (int64_t z = 0; z < std::max<int64_t>(segments, 1); ++z) {
    for (int64_t y = 0; y < problem.batch; ++y) {
      for (int64_t x = 0; x < problem.num_heads; ++x) {
        Machine machine(static_cast<size_t>(walk_bytes<kN, kP>()), timing);
        machine.run([&] { walk_cta<kN, kP>(problem, Walk(problem, x, y, z), machine.shared()); });
      }
    }
  }
}

SisoGradients walk(const Problem& p, int64_t chunks_per_cta, Timing timing) {
  const auto& [in, saved, begins] = p;
  const auto none = [](const Tensor& like) {
    return torch::full_like(like, std::numeric_limits<double>::quiet_NaN());
  };
  SisoGradients g{none(in.q), none(in.k), none(in.v), none(in.adt), none(in.qk_dot), {}, {}};
  const bool has_scan = in.cu_seqlens || chunks_per_cta < saved.states.size(2);
  Tensor grad_states = none(saved.states.contiguous()), spans;
  if (has_scan) fill_chunks(p, grad_states, spans);
  g.initial_state =
      torch::full({has_scan ? 0 : in.q.size(0), in.q.size(2), in.v.size(3), in.q.size(3)},
                  std::numeric_limits<float>::quiet_NaN());
  const SisoBackward problem{
      .q = data_of<void>(in.q),
      .k = data_of<void>(in.k),
      .v = data_of<void>(in.v),
      .grad_out = data_of<void>(saved.grad_out),
      .states = data_of<void>(saved.states),
      .state_chunk = saved.states.stride(2),
      .state_row = saved.states.stride(3),
      .adt = data_of<float>(in.adt),
      .qk_dot = data_of<float>(in.qk_dot),
      .d = in.d ? data_of<float>(*in.d) : nullptr,
      .grad_final_state =
          saved.grad_final_state ? data_of<float>(*saved.grad_final_state) : nullptr,
      .cu_seqlens = in.cu_seqlens ? data_of<int32_t>(*in.cu_seqlens) : nullptr,
      .grad_q = data_of<void>(g.q),
      .grad_k = data_of<void>(g.k),
      .grad_v = data_of<void>(g.v),
      .grad_adt = data_of<float>(g.adt),
      .grad_qk_dot = data_of<float>(g.qk_dot),
      .grad_initial_state = data_of<float>(g.initial_state),
      .has_scan = has_scan,
      .grad_states = data_of<void>(grad_states),
      .chunk_spans = in.cu_seqlens ? data_of<int32_t>(spans) : nullptr,
      .batch = in.q.size(0),
      .seqlen = in.q.size(1),
      .num_heads = in.q.size(2),
      .head_dim_qk = in.q.size(3),
      .head_dim_v = in.v.size(3),
      .num_chunks = saved.states.size(2),
      .num_sequences = in.cu_seqlens ? in.cu_seqlens->size(0) - 1 : in.q.size(0),
      .chunks_per_cta = chunks_per_cta};
  if (problem.head_dim_qk == 64) {
    (problem.head_dim_v == 64 ? run_walk<64, 64> : run_walk<64, 128>)(problem, timing);
  } else {
    (problem.head_dim_v == 64 ? run_walk<128, 64> : run_walk<128, 128>)(problem, timing);
  }
  return g;
}

double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.to(at::kDouble) - wanted.to(at::kDouble);
  const double size = wanted.to(at::kDouble).norm().item<double>();
  const double error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

std::vector<Timing> timings() {
  return {{}, {.is_backward = true}, {.is_late = true}, {.is_late = true, .is_backward = true}};
}

class SisoWalk : public testing::TestWithParam<std::tuple<WalkCase, Timing>> {};

TEST_P(SisoWalk, IsThePlainBackward) {
  const auto& [c, timing] = GetParam();
  const Problem p = problem_of(c);
  const SisoGradients got = walk(p, c.chunks_per_cta, timing);
  const SisoGradients wanted = plain(p.inputs, p.saved);
  const auto expect = [](const char* name, const Tensor& value, const Tensor& reference) {
    const double error = relative(value, reference) / harness::epsilon_of(at::kBFloat16);
    // A nan fails too. Operands and results are rounded to half an epsilon at most.
    EXPECT_TRUE(error <= 1) << name << ": " << error << " epsilons";
  };
  expect("q", got.q, wanted.q);
  expect("k", got.k, wanted.k);
  expect("v", got.v, wanted.v);
  expect("adt", got.adt, wanted.adt);
  expect("qk_dot", got.qk_dot, wanted.qk_dot);
  if (got.initial_state.numel() > 0)
    expect("initial_state", got.initial_state, wanted.initial_state);
}

std::string walk_name(const testing::TestParamInfo<std::tuple<WalkCase, Timing>>& info) {
  const auto& [c, timing] = info.param;
  return c.name + (timing.is_late ? "_late" : "_early") + (timing.is_backward ? "_backward" : "");
}

INSTANTIATE_TEST_SUITE_P(Cases, SisoWalk,
                         testing::Combine(testing::ValuesIn(walk_cases()),
                                          testing::ValuesIn(timings())),
                         walk_name);

TEST(SisoWalkKernel, AnswersTheSameHoweverItsThreadsTakeTurns) {
  const Problem p = problem_of({.name = "turns"});
  const SisoGradients wanted = walk(p, 3, {});
  for (const Timing timing : timings()) {
    const SisoGradients got = walk(p, 3, timing);
    EXPECT_TRUE(at::equal(got.q, wanted.q) && at::equal(got.k, wanted.k));
    EXPECT_TRUE(at::equal(got.v, wanted.v) && at::equal(got.adt, wanted.adt));
    EXPECT_TRUE(at::equal(got.initial_state, wanted.initial_state));
  }
}

}  // namespace
}  // namespace patchbench::mamba3_siso_kernel_test
