#include "bench/bench_main.h"

#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <sstream>

#include "bench/timing.h"
#include "core/error.h"

namespace patchbench::bench {
namespace {

constexpr int kLeastRepeats = 20;
#ifdef PATCHBENCH_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

struct Request {
  Options options;
  bool wants_json = false;
};

Request parse(const Bench& bench, const std::vector<std::string>& arguments) {
  Request request{bench.defaults, bench.print_table == nullptr};
  Options& options = request.options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--json") {
      request.wants_json = true;
      continue;
    }
    const bool is_known =
        name == "--shape" || name == "--repeats" || bench.defaults.own.contains(name);
    if (!is_known || i + 1 == arguments.size())
      throw Error(ErrorCode::kUsage, name + " is unknown or wants a value; see --help");
    const std::string& value = arguments[++i];
    if (name == "--shape") {
      options.shape = numbers(name, value);
      if (options.shape.size() != bench.defaults.shape.size())
        throw Error(ErrorCode::kUsage, name + " wants " + bench.axes + ", got " + value);
    } else if (name == "--repeats") {
      const std::vector<int64_t> repeats = numbers(name, value);
      if (repeats.size() != 1 || repeats[0] < kLeastRepeats)
        throw Error(ErrorCode::kUsage, name + " wants one number >= " +
                                           std::to_string(kLeastRepeats) + ", got " + value);
      options.repeats = static_cast<int>(repeats[0]);
    } else {
      options.own[name] = value;
    }
  }
  if (bench.check != nullptr) bench.check(options);
  return request;
}

int run(const Bench& bench, const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::cout << bench.name << " [--shape " << bench.axes << "] [--repeats N>=" << kLeastRepeats
              << "] [--json]\n"
              << bench.help;
    return 0;
  }
  const auto [options, wants_json] = parse(bench, arguments);
  if (!kHasCuda || bench.measure == nullptr)
    throw Error(ErrorCode::kNotRunnable, "built without CUDA; configure with --preset cuda");
  if (!torch::cuda::is_available())
    throw Error(ErrorCode::kNotRunnable,
                "no CUDA device on this machine; the bench measures nothing on a CPU");
  bool passed = true;
  const Json measured = bench.measure(options, passed);
  Json report = {{"shape", options.shape},
                 {"device", device_name()},
                 {"clocks_sm_mem_temperature", device_clocks()},
                 {"torch", TORCH_VERSION},
                 {"repeats", options.repeats}};
  report.update(measured);
  if (wants_json) {
    std::cout << canonical_json(report) << "\n";
  } else {
    bench.print_table(report);
  }
  return passed ? 0 : 1;
}

int exit_status(ErrorCode code) {
  if (code == ErrorCode::kUsage) return 2;
  return code == ErrorCode::kNotRunnable ? 4 : 3;
}

}  // namespace

std::vector<int64_t> numbers(const std::string& option, const std::string& text) {
  std::vector<int64_t> values;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc{} || end != part.data() + part.size() || value < 1 || value > INT32_MAX)
      throw Error(ErrorCode::kUsage, option + " wants numbers >= 1, got " + text);
    values.push_back(value);
  }
  return values;
}

int bench_main(const Bench& bench, int argc, char** argv) {
  try {
    return run(bench, {argv + 1, argv + argc});
  } catch (const Error& e) {
    std::cerr << bench.name << ": " << e.what() << "\n";
    return exit_status(e.code());
  } catch (const std::exception& e) {
    const std::string text = e.what();
    std::cerr << bench.name << ": " << text.substr(0, text.find('\n')) << "\n";
    return exit_status(ErrorCode::kUnresolved);
  }
}

}  // namespace patchbench::bench
