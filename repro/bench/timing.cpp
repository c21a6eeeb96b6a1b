#include "bench/timing.h"

#include <torch/torch.h>

#include <algorithm>

#include "exec/process.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#endif

namespace patchbench::bench {

#ifdef PATCHBENCH_CUDA

std::vector<std::vector<double>> times_in_turn(const std::vector<std::function<void()>>& calls,
                                               int repeats) {
  constexpr int64_t kFlushBytes = int64_t{256} << 20;
  constexpr int kWarmUp = 3;
  const at::Tensor flush =
      torch::empty({kFlushBytes}, torch::dtype(torch::kByte).device(torch::kCUDA));
  std::vector<std::vector<double>> times(calls.size());
  for (int round = 0; round < kWarmUp + repeats; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      flush.zero_();
      at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
      begin.record();
      calls[i]();
      end.record();
      end.synchronize();
      if (round >= kWarmUp) times[i].push_back(static_cast<double>(begin.elapsed_time(end)));
    }
  }
  for (std::vector<double>& some : times) std::sort(some.begin(), some.end());
  return times;
}

std::string device_name() { return at::cuda::getCurrentDeviceProperties()->name; }

#else

std::vector<std::vector<double>> times_in_turn(const std::vector<std::function<void()>>&, int) {
  TORCH_CHECK(false, "times_in_turn: built without CUDA");
}

std::string device_name() { TORCH_CHECK(false, "device_name: built without CUDA"); }

#endif

Timing timing_of(const std::vector<double>& times) {
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

Timing time_on_device(const std::function<void()>& call, int repeats) {
  return timing_of(times_in_turn({call}, repeats)[0]);
}

std::string device_clocks() {
  const exec::Exit result =
      exec::run({.argv = {"nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,temperature.gpu",
                          "--format=csv,noheader"}});
  return result.ok() ? result.out.substr(0, result.out.find('\n')) : "unknown";
}

}  // namespace patchbench::bench
