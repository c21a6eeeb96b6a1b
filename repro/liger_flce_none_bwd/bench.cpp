// Time and peak memory of patchbench::flce, forward and backward, against plain torch, with the
// rows of another program if one is named. Needs a CUDA device; checks sampled rows and columns
// against fp64 in the same run.
#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench_main.h"
#include "bench/timing.h"
#include "core/error.h"
#include "exec/process.h"
#include "harness/compare.h"
#include "harness/inputs.h"
#include "harness/meter.h"
#include "liger_flce_none_bwd/op.h"

namespace patchbench::liger_flce_bench {
namespace {

using bench::Options;
using harness::Tensors;
using ops::liger_flce_none_bwd::FlceOptions;

constexpr int64_t kSamples = 64;

constexpr const char* kHelp =
    "  [--chunk-mib N,...] [--beside COMMAND]\n"
    "  --chunk-mib measures the op at each of these tile sizes too, every one against fp64\n"
    "  COMMAND prints one JSON object {\"rows\": [...]} of this program's keys; see bench_liger.py "
    "beside bench.cpp\n";

struct Sizes {
  int64_t tokens, hidden, vocab;
};

Sizes sizes_of(const Options& options) {
  return {options.shape[0], options.shape[1], options.shape[2]};
}

std::vector<int64_t> chunks_mib(const Options& options) {
  const std::string& text = options.own.at("--chunk-mib");
  return text.empty() ? std::vector<int64_t>() : bench::numbers("--chunk-mib", text);
}

void check(const Options& options) {
  const auto [tokens, hidden, vocab] = sizes_of(options);
  if (std::min(tokens, vocab) < kSamples)
    throw Error(ErrorCode::kUsage, "--shape wants TOKENS and VOCAB >= " + std::to_string(kSamples));
  chunks_mib(options);
}

/// bf16 leaves, targets of which a tenth is ignored, and a grad_output that differs by row and is 0
/// in places.
Tensors inputs_of(const Sizes& sizes) {
  const auto [tokens, hidden, vocab] = sizes;
  torch::manual_seed(9);
  const auto bf16 = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  const auto i64 = torch::dtype(torch::kLong).device(torch::kCUDA);
  Tensors t;
  t["hidden"] = torch::randn({tokens, hidden}, bf16).requires_grad_(true);
  t["weight"] = torch::randn({vocab, hidden}, bf16).mul_(0.02).requires_grad_(true);
  t["target"] = torch::randint(0, vocab, {tokens}, i64);
  t["target"].masked_fill_(torch::rand({tokens}, torch::kCUDA).lt(0.1), -100);
  const at::Tensor weights = torch::rand({tokens}, torch::kCUDA);
  t["grad_output"] = weights.masked_fill(weights.lt(0.2), 0.0);
  return t;
}

/// One forward and backward; the gradients of hidden and weight.
using Step = std::function<Tensors()>;

Tensors with_gradients(const at::Tensor& loss, const Tensors& t, const std::string& reduction) {
  const at::Tensor grad =
      reduction == "none" ? t.at("grad_output").to(loss.scalar_type()) : torch::ones_like(loss);
  const auto grads = torch::autograd::grad({loss}, {t.at("hidden"), t.at("weight")}, {grad});
  return {{"loss", loss.detach()}, {"grad_hidden", grads[0]}, {"grad_weight", grads[1]}};
}

Step op_step(const Tensors& t, const std::string& reduction,
             std::optional<int64_t> chunk_bytes = std::nullopt) {
  FlceOptions flce_options{.reduction = reduction};
  flce_options.chunk_bytes = chunk_bytes;
  return [=, &t] {
    return with_gradients(ops::liger_flce_none_bwd::flce(t.at("hidden"), t.at("weight"),
                                                         t.at("target"), flce_options),
                          t, reduction);
  };
}

Step plain_step(const Tensors& t, const std::string& reduction) {
  return [=, &t] {
    namespace F = torch::nn::functional;
    auto loss_options = F::CrossEntropyFuncOptions();
    if (reduction == "none") loss_options.reduction(torch::kNone);
    const at::Tensor logits = F::linear(t.at("hidden"), t.at("weight"));
    return with_gradients(F::cross_entropy(logits, t.at("target"), loss_options), t, reduction);
  };
}

int64_t peak_of(const Step& step) {
  step();
  torch::cuda::synchronize();
  const harness::MemoryMeter meter("cuda:0");
  step();
  torch::cuda::synchronize();
  return meter.peak_bytes();
}

Json row_of(const std::string& name, const std::string& reduction, const Step& step,
            const Options& options) {
  const int64_t peak = peak_of(step);
  const bench::Timing timing = bench::time_on_device([&] { step(); }, options.repeats);
  return {{"name", name},
          {"reduction", reduction},
          {"median_ms", timing.median_ms},
          {"low_ms", timing.low_ms},
          {"high_ms", timing.high_ms},
          {"peak_bytes", peak}};
}

/// Evenly spread indices, so that every tile of rows and of classes is sampled.
at::Tensor samples_of(int64_t length) {
  const at::Tensor steps = torch::arange(kSamples, torch::dtype(torch::kLong).device(torch::kCUDA));
  return at::floor_divide(steps * (length - 1), kSamples - 1);
}

/// What is compared: rows of grad_hidden and of grad_weight.
struct Samples {
  at::Tensor rows, classes;

