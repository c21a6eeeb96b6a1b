// Time of staging tiles alone by TMA and by cp.async, flat and in rank 3, and of
// patchbench::mamba3_mimo_qk_dot and its backward with each, against plain torch. Needs a CUDA
// device; checks sampled tokens against fp64, and that no staging changes a bit, in the same run.
#include <torch/torch.h>

#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "bench/bench_main.h"
#include "bench/timing.h"
#include "core/error.h"
#include "harness/compare.h"
#include "mamba3_mimo_smem_2d/op.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>

#include "mamba3_mimo_smem_2d/kernel.cuh"
#endif

namespace patchbench::qk_dot_bench {
namespace {

using bench::Options;

void check(const Options& options) {
  if (options.shape[4] % options.shape[3] != 0)
    throw Error(ErrorCode::kUsage, "--shape wants HEADS that are a multiple of GROUPS");
}

#ifdef PATCHBENCH_CUDA

using at::Tensor;
using namespace ops::mamba3_mimo_smem_2d;
using Results = std::vector<Tensor>;

constexpr int64_t kSamples = 64;
constexpr double kBytesPerSecond = 4.3e12, kFlopsPerSecond = 60e12;  // of an H200, the latter fp32

struct Operands {
  Tensor q, k, q_bias, k_bias, grad;
};

Operands operands_of(const Options& options) {
  torch::manual_seed(9);
  const auto& s = options.shape;
  const auto bf16 = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  const auto fp32 = bf16.dtype(torch::kFloat);
  return {torch::randn({s[0], s[1], s[2], s[3], s[5]}, bf16),
          torch::randn({s[0], s[1], s[2], s[3], s[5]}, bf16),
          torch::randn({s[4], s[2], s[5]}, fp32), torch::randn({s[4], s[2], s[5]}, fp32),
          torch::randn({s[0], s[4], s[1], s[2], s[2]}, bf16)};
}

/// [median, least, greatest] ms.
Json timed(const std::function<void()>& call, int repeats) {
  const std::vector<double> times = bench::times_in_turn({call}, repeats)[0];
  return {times[times.size() / 2], times.front(), times.back()};
}

/// Bytes that must move, and what that takes; FLOPs in float32 the same way.
struct Floor {
  double bytes = 0, flops = 0;
  Json json() const {
    return {{"bytes", bytes},
            {"flops", flops},
            {"ms_at_4.3_TB/s", bytes / kBytesPerSecond * 1e3},
            {"ms_at_60_fp32_TFLOP/s", flops / kFlopsPerSecond * 1e3}};
  }
};

double bytes_of(const Tensor& t) { return static_cast<double>(t.nbytes()); }

Floor forward_floor(const Operands& o) {
  return {.bytes = bytes_of(o.q) + bytes_of(o.k) + 2 * bytes_of(o.q_bias) + bytes_of(o.grad),
          .flops = 2.0 * static_cast<double>(o.grad.numel() * o.q.size(4))};
}
Floor backward_floor(const Operands& o) {
  return {.bytes = 2 * (bytes_of(o.q) + bytes_of(o.k) + 2 * bytes_of(o.q_bias)) + bytes_of(o.grad),
          .flops = 2 * forward_floor(o).flops};
}

Results results_of(const Operands& o, const QkDotStaging& staging) {
  const auto [grad_q, grad_k, grad_q_bias, grad_k_bias] =
      mamba3_mimo_qk_dot_bwd(o.grad, o.q, o.k, o.q_bias, o.k_bias, staging);
  return {mamba3_mimo_qk_dot(o.q, o.k, o.q_bias, o.k_bias, staging), grad_q, grad_k, grad_q_bias,
          grad_k_bias};
}

/// The copies alone: time, what they bring, and what they fold to.
Json staged(const Operands& o, const QkDotStaging& staging, Staged which, int repeats,
            Tensor& check) {
  QkDot problem;
  problem.q = o.q.const_data_ptr();
  problem.k = o.k.const_data_ptr();
  problem.grad_qk_dot = o.grad.const_data_ptr();
  problem.batch = o.q.size(0);
  problem.seqlen = o.q.size(1);
  problem.num_ranks = o.q.size(2);
  problem.num_groups = o.q.size(3);
  problem.num_heads = o.q_bias.size(0);
  problem.head_dim = o.q.size(4);
  check = torch::zeros({num_spans(problem), problem.num_groups, 256},
                       torch::dtype(torch::kInt).device(torch::kCUDA));
  problem.check = reinterpret_cast<uint32_t*>(check.mutable_data_ptr<int32_t>());
  const Staging wanted{staging.layout == "flat" ? Layout::kFlat : Layout::kRank3,
                       staging.copy == "tma" ? Copy::kTma : Copy::kCpAsync};
  const Plan plan = plan_of(problem, ElementType::kBFloat16, wanted,
                            at::cuda::getCurrentDeviceProperties()->major);
  const Json ms = timed(
      [&] {
        C10_CUDA_CHECK(launch_staging(problem, plan, which, at::cuda::getCurrentCUDAStream()));
      },
      repeats);
  const double bytes =
      bytes_of(o.grad) + (which == Staged::kAll ? bytes_of(o.q) + bytes_of(o.k) : 0.0);
  return {{"ms", ms}, {"bytes", bytes}, {"GB/s", bytes / ms[0].get<double>() / 1e6}};
}

/// The largest error over the largest value, of 64 tokens against fp64.
Json sampled_errors(const Operands& o, const Results& got) {
  const Tensor steps = torch::arange(kSamples, torch::dtype(torch::kLong).device(torch::kCUDA));
  const Tensor tokens = at::floor_divide(steps * (o.q.size(1) - 1), kSamples - 1);
  const auto rows = [&](const Tensor& t, const Tensor& bias) {
    return t.index_select(1, tokens)
               .to(at::kDouble)
               .repeat_interleave(bias.size(0) / t.size(3), 3) +
           bias.to(at::kDouble).transpose(0, 1);
  };
  const Tensor q = rows(o.q, o.q_bias), k = rows(o.k, o.k_bias),
               grad = o.grad.index_select(2, tokens).to(at::kDouble);
  const auto of_groups = [&](const Tensor& raw) {
    return raw.unflatten(3, {o.q.size(3), -1}).sum(4);
  };
  const auto error = [](const Tensor& value, const Tensor& wanted) {
    const Tensor worst = (value.to(at::kDouble) - wanted).abs().max() / wanted.abs().max();
    return worst.item<double>();
  };
  return {
      {"qk_dot", error(got[0].index_select(2, tokens), at::einsum("bsrhn,bsuhn->bhsru", {q, k}))},
      {"grad_q", error(got[1].index_select(1, tokens),
                       of_groups(at::einsum("bhsru,bsuhn->bsrhn", {grad, k})))},
      {"grad_k", error(got[2].index_select(1, tokens),
                       of_groups(at::einsum("bhsru,bsrhn->bsuhn", {grad, q})))}};
}

Json row_of(const Operands& o, const QkDotStaging& staging, int repeats, const Results& wanted,
            std::vector<Tensor>& checks) {
  Tensor all, products;
  Json row = {{"layout", staging.layout},
              {"copy", staging.copy},
              {"path", mamba3_mimo_qk_dot_path(o.q, staging)},
              {"staging_alone", staged(o, staging, Staged::kAll, repeats, all)},
              {"staging_of_products", staged(o, staging, Staged::kProducts, repeats, products)}};
  checks = {all, products};
  const auto forward = [&] { mamba3_mimo_qk_dot(o.q, o.k, o.q_bias, o.k_bias, staging); };
  const auto backward = [&] {
    mamba3_mimo_qk_dot_bwd(o.grad, o.q, o.k, o.q_bias, o.k_bias, staging);
  };
  row["forward_ms"] = timed(forward, repeats);
  row["backward_ms"] = timed(backward, repeats);
  double differing = 0;
  const Results got = results_of(o, staging);
  for (size_t i = 0; i < got.size(); ++i)
    differing += harness::compare_bitwise("", got[i].cpu(), wanted[i].cpu()).got;
  row["elements_that_differ"] = differing;
  return row;
}

Json measure(const Options& options, bool& passed) {
  const Operands o = operands_of(options);
  const Results wanted = results_of(o, {});
  const Json errors = sampled_errors(o, wanted);
  for (const auto& [name, error] : errors.items()) passed &= error.get<double>() < 4e-3;
  Json rows = Json::array();
  std::vector<Tensor> first;
  for (const QkDotStaging& staging : {QkDotStaging{"flat", "tma"},
                                      {"flat", "cp_async"},
                                      {"rank3", "tma"},
                                      {"rank3", "cp_async"}}) {
    std::vector<Tensor> checks;
    Json row = row_of(o, staging, options.repeats, wanted, checks);
    if (first.empty()) first = checks;
    row["same_bytes_staged"] = at::equal(checks[0], first[0]) && at::equal(checks[1], first[1]);
    passed &= row["same_bytes_staged"].get<bool>() && row["elements_that_differ"] == 0.0;
    rows.push_back(row);
  }
  setenv("PATCHBENCH_OP_FALLBACK", "mamba3_mimo_smem_2d", 1);
  const Json plain = {{"path", mamba3_mimo_qk_dot_path(o.q)},
                      {"forward_and_backward_ms", timed([&] { results_of(o, {}); }, 20)}};
  unsetenv("PATCHBENCH_OP_FALLBACK");
  const auto* device = at::cuda::getCurrentDeviceProperties();
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  return {{"bench", "patchbench::mamba3_mimo_qk_dot: tiles by TMA and by cp.async"},
          {"date", date},
          {"device", std::string(device->name) + " (sm_" + std::to_string(device->major) +
                         std::to_string(device->minor) + ")"},
          {"dtype", "bfloat16"},
          {"how",
           "one process, warm, 256 MiB written between calls, CUDA events; [median, least, "
           "greatest] ms of " +
               std::to_string(options.repeats) + " calls"},
          {"shape_is", "batch, seqlen, num_ranks, num_groups, num_heads, head_dim"},
          {"floor", {{"forward", forward_floor(o).json()}, {"backward", backward_floor(o).json()}}},
          {"largest_error_of_64_tokens", errors},
          {"plain_torch", plain},
          {"rows", rows}};
}

#else

constexpr Json (*measure)(const Options&, bool&) = nullptr;

#endif

}  // namespace
}  // namespace patchbench::qk_dot_bench

int main(int argc, char** argv) {
  using namespace patchbench;
  return bench::bench_main(
      {.name = "bench_mamba3_mimo_smem_2d",
       .axes = "BATCH,SEQLEN,RANKS,GROUPS,HEADS,HEAD_DIM",
       .defaults = {.shape = {1, 4096, 4, 8, 128, 128}, .repeats = 30},
       .help = "  the kernels take 2, 4 or 8 ranks and a head_dim of 64 or 128\n",
       .check = qk_dot_bench::check,
       .measure = qk_dot_bench::measure},
      argc, argv);
}
