// Time and peak memory of patchbench::flce, forward and backward, beside plain torch and, with
// --beside, another program's rows. Needs a CUDA device; checks sampled rows and columns against
// fp64 in the same run.
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "exec/process.h"
#include "harness/compare.h"
#include "harness/inputs.h"
#include "harness/meter.h"
#include "harness/timing.h"
#include "liger_flce_none_bwd/op.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace patchbench::liger_flce_bench {
namespace {

using harness::Tensors;
using ops::liger_flce_none_bwd::FlceOptions;

constexpr int kUsage = 2, kUnresolved = 3, kNotRunnable = 4;
constexpr int64_t kSamples = 64;

constexpr const char* kHelp =
    "bench_liger_flce_none_bwd [--shape TOKENS,HIDDEN,VOCAB] [--repeats N>=20] [--chunk-mib N,...] "
    "[--beside COMMAND] [--json]\n"
    "  --chunk-mib measures the op at each of these tile sizes too, every one against fp64\n"
    "  COMMAND prints one JSON object {\"rows\": [...]} of this program's keys; see bench_liger.py "
    "beside bench.cpp\n";

struct Options {
  int64_t tokens = 8192, hidden = 4096, vocab = 128256;
  int repeats = 20;
  std::vector<int64_t> chunks_mib;
  std::string beside;
  bool wants_json = false;
};

int64_t number(const std::string& flag, const std::string& text, int64_t least) {
  std::size_t end = 0;
  int64_t value = 0;
  try {
    value = std::stoll(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end == 0 || end != text.size() || value < least) {
    throw Error(ErrorCode::kUsage,
                flag + " wants a number >= " + std::to_string(least) + ", got " + text);
  }
  return value;
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& flag = words[i];
    if (flag == "--json") {
      options.wants_json = true;
      continue;
    }
    if (i + 1 == words.size())
      throw Error(ErrorCode::kUsage, flag + " is unknown or wants a value; see --help");
    const std::string value = words[++i];
    if (flag == "--shape") {
      const auto first = value.find(','), second = value.find(',', first + 1);
      if (first == std::string::npos || second == std::string::npos) {
        throw Error(ErrorCode::kUsage, "--shape wants TOKENS,HIDDEN,VOCAB, got " + value);
      }
      options.tokens = number(flag, value.substr(0, first), kSamples);
      options.hidden = number(flag, value.substr(first + 1, second - first - 1), 1);
      options.vocab = number(flag, value.substr(second + 1), kSamples);
    } else if (flag == "--repeats") {
      options.repeats = static_cast<int>(number(flag, value, 20));
    } else if (flag == "--chunk-mib") {
      std::istringstream list(value);
      for (std::string word; std::getline(list, word, ',');)
        options.chunks_mib.push_back(number(flag, word, 1));
    } else if (flag == "--beside") {
      options.beside = value;
    } else {
      throw Error(ErrorCode::kUsage, flag + " is unknown; see --help");
    }
  }
  return options;
}

#ifdef PATCHBENCH_CUDA

/// bf16 leaves, targets of which a tenth is ignored, and a grad_output that differs by row and is 0
/// in places.
Tensors inputs_of(const Options& options) {
  torch::manual_seed(9);
  const auto bf16 = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  const auto i64 = torch::dtype(torch::kLong).device(torch::kCUDA);
  Tensors t;
  t["hidden"] = torch::randn({options.tokens, options.hidden}, bf16).requires_grad_(true);
  t["weight"] = torch::randn({options.vocab, options.hidden}, bf16).mul_(0.02).requires_grad_(true);
  t["target"] = torch::randint(0, options.vocab, {options.tokens}, i64);
  t["target"].masked_fill_(torch::rand({options.tokens}, torch::kCUDA).lt(0.1), -100);
  const at::Tensor weights = torch::rand({options.tokens}, torch::kCUDA);
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
  c10::cuda::device_synchronize();
  const harness::MemoryMeter meter("cuda:0");
  step();
  c10::cuda::device_synchronize();
  return meter.peak_bytes();
}

Json row_of(const std::string& name, const std::string& reduction, const Step& step,
            const Options& options) {
  const int64_t peak = peak_of(step);
  const harness::Timing timing = harness::time_on_device([&] { step(); }, options.repeats);
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
  Judge(const Tensors& t, const Options& options, const std::string& reduction)
      : samples_{samples_of(options.tokens), samples_of(options.vocab)},
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

double gemm_ms(const Tensors& t, const Options& options) {
  const at::Tensor x = t.at("hidden").detach(), w = t.at("weight").detach();
  const at::Tensor out = torch::empty({options.tokens, options.vocab}, x.options());
  return harness::time_on_device(
             [&] {
               at::Tensor result = out;
               at::mm_out(result, x, w.t());
             },
             options.repeats)
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

Json measure(const Options& options, bool& passed) {
  const Tensors t = inputs_of(options);
  const double one_gemm = gemm_ms(t, options);
  Json rows = Json::array();
  for (const char* reduction : {"none", "mean"}) {
    const bool is_none = std::string(reduction) == "none";
    const Judge judge(t, options, reduction);
    c10::cuda::CUDACachingAllocator::emptyCache();
    rows.push_back(op_row(t, reduction, options, judge, std::nullopt, passed));
    rows.push_back(row_of("plain torch", reduction, plain_step(t, reduction), options));
    rows.push_back({{"name", is_none ? "floor: 4 GEMMs" : "floor: 3 GEMMs"},
                    {"reduction", reduction},
                    {"median_ms", one_gemm * (is_none ? 4 : 3)}});
    for (const int64_t mib : options.chunks_mib)
      rows.push_back(op_row(t, reduction, options, judge, mib, passed));
  }
  return {{"shape", {options.tokens, options.hidden, options.vocab}},
          {"dtype", "bfloat16"},
          {"device", at::cuda::getCurrentDeviceProperties()->name},
          {"clocks_sm_mem_temperature", harness::device_clocks()},
          {"torch", TORCH_VERSION},
          {"repeats", options.repeats},
          {"one_gemm_ms", one_gemm},
          {"rows", rows}};
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

#endif  // PATCHBENCH_CUDA

int run(const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::cout << kHelp;
    return 0;
  }
  const Options options = parse(words);
  if (!torch::cuda::is_available()) {
    std::cerr << "bench_liger_flce_none_bwd: no CUDA device on this machine; the bench measures "
                 "nothing on a CPU\n";
    return kNotRunnable;
  }
#ifdef PATCHBENCH_CUDA
  bool passed = true;
  Json report = measure(options, passed);
  if (!options.beside.empty()) {
    c10::cuda::CUDACachingAllocator::emptyCache();
    for (const Json& row : rows_beside(options.beside)) report["rows"].push_back(row);
  }
  if (options.wants_json) {
    std::cout << canonical_json(report) << "\n";
  } else {
    print_table(report);
  }
  return passed ? 0 : 1;
#else
  std::cerr << "bench_liger_flce_none_bwd: built without CUDA; configure with --preset cuda\n";
  return kNotRunnable;
#endif
}

}  // namespace
}  // namespace patchbench::liger_flce_bench

int main(int argc, char** argv) {
  using namespace patchbench;
  try {
    return liger_flce_bench::run({argv + 1, argv + argc});
  } catch (const Error& e) {
    std::cerr << "bench_liger_flce_none_bwd: " << e.what() << "\n";
    return e.code() == ErrorCode::kUsage ? liger_flce_bench::kUsage : liger_flce_bench::kUnresolved;
  } catch (const std::exception& e) {
    const std::string text = e.what();
    std::cerr << "bench_liger_flce_none_bwd: " << text.substr(0, text.find('\n')) << "\n";
    return liger_flce_bench::kUnresolved;
  }
}