  Tensors of(const Tensors& outputs) const {
    return {{"grad_hidden", outputs.at("grad_hidden").index_select(0, rows)},
            {"grad_weight", outputs.at("grad_weight").index_select(0, classes)}};
  }
};

/// The samples in fp64.
Tensors sampled_oracle(const Tensors& t, const Samples& samples, const std::string& reduction) {
  const auto& [rows, classes] = samples;
  const at::Tensor x = t.at("hidden").detach().to(torch::kDouble),
                   w = t.at("weight").detach().to(torch::kDouble);
  const at::Tensor target = t.at("target");
  const at::Tensor valid = target.ne(-100).to(torch::kDouble);
  const at::Tensor grad =
      reduction == "none" ? t.at("grad_output").to(torch::kDouble) * valid : valid / valid.sum();
  std::vector<at::Tensor> lse;
  for (int64_t first = 0; first < x.size(0); first += 512) {
    lse.push_back(x.slice(0, first, first + 512).mm(w.t()).logsumexp(1));
  }
  const at::Tensor all_lse = torch::cat(lse);
  const auto part = [&](const at::Tensor& logits, const at::Tensor& who, const at::Tensor& which) {
    const at::Tensor p = (logits - all_lse.index_select(0, who).unsqueeze(1)).exp();
    const at::Tensor hit =
        which.unsqueeze(0).eq(target.index_select(0, who).unsqueeze(1)).to(torch::kDouble);
    return (p - hit) * grad.index_select(0, who).unsqueeze(1);
  };
  const auto i64 = target.options();
  const at::Tensor all_rows = torch::arange(x.size(0), i64),
                   all_classes = torch::arange(w.size(0), i64);
  const at::Tensor by_row = part(x.index_select(0, rows).mm(w.t()), rows, all_classes);
  const at::Tensor by_class = part(x.mm(w.index_select(0, classes).t()), all_rows, classes);
  return {{"grad_hidden", by_row.mm(w)}, {"grad_weight", by_class.t().mm(x)}};
}

constexpr harness::Tolerances kTolerances = {
    .element = {2, 4,
                "bf16 rounding of one element; measured on the CPU <= 1.5 ulp of the largest"},
    .row = {2, 4, "bf16 rounding of one row; measured on the CPU <= 2 ulp"},
    .cosine = {2, 0.01, "quadratic in the error"},
    .scale = {2, 1, "a common factor has no excuse beyond one rounding"},
};

/// The op and plain torch against fp64, on samples of one reduction.
class Judge {
 public:
  Judge(const Tensors& t, const std::string& reduction)
      : samples_{samples_of(t.at("hidden").size(0)), samples_of(t.at("weight").size(0))},
        oracle_(sampled_oracle(t, samples_, reduction)),
        plain_(samples_.of(plain_step(t, reduction)())) {}

  /// The deciding measure of each gradient that `step` gives.
  Json checks(const Step& step, bool& passed) const {
    const Tensors got = samples_.of(step());
    Json checks = Json::array();
    for (const auto& [name, reference] : oracle_) {
      const auto layers = harness::compare(name, got.at(name), reference.cpu(), plain_.at(name),
                                           kTolerances, harness::epsilon_of(torch::kBFloat16));
      const Measure& m = harness::deciding(layers);
      passed = passed && m.pass;
      checks.push_back({{"tensor", name},
                        {"layer", m.layer},
                        {"error", number_or_name(m.got)},
                        {"plain_error", number_or_name(m.plain)},
                        {"limit", number_or_name(m.limit)},
                        {"pass", m.pass},
                        {"samples", kSamples}});
    }
    return checks;
  }

