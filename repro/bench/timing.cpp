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

std::vector<double> times_on_device(const std::function<void()>& call, int repeats) {
  constexpr int64_t kFlushBytes = int64_t{256} << 20;
  const at::Tensor flush =
      torch::empty({kFlushBytes}, torch::dtype(torch::kByte).device(torch::kCUDA));
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    flush.zero_();
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    call();
    end.record();
    end.synchronize();
    times.push_back(static_cast<double>(begin.elapsed_time(end)));
  }
  std::sort(times.begin(), times.end());
  return times;
}

std::string device_name() { return at::cuda::getCurrentDeviceProperties()->name; }

#else

std::vector<double> times_on_device(const std::function<void()>&, int) {
  TORCH_CHECK(false, "times_on_device: built without CUDA");
}

std::string device_name() { TORCH_CHECK(false, "device_name: built without CUDA"); }

#endif

Timing time_on_device(const std::function<void()>& call, int repeats) {
  const std::vector<double> times = times_on_device(call, repeats);
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * (repeats - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

std::string device_clocks() {
  const exec::Exit result =
      exec::run({.argv = {"nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,temperature.gpu",
                          "--format=csv,noheader"}});
  return result.ok() ? result.out.substr(0, result.out.find('\n')) : "unknown";
}

}  // namespace patchbench::bench
