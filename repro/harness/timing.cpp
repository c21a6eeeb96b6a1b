#include "harness/timing.h"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "exec/process.h"
#ifdef PATCHBENCH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#endif

namespace patchbench::harness {

Timing time_on_device(const std::function<void()>& call, int repeats) {
#ifdef PATCHBENCH_CUDA
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
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * (repeats - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9)};
#else
  static_cast<void>(call);
  static_cast<void>(repeats);
  TORCH_CHECK(false, "time_on_device: built without CUDA");
#endif
}

std::string device_clocks() {
  const exec::Exit result =
      exec::run({.argv = {"nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,temperature.gpu",
                          "--format=csv,noheader"}});
  return result.ok() ? result.out.substr(0, result.out.find('\n')) : "unknown";
}

}  // namespace patchbench::harness