 private:
  Samples samples_;
  Tensors oracle_, plain_;
};

double gemm_ms(const Tensors& t, int repeats) {
  const at::Tensor x = t.at("hidden").detach(), w = t.at("weight").detach();
  const at::Tensor out = torch::empty({x.size(0), w.size(0)}, x.options());
  return bench::time_on_device(
             [&] {
               at::Tensor result = out;
               at::mm_out(result, x, w.t());
             },
             repeats)
      .median_ms;
}

Json rows_beside(const std::string& command) {
  const exec::Exit result = exec::run({.argv = {"/bin/sh", "-c", command}, .inherit_stderr = true});
  if (!result.ok()) {
    throw Error(ErrorCode::kUnresolved, "--beside: the command ended with status " +
                                            std::to_string(result.exit_code) + ": " + command);
  }
  return parse_json(result.out, "--beside").at("rows");
}

/// The op at one size of tile (none: its default), with its errors.
Json op_row(const Tensors& t, const std::string& reduction, const Options& options,
            const Judge& judge, std::optional<int64_t> chunk_mib, bool& passed) {
  const std::string path = ops::liger_flce_none_bwd::flce_path(t.at("hidden"));
  std::optional<int64_t> chunk_bytes;
  if (chunk_mib) chunk_bytes = *chunk_mib << 20;
  const Step step = op_step(t, reduction, chunk_bytes);
  Json row = row_of("patchbench::flce (" + path + ")", reduction, step, options);
  if (chunk_mib) row["chunk_mib"] = *chunk_mib;
  row["checks"] = judge.checks(step, passed);
  return row;
}

Json measure_here(const Options& options, bool& passed) {
  const Tensors t = inputs_of(sizes_of(options));
  const double one_gemm = gemm_ms(t, options.repeats);
  Json rows = Json::array();
  for (const char* reduction : {"none", "mean"}) {
    const bool is_none = std::string(reduction) == "none";
    const Judge judge(t, reduction);
    at::accelerator::emptyCache();
    rows.push_back(op_row(t, reduction, options, judge, std::nullopt, passed));
    rows.push_back(row_of("plain torch", reduction, plain_step(t, reduction), options));
    rows.push_back({{"name", is_none ? "floor: 4 GEMMs" : "floor: 3 GEMMs"},
                    {"reduction", reduction},
                    {"median_ms", one_gemm * (is_none ? 4 : 3)}});
    for (const int64_t mib : chunks_mib(options))
      rows.push_back(op_row(t, reduction, options, judge, mib, passed));
  }
  return {{"dtype", "bfloat16"}, {"one_gemm_ms", one_gemm}, {"rows", rows}};
}

Json measure(const Options& options, bool& passed) {
  Json report = measure_here(options, passed);
  if (const std::string& command = options.own.at("--beside"); !command.empty()) {
    at::accelerator::emptyCache();  // the command needs the memory
    for (const Json& row : rows_beside(command)) report["rows"].push_back(row);
  }
  return report;
}

void print_row(const Json& row) {
  const std::string tile = row.contains("chunk_mib")
                               ? ", " + std::to_string(row["chunk_mib"].get<int64_t>()) + " MiB"
                               : "";
  std::printf("%-34s %-9s %10.2f", (row.at("name").get<std::string>() + tile).c_str(),
              row.at("reduction").get<std::string>().c_str(), row.at("median_ms").get<double>());
  if (row.contains("low_ms")) {
    std::printf(" %8.2f - %6.2f %10.3f", row.at("low_ms").get<double>(),
                row.at("high_ms").get<double>(), row.at("peak_bytes").get<double>() / (1 << 30));
  }
  std::printf("\n");
  for (const Json& check : row.value("checks", Json::array())) {
    std::printf("    %s, %ld samples: %s error %.2e, plain torch %.2e, limit %.2e: %s\n",
                check.at("tensor").get<std::string>().c_str(), check.at("samples").get<long>(),
                check.at("layer").get<std::string>().c_str(), number_from(check.at("error")),
                number_from(check.at("plain_error")), number_from(check.at("limit")),
                check.at("pass").get<bool>() ? "within" : "OUTSIDE");
  }
}

void print_table(const Json& report) {
  const Json& shape = report.at("shape");
  std::printf("%s, torch %s, tokens %ld hidden %ld vocab %ld bf16, median of %d; clocks %s\n",
              report.at("device").get<std::string>().c_str(),
              report.at("torch").get<std::string>().c_str(), shape[0].get<long>(),
              shape[1].get<long>(), shape[2].get<long>(), report.at("repeats").get<int>(),
              report.at("clocks_sm_mem_temperature").get<std::string>().c_str());
  std::printf("%-34s %-9s %10s %17s %10s\n", "forward + backward", "reduction", "median ms",
              "10 % - 90 % ms", "extra GiB");
  for (const Json& row : report.at("rows")) print_row(row);
}

}  // namespace
}  // namespace patchbench::liger_flce_bench

int main(int argc, char** argv) {
  using namespace patchbench;
  return bench::bench_main(
      {.name = "bench_liger_flce_none_bwd",
       .axes = "TOKENS,HIDDEN,VOCAB",
       .defaults = {.shape = {8192, 4096, 128256}, .own = {{"--chunk-mib", ""}, {"--beside", ""}}},
       .help = liger_flce_bench::kHelp,
       .check = liger_flce_bench::check,
       .measure = liger_flce_bench::measure,
       .print_table = liger_flce_bench::print_table},
      argc, argv);
}
