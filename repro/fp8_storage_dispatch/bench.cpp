// Time of patchbench::sparse_mla_fp8, forward and backward, by layout, in turn with
// patchbench::sparse_mla on the bfloat16 values, and its errors against fp64 sums over the stored
// values in the same run. Needs a CUDA device.
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/bench_main.h"
#include "bench/timing.h"
#include "fp8_storage_dispatch/op.h"
#include "sparse_mla_dims/op.h"

namespace patchbench::sparse_mla_fp8_bench {
namespace {

using at::Tensor;
using bench::Options;
using namespace ops::fp8_storage_dispatch;

constexpr int64_t kDim = 576, kDimV = 512;
constexpr double kScale = 1.0 / 24;
// The bounds of the op's test (lse: or 2^-11 of itself, see op.h), and for gradients twice that.
constexpr double kOutBound = 5e-3, kLseBound = 1e-3, kLseShare = 0x1p-11;
// Rates of an H100 and an H200, dense, by their datasheet.
constexpr double kE4m3Flops = 1979e12, kBf16Flops = 989e12;

constexpr const char* kHelp =
    "  head_dim 576/512, batch 1; every slot names a key, at random\n"
    "  quantise: q and kv, as the layout has them; it is in no other time\n"
    "  bf16: patchbench::sparse_mla on the values before they were quantised\n"
    "  exit 1: an error is beyond 5e-3 (out), 1e-2 (gradients), 1e-3 and 2^-11 of it (lse)\n";

/// How q and kv are stored.
struct Layout {
  const char* name;
  const char* query;  ///< its layout, or nullptr: bfloat16
  const char* kv;
};
constexpr Layout kLayouts[] = {{"tensor", "tensor", "tensor"},
                               {"token", "token", "token"},
                               {"block, bfloat16 query", nullptr, "block"},
                               {"block, e4m3 query", "token", "block"}};

struct Sizes {
  int64_t queries, heads, topk, keys;
};

Sizes sizes_of(const Options& o) { return {o.shape[0], o.shape[1], o.shape[2], o.shape[3]}; }

struct Problem {
  Tensor query, keys;  ///< as they were before
  Fp8Storage q, kv;
  Tensor indices, grad_out;
};

Fp8Storage stored(const Tensor& values, const char* layout) {
  return layout == nullptr ? Fp8Storage{values, std::nullopt} : quantize_mla(values, layout);
}

Problem problem_of(const Layout& layout, const Sizes& o, double sharpness) {
  torch::manual_seed(7);
  const auto bf16 = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  const Tensor query = torch::randn({1, o.queries, o.heads, kDim}, bf16) * sharpness;
  const Tensor kv = torch::randn({1, o.keys, 1, kDim}, bf16);
  return {.query = query,
          .keys = kv,
          .q = stored(query, layout.query),
          .kv = stored(kv, layout.kv),
          .indices = torch::randint(0, o.keys, {1, o.queries, 1, o.topk}, bf16.dtype(torch::kInt)),
          .grad_out = torch::randn({1, o.queries, o.heads, kDimV}, bf16)};
}

double relative(const Tensor& got, const Tensor& wanted) {
  return ((got.to(torch::kDouble) - wanted).norm() / wanted.norm()).item<double>();
}
double largest(const Tensor& got, const Tensor& wanted) {
  return (got.to(torch::kDouble) - wanted).abs().max().item<double>();
}

/// Errors of everything the op gives on few queries, against fp64. They use the keys 8 times where
/// all do, so that the kernels are those that are timed.
Json errors_of(const Layout& layout, Sizes few, double sharpness, bool& passed) {
  few.queries = std::min(few.queries, std::max<int64_t>(8, (8 * few.keys - 1) / few.topk + 1));
  const Problem p = problem_of(layout, few, sharpness);
  const auto values = [](const Fp8Storage& s) {
    return dequantize_mla(s).to(torch::kDouble).requires_grad_();
  };
  const Tensor q = values(p.q), kv = values(p.kv);
  const Tensor k = kv[0].squeeze(1).index_select(0, p.indices.flatten().to(torch::kLong));
  const Tensor keys = k.view({few.queries, few.topk, kDim});
  const Tensor logits = at::matmul(q[0], keys.transpose(1, 2)) * kScale;
  const Tensor wanted_out = at::matmul(logits.softmax(-1), keys.narrow(-1, 0, kDimV)).unsqueeze(0);
  const Tensor wanted_lse = logits.logsumexp(-1).unsqueeze(0) / std::log(2.0);
  const auto wanted = torch::autograd::grad({wanted_out}, {q, kv}, {p.grad_out.to(torch::kDouble)});
  const auto [out, lse] = sparse_mla_fp8_forward(p.q, p.kv, p.indices, kScale);
  const auto [grad_q, grad_kv] =
      sparse_mla_fp8_backward(p.grad_out, out, lse, p.q, p.kv, p.indices, kScale);
  const Json errors = {{"layout", layout.name},
                       {"query_times", sharpness},
                       {"out_relative", relative(out, wanted_out)},
                       {"out_max", largest(out, wanted_out)},
                       {"lse_max", largest(lse, wanted_lse)},
                       {"grad_q_relative", relative(grad_q, wanted[0])},
                       {"grad_kv_relative", relative(grad_kv, wanted[1])}};
  const Tensor lse_bound = (wanted_lse.abs() * kLseShare).clamp_min(kLseBound);
  const Tensor lse_error = (lse.to(torch::kDouble) - wanted_lse).abs();
  // A nan fails too.
  passed = passed && errors["out_relative"] <= kOutBound &&
           (lse_error <= lse_bound).all().item<bool>() &&
           errors["grad_q_relative"] <= 2 * kOutBound &&
           errors["grad_kv_relative"] <= 2 * kOutBound;
  return errors;
}

/// A call, and what its row says besides its time.
struct Timed {
  std::function<void()> call;
  Json row;
};

Timed timed(const char* layout, const char* what, std::function<void()> call, double flops,
            double matrix_s, double bytes) {
  return {std::move(call),
          {{"layout", layout},
           {"what", what},
           {"flops", flops},
           {"floor_matrix_ms", matrix_s * 1e3},
           {"least_bytes", bytes}}};
}

double bytes_of(const Fp8Storage& q, const Fp8Storage& kv, const Tensor& indices) {
  return static_cast<double>(q.payload.nbytes() + kv.payload.nbytes() + indices.nbytes());
}

/// Products of one sum over the width of a key, and over that of a value.
struct Work {
  double logits, values;
};
Work work_of(const Sizes& o) {
  const double pairs = 2.0 * static_cast<double>(o.queries * o.heads * o.topk);
  return {pairs * kDim, pairs * kDimV};
}

/// Forward, and backward: logits, grad_out V^T, dS K, dS^T Q, P^T grad_out. `written`: out and lse;
/// grad_out is as large as out.
void add_both(std::vector<Timed>& calls, const char* layout, const Sizes& o, double logits_s,
              double read, double written, std::function<void()> forward,
              std::function<void()> backward) {
  const auto [logits, values] = work_of(o);
  const double grads = static_cast<double>((o.queries * o.heads + o.keys) * kDim * 2);
  calls.push_back(timed(layout, "forward", std::move(forward), logits + values,
                        logits_s + values / kBf16Flops, read + written));
  calls.push_back(timed(layout, "backward", std::move(backward), 3 * logits + 2 * values,
                        logits_s + 2 * (logits + values) / kBf16Flops, read + 2 * written + grads));
}

void add_layout(std::vector<Timed>& calls, const Layout& layout, const Sizes& o) {
  const Problem p = problem_of(layout, o, 1);
  const auto [out, lse] = sparse_mla_fp8_forward(p.q, p.kv, p.indices, kScale);
  const auto [logits, values] = work_of(o);
  const bool is_e4m3 = layout.query != nullptr;
  const double rope =
      std::string(layout.kv) == "block" ? logits * (kDim - kDimV) / static_cast<double>(kDim) : 0;
  const double logits_s =
      is_e4m3 ? (logits - rope) / kE4m3Flops + rope / kBf16Flops : logits / kBf16Flops;
  const double read = bytes_of(p.q, p.kv, p.indices);
  add_both(
      calls, layout.name, o, logits_s, read, static_cast<double>(out.nbytes() + lse.nbytes()),
      [p] { sparse_mla_fp8_forward(p.q, p.kv, p.indices, kScale); },
      [p, out = out, lse = lse] {
        sparse_mla_fp8_backward(p.grad_out, out, lse, p.q, p.kv, p.indices, kScale);
      });
  const auto quantise = [p, layout] {
    stored(p.query, layout.query);
    stored(p.keys, layout.kv);
  };
  const double dense = static_cast<double>((is_e4m3 ? p.query.nbytes() : 0) + p.keys.nbytes()),
               kept = static_cast<double>((is_e4m3 ? p.q.payload.nbytes() : 0) +
                                          p.kv.payload.nbytes());
  calls.push_back(timed(layout.name, "quantise", quantise, 0, 0, dense + kept));
}

void add_bf16(std::vector<Timed>& calls, const Sizes& o) {
  const Problem p = problem_of(kLayouts[0], o, 1);
  const auto [out, lse, rest] =
      ops::sparse_mla_dims::sparse_mla_forward(p.query, p.keys, p.indices, kScale, kDimV);
  const Fp8Storage q{p.query, std::nullopt}, kv{p.keys, std::nullopt};
  const double written =
      static_cast<double>(2 * out.nbytes() + lse.nbytes());  // with the remainder
  add_both(
      calls, "bf16", o, work_of(o).logits / kBf16Flops, bytes_of(q, kv, p.indices), written,
      [p] { ops::sparse_mla_dims::sparse_mla_forward(p.query, p.keys, p.indices, kScale, kDimV); },
      [p, out = out, lse = lse, rest = rest] {
        ops::sparse_mla_dims::sparse_mla_backward(p.grad_out, out, rest, lse, p.query, p.keys,
                                                  p.indices, kScale);
      });
}

Json measure(const Options& options, bool& passed) {
  const Sizes sizes = sizes_of(options);
  Json rows = Json::array(), errors = Json::array();
  std::vector<Timed> calls;
  add_bf16(calls, sizes);
  for (const Layout& layout : kLayouts) {
    for (const double sharpness : {1.0, 4.0})
      errors.push_back(errors_of(layout, sizes, sharpness, passed));
    add_layout(calls, layout, sizes);
  }
  std::vector<std::function<void()>> in_turn;
  for (const Timed& one : calls) in_turn.push_back(one.call);
  const auto times = bench::times_in_turn(in_turn, options.repeats);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const bench::Timing timing = bench::timing_of(times[i]);
    Json& row = rows.emplace_back(std::move(calls[i].row));
    row["median_ms"] = timing.median_ms;
    row["low_ms"] = timing.low_ms;
    row["high_ms"] = timing.high_ms;
    row["tflops"] = row.at("flops").get<double>() / timing.median_ms / 1e9;
  }
  return {{"shape_is", "queries, num_heads, topk, keys; head_dim 576/512"},
          {"how", "all rows in turn"},
          {"path", sparse_mla_fp8_path(torch::empty({1}, torch::kCUDA))},
          {"floor_rates", {{"e4m3_flops", kE4m3Flops}, {"bf16_flops", kBf16Flops}}},
          {"rows", rows},
          {"errors", errors}};
}

void print_table(const Json& report) {
  const auto number = [](const Json& row, const char* key) { return row.at(key).get<double>(); };
  const auto text = [](const Json& row, const char* key) { return row.at(key).get<std::string>(); };
  std::printf("%s, path %s, queries, heads, topk, keys %s; clocks %s\n",
              text(report, "device").c_str(), text(report, "path").c_str(),
              report.at("shape").dump().c_str(), text(report, "clocks_sm_mem_temperature").c_str());
  std::printf("%-22s %-8s %9s %15s %8s %9s\n", "layout", "", "median ms", "10 % - 90 %", "TFLOP/s",
              "floor ms");
  for (const Json& row : report.at("rows"))
    std::printf("%-22s %-8s %9.3f %7.3f-%7.3f %8.0f %9.3f\n", text(row, "layout").c_str(),
                text(row, "what").c_str(), number(row, "median_ms"), number(row, "low_ms"),
                number(row, "high_ms"), number(row, "tflops"), number(row, "floor_matrix_ms"));
  std::printf("%-22s %4s %9s %9s %9s %9s %9s\n", "error against fp64", "q x", "out", "out max",
              "lse max", "grad_q", "grad_kv");
  for (const Json& row : report.at("errors"))
    std::printf("%-22s %4.0f %9.2e %9.2e %9.2e %9.2e %9.2e\n", text(row, "layout").c_str(),
                number(row, "query_times"), number(row, "out_relative"), number(row, "out_max"),
                number(row, "lse_max"), number(row, "grad_q_relative"),
                number(row, "grad_kv_relative"));
}

}  // namespace
}  // namespace patchbench::sparse_mla_fp8_bench

int main(int argc, char** argv) {
  using namespace patchbench;
  return bench::bench_main({.name = "bench_fp8_storage_dispatch",
                            .axes = "QUERIES,HEADS,TOPK,KEYS",
                            .defaults = {.shape = {1024, 128, 2048, 8192}},
                            .help = sparse_mla_fp8_bench::kHelp,
                            .measure = sparse_mla_fp8_bench::measure,
                            .print_table = sparse_mla_fp8_bench::print_table},
                           argc, argv);
}
