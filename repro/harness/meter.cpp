#include "harness/meter.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#ifdef PATCHBENCH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace patchbench::harness {
namespace {

/// A kB field of /proc/self/status in bytes, 0 if it is not there.
int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(field + ":")) continue;
    std::istringstream number(line.substr(field.size() + 1));
    int64_t kilobytes = 0;
    number >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

#ifdef PATCHBENCH_CUDA
int64_t allocated(int index, bool at_peak) {
  c10::cuda::device_synchronize();
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  const auto& bytes =
      stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return at_peak ? bytes.peak : bytes.current;
}
#endif

}  // namespace

MemoryMeter::MemoryMeter(const std::string& device) {
  if (device.starts_with("cuda:")) cuda_index_ = std::stoi(device.substr(5));
#ifdef PATCHBENCH_CUDA
  if (cuda_index_ >= 0) {
    c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(cuda_index_));
    baseline_bytes_ = allocated(cuda_index_, false);
    return;
  }
#endif
  // "5" resets the high-water mark of the resident set.
  std::ofstream("/proc/self/clear_refs") << "5";
  baseline_bytes_ = status_bytes("VmRSS");
}

int64_t MemoryMeter::peak_bytes() const {
#ifdef PATCHBENCH_CUDA
  if (cuda_index_ >= 0) return allocated(cuda_index_, true) - baseline_bytes_;
#endif
  if (cuda_index_ >= 0) return 0;
  return std::max<int64_t>(0, status_bytes("VmHWM") - baseline_bytes_);
}

std::string MemoryMeter::kind() const {
#ifdef PATCHBENCH_CUDA
  if (cuda_index_ >= 0) return "torch_allocator";
#endif
  return cuda_index_ >= 0 ? "none" : "rss";
}

}  // namespace patchbench::harness
