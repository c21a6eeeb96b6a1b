// patchbench::mamba3_siso_bwd against fp64 autograd through the recurrence, token by token, on
// every device of this machine and on its kernel and plain paths.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>

#include "harness/compare.h"
#include "harness/inputs.h"
#include "mamba3_siso_bwd_cse/op.h"
#include "packs/op_test.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace patchbench::mamba3_siso_test {
namespace {

using at::Tensor;
using op_test::devices;
using op_test::Fallback;
using op_test::Form;
using op_test::refusal;
using ops::mamba3_siso_bwd_cse::mamba3_siso_bwd;
using ops::mamba3_siso_bwd_cse::mamba3_siso_bwd_path;
using ops::mamba3_siso_bwd_cse::mamba3_siso_forward;
using ops::mamba3_siso_bwd_cse::SisoGradients;
using ops::mamba3_siso_bwd_cse::SisoInputs;
using ops::mamba3_siso_bwd_cse::SisoSaved;
using OptionalTensor = std::optional<Tensor>;

enum Device { kAny, kCudaOnly };

struct SisoCase {
  std::string name;
  int64_t batch = 2, seqlen = 150, num_heads = 2, head_dim_qk = 32, head_dim_v = 32;
  int64_t chunk_size = 64;
  std::vector<int64_t> lengths = {};  ///< packed into batch 1 and seqlen = their sum
  bool has_d = true, has_final = true;
  double steepest = 0.3;  ///< -adt is below this
  Device device = kAny;
};

std::vector<SisoCase> siso_cases() {
  return {
      {.name = "whole_chunks", .seqlen = 128, .head_dim_qk = 64},
      {.name = "tail", .head_dim_qk = 64, .head_dim_v = 64},
      {.name = "no_d", .has_d = false},
      {.name = "no_final", .has_final = false},
      {.name = "steep", .has_d = false, .has_final = false, .steepest = 30},
      {.name = "one_token", .batch = 1, .seqlen = 1},
      {.name = "no_tokens", .seqlen = 0, .num_heads = 132, .head_dim_qk = 64, .head_dim_v = 64},
      {.name = "no_heads", .num_heads = 0},
      {.name = "widest", .batch = 1, .seqlen = 70, .head_dim_qk = 128, .head_dim_v = 128},
      {.name = "wide_qk", .batch = 1, .seqlen = 70, .head_dim_qk = 128},
      {.name = "wide_v", .batch = 1, .seqlen = 63, .head_dim_v = 128},
      {.name = "wider_v", .seqlen = 65, .head_dim_qk = 64, .head_dim_v = 128},
      {.name = "many_heads", .seqlen = 70, .num_heads = 66, .head_dim_v = 64, .device = kCudaOnly},
      {.name = "many_wide_heads",
       .seqlen = 66,
       .num_heads = 132,
       .head_dim_qk = 128,
       .head_dim_v = 64,
       .device = kCudaOnly},
      {.name = "packed_segments",
       .num_heads = 32,
       .head_dim_qk = 128,
       .head_dim_v = 64,
       .lengths = {129, 64, 1, 200, 65},
       .device = kCudaOnly},
      {.name = "narrow", .batch = 1, .seqlen = 77, .head_dim_v = 16, .chunk_size = 32},
      {.name = "long_chunk", .batch = 1, .seqlen = 600, .head_dim_v = 16, .chunk_size = 600},
      {.name = "packed", .head_dim_qk = 64, .head_dim_v = 64, .lengths = {33, 64, 1, 52}},
      {.name = "packed_no_d", .lengths = {65, 7, 128}, .has_d = false, .has_final = false},
      {.name = "packed_short", .lengths = {9, 1, 5, 4}},
      {.name = "packed_small_chunks", .chunk_size = 4, .lengths = {9, 1, 5, 4}},
      {.name = "packed_empty", .lengths = {0, 70, 0, 64, 3, 0}},
      {.name = "model",
       .seqlen = 256,
       .num_heads = 8,
       .head_dim_qk = 64,
       .head_dim_v = 64,
       .device = kCudaOnly},
      {.name = "long_model",
       .batch = 1,
       .seqlen = 1024,
       .num_heads = 4,
       .head_dim_qk = 128,
       .head_dim_v = 64,
       .device = kCudaOnly}};
}

/// Leaves for the oracle in fp64, already rounded to what the op is given.
struct Problem {
  SisoInputs inputs;
  Tensor initial_state, grad_out;
  OptionalTensor grad_final_state;
  std::vector<int64_t> begins;  ///< of sequences; the end last. Dense: 0, seqlen
};

Problem problem_of(const SisoCase& given, at::ScalarType type) {
  SisoCase c = given;
  Problem p{.begins = {0}};
  for (const int64_t length : c.lengths) p.begins.push_back(p.begins.back() + length);
  const bool is_packed = !c.lengths.empty();
  if (is_packed) {
    c.batch = 1;
    c.seqlen = p.begins.back();
  } else {
    p.begins.push_back(c.seqlen);
  }
  const int64_t num_sequences = is_packed ? static_cast<int64_t>(c.lengths.size()) : c.batch;
  const auto draw = [&](const char* name) { return harness::Draw(4, c.name + "/" + name); };
  const auto normal = [&](const char* name, int64_t width) {
    return draw(name).normal({c.batch, c.seqlen, c.num_heads, width}).to(type).to(at::kDouble);
  };
  const auto single = [](const Tensor& t) { return t.to(at::kFloat).to(at::kDouble); };
  p.inputs.q = normal("q", c.head_dim_qk);
  p.inputs.k = normal("k", c.head_dim_qk) / 4;
  p.inputs.v = normal("v", c.head_dim_v);
  const std::vector<int64_t> scalars = {c.batch, c.num_heads, c.seqlen};
  p.inputs.adt = single(draw("adt").uniform(scalars, -c.steepest, -1e-4));
  p.inputs.qk_dot = single(draw("qk_dot").normal(scalars));
  if (c.has_d) p.inputs.d = single(draw("d").normal({c.num_heads}));
  if (is_packed) p.inputs.cu_seqlens = torch::tensor(p.begins, at::kLong).to(at::kInt);
  p.inputs.chunk_size = c.chunk_size;
  const std::vector<int64_t> state = {num_sequences, c.num_heads, c.head_dim_v, c.head_dim_qk};
  p.initial_state = single(draw("initial").normal(state));
  p.grad_out = normal("grad_out", c.head_dim_v);
  if (c.has_final) p.grad_final_state = single(draw("final").normal(state));
  return p;
}

/// The problem as the op takes it.
SisoInputs inputs_on(const Problem& p, at::ScalarType type, const at::Device& device) {
  SisoInputs in = p.inputs;
  for (Tensor* tensor : {&in.q, &in.k, &in.v}) *tensor = tensor->to(type).to(device);
  for (Tensor* tensor : {&in.adt, &in.qk_dot}) *tensor = tensor->to(at::kFloat).to(device);
  if (in.d) in.d = in.d->to(at::kFloat).to(device);
  if (in.cu_seqlens) in.cu_seqlens = in.cu_seqlens->to(device);
  return in;
}

SisoSaved saved_on(const Problem& p, const SisoInputs& in) {
  const Tensor initial = p.initial_state.to(in.adt.options());
  SisoSaved saved{.grad_out = p.grad_out.to(in.v.options()),
                  .states = std::get<2>(mamba3_siso_forward(in, initial))};
  if (p.grad_final_state) saved.grad_final_state = p.grad_final_state->to(in.adt.options());
  return saved;
}

struct Result {
  Tensor y, final_state;
  SisoGradients grads;
};

/// S_t = e^{a_t} S_{t-1} + v_t (x) k_t and y_t = e^{a_t} S_{t-1} q_t + (qk_dot_t + d) v_t, one
/// token after another in fp64; gradients by autograd.
Result oracle(const Problem& p) {
  const auto leaf = [](const Tensor& t) { return t.detach().clone().requires_grad_(); };
  const Tensor q = leaf(p.inputs.q), k = leaf(p.inputs.k), v = leaf(p.inputs.v);
  const Tensor adt = leaf(p.inputs.adt), qk_dot = leaf(p.inputs.qk_dot);
  const Tensor initial = leaf(p.initial_state);
  const Tensor d = leaf(p.inputs.d.value_or(torch::zeros({q.size(2)}, at::kDouble)));
  std::vector<Tensor> ys, finals;
  const int64_t rows = q.size(0);
  for (size_t i = 0; i + 1 < p.begins.size(); ++i) {
    Tensor state = initial.narrow(0, static_cast<int64_t>(i), rows);
    for (int64_t t = p.begins[i]; t < p.begins[i + 1]; ++t) {
      const Tensor v_t = v.select(1, t);
      const Tensor before = state * adt.select(2, t).exp().unsqueeze(-1).unsqueeze(-1);
      const Tensor read = before.matmul(q.select(1, t).unsqueeze(-1)).squeeze(-1);
      ys.push_back(read + (qk_dot.select(2, t) + d).unsqueeze(-1) * v_t);
      state = before + v_t.unsqueeze(-1) * k.select(1, t).unsqueeze(-2);
    }
    finals.push_back(state);
  }
  Result r{ys.empty() ? v * 0 : at::stack(ys, 1), at::cat(finals, 0), {}};
  Tensor loss = (r.y * p.grad_out).sum();
  if (p.grad_final_state) loss = loss + (r.final_state * *p.grad_final_state).sum();
  auto grads = torch::autograd::grad({loss}, {q, k, v, adt, qk_dot, d, initial}, {}, std::nullopt,
                                     false, /*allow_unused=*/true);
  const std::vector<Tensor> leaves = {q, k, v, adt, qk_dot, d, initial};
  for (size_t i = 0; i < grads.size(); ++i)
    if (!grads[i].defined()) grads[i] = torch::zeros_like(leaves[i]);
  r.grads = {grads[0], grads[1], grads[2], grads[3], grads[4], grads[5], grads[6]};
  if (!p.inputs.d) r.grads.d = torch::empty({0}, at::kDouble);
  return r;
}

/// ||got - wanted|| / ||wanted||; 0 where both are zero.
double relative(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.detach().cpu().to(at::kDouble) - wanted;
  const double size = wanted.norm().item<double>(), error = difference.norm().item<double>();
  return size > 0 ? error / size : error;
}

/// In machine epsilons of the element type, of a norm. Low types: the saved states, the result and,
/// in the kernel, one operand of each product are rounded to half an epsilon at most, 0.2 in the
/// mean of squares; grad_adt of one token is a single sum that cancels. float32: sums of up to 1024
/// terms, however long a chunk is.
double bound_of(at::ScalarType type) { return type == at::kFloat ? 20 : 1; }

std::vector<std::pair<std::string, Tensor>> named(const SisoGradients& g) {
  return {{"q", g.q},
          {"k", g.k},
          {"v", g.v},
          {"adt", g.adt},
          {"qk_dot", g.qk_dot},
          {"d", g.d},
          {"initial_state", g.initial_state}};
}

using Point = std::tuple<SisoCase, std::string, at::ScalarType, Form>;
class SisoBackward : public testing::TestWithParam<Point> {};

TEST_P(SisoBackward, IsTheGradientOfTheRecurrenceAndRepeatsBitForBit) {
  const auto& [c, device, type, form] = GetParam();
  if (c.device == kCudaOnly && device == "cpu") GTEST_SKIP() << "a case for the kernels";
  const Fallback fallback("mamba3_siso_bwd_cse", form);
  const Problem p = problem_of(c, type);
  const SisoInputs in = inputs_on(p, type, device);
  const SisoSaved saved = saved_on(p, in);
  const bool uses_kernel =
      device != "cpu" && form == Form::kChosen && c.chunk_size == 64 && type != at::kFloat;
  EXPECT_EQ(mamba3_siso_bwd_path(in), uses_kernel ? "cuda" : "plain");
  const auto wanted = named(oracle(p).grads);
  const auto got = named(mamba3_siso_bwd(in, saved));
  const auto again = named(mamba3_siso_bwd(in, saved));
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    ASSERT_EQ(tensor.sizes(), wanted[i].second.sizes()) << name;
    ASSERT_EQ(tensor.scalar_type(), i < 3 ? type : at::kFloat) << name;
    const double error = relative(tensor, wanted[i].second) / harness::epsilon_of(type);
    // A nan fails too.
    EXPECT_TRUE(error <= bound_of(type)) << name << ": " << error << " epsilons";
    EXPECT_TRUE(harness::compare_bitwise(name, again[i].second.cpu(), tensor.cpu()).pass) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SisoBackward,
                         testing::Combine(testing::ValuesIn(siso_cases()),
                                          testing::ValuesIn(devices()),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(Form::kChosen, Form::kPlain)),
                         op_test::point_name<testing::TestParamInfo<Point>>);

TEST(SisoScan, IsTheRecurrence) {
  for (const std::string& device : devices()) {
    for (const SisoCase& c :
         {SisoCase{.name = "scan"}, SisoCase{.name = "scan_packed", .lengths = {33, 1, 65}},
          SisoCase{.name = "scan_y_alone", .has_d = false, .has_final = false}}) {
      const Problem p = problem_of(c, at::kFloat);
      const SisoInputs in = inputs_on(p, at::kFloat, device);
      const auto [y, final_state, states] =
          mamba3_siso_forward(in, p.initial_state.to(in.adt.options()));
      const Result wanted = oracle(p);
      EXPECT_LE(relative(y, wanted.y), 5e-6) << c.name;
      EXPECT_LE(relative(final_state, wanted.final_state), 5e-6) << c.name;
    }
  }
}

TEST(SisoBackwardOp, TakesStridedTensors) {
  for (const std::string& device : devices()) {
    const Problem p = problem_of({.name = "strided"}, at::kHalf);
    SisoInputs in = inputs_on(p, at::kHalf, device);
    SisoSaved saved = saved_on(p, in);
    const SisoGradients wanted = mamba3_siso_bwd(in, saved);
    in.q = in.q.transpose(1, 2).contiguous().transpose(1, 2);
    // Contiguous, but two bytes off the alignment that the kernels copy at.
    in.k = at::cat({in.k.new_zeros({1}), in.k.flatten()}).narrow(0, 1, in.k.numel()).view_as(in.k);
    for (const int64_t axis : {2, 3, 4}) {  // as it is, chunks inside of rows, and what is copied
      saved.states = saved.states.transpose(2, axis).contiguous().transpose(2, axis);
      const auto got = mamba3_siso_bwd(in, saved);
      EXPECT_TRUE(at::equal(got.q, wanted.q) && at::equal(got.k, wanted.k)) << device << axis;
    }
  }
}

TEST(SisoBackwardOp, RefusesInOneLine) {
  const Problem p = problem_of({.name = "refused", .lengths = {33, 40}}, at::kFloat);
  const SisoInputs in = inputs_on(p, at::kFloat, at::kCPU);
  const SisoSaved saved = saved_on(p, in);
  const auto refused = [&](const std::function<void(SisoInputs&, SisoSaved&)>& change) {
    SisoInputs changed = in;
    SisoSaved changed_saved = saved;
    change(changed, changed_saved);
    return refusal([&] { mamba3_siso_bwd(changed, changed_saved); });
  };
  EXPECT_EQ(refused([](auto& i, auto&) { i.q = i.q[0]; }),
            "mamba3_siso_bwd: q must have 4 axes [batch, seqlen, num_heads, head_dim_qk], got 3");
  EXPECT_EQ(refused([](auto& i, auto&) { i.q = i.q.to(at::kDouble); }),
            "mamba3_siso_bwd: q must have dtype float32, bfloat16 or float16, got float64");
  EXPECT_EQ(refused([](auto& i, auto&) { i.k = i.k.to(at::kHalf); }),
            "mamba3_siso_bwd: k must have dtype float32, got float16");
  EXPECT_EQ(refused([](auto& i, auto&) { i.v = i.v.narrow(1, 0, 5); }),
            "mamba3_siso_bwd: v must have shape [1, 73, 2, head_dim_v], got [1, 5, 2, 32]");
  EXPECT_EQ(refused([](auto& i, auto&) { i.adt = i.adt.transpose(1, 2); }),
            "mamba3_siso_bwd: adt must have shape [1, 2, 73], got [1, 73, 2]");
  EXPECT_EQ(refused([](auto& i, auto&) { i.d = i.d->narrow(0, 0, 1); }),
            "mamba3_siso_bwd: d must have shape [2], got [1]");
  EXPECT_EQ(refused([](auto& i, auto&) { i.cu_seqlens = i.cu_seqlens->to(at::kLong); }),
            "mamba3_siso_bwd: cu_seqlens must have dtype int32, got int64");
  EXPECT_EQ(refused([](auto& i, auto&) { i.chunk_size = 0; }),
            "mamba3_siso_bwd: chunk_size must be at least 1, got 0");
  EXPECT_EQ(
      refused([](auto&, auto& s) { s.grad_final_state = s.grad_final_state->narrow(0, 0, 1); }),
      "mamba3_siso_bwd: grad_final_state must have shape [2, 2, 32, 32], got [1, 2, 32, 32]");
  EXPECT_EQ(refused([](auto&, auto& s) { s.states = s.states[0]; }),
            "mamba3_siso_bwd: states must have 5 axes [batch, num_heads, num_chunks, head_dim_v, "
            "head_dim_qk], got 4");
  EXPECT_EQ(refused([](auto&, auto& s) { s.states = s.states.narrow(2, 0, 1); }),
            "mamba3_siso_bwd: states must hold 2 chunks, got 1");
  EXPECT_EQ(refused([](auto& i, auto&) { i.cu_seqlens = torch::tensor({0, 33, 70}, at::kInt); }),
            "mamba3_siso_bwd: cu_seqlens must go from 0 to 73, got 0 to 70");
  EXPECT_EQ(refused([](auto& i, auto&) { i.cu_seqlens = torch::tensor({0, 80, 73}, at::kInt); }),
            "mamba3_siso_bwd: cu_seqlens must not decrease, got 80 before 73");
  EXPECT_EQ(refusal([&] { mamba3_siso_forward(in, p.initial_state); }),
            "mamba3_siso: initial_state must have dtype float32, got float64");
}

#ifdef PATCHBENCH_CUDA
TEST(SisoBackwardCudaGraph, IsCapturedAndReplaysOnOtherLengths) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const Problem p =
      problem_of({.name = "graph", .head_dim_qk = 64, .head_dim_v = 64, .lengths = {70, 3, 64}},
                 at::kBFloat16);
  SisoInputs in = inputs_on(p, at::kBFloat16, at::Device("cuda:0"));
  if (mamba3_siso_bwd_path(in) != "cuda") GTEST_SKIP() << "no kernel for this GPU";
  const SisoSaved saved = saved_on(p, in);
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
  mamba3_siso_bwd(in, saved);
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const SisoGradients replayed = mamba3_siso_bwd(in, saved);
  graph.capture_end();
  for (const int middle : {70, 1, 128}) {
    in.cu_seqlens->copy_(torch::tensor({0, middle, 130, 137}, at::kInt));
    graph.replay();
    c10::cuda::device_synchronize();
    const SisoGradients wanted = mamba3_siso_bwd(in, saved);
    EXPECT_TRUE(at::equal(replayed.adt, wanted.adt) && at::equal(replayed.k, wanted.k)) << middle;
  }
}
#endif

}  // namespace
}  // namespace patchbench::mamba3_siso_test
