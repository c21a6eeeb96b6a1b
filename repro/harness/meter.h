#pragma once
#include <cstdint>
#include <string>

namespace patchbench::harness {

/// Peak memory of the work in this process between construction and `peak_bytes`, above what was
/// held at construction: the torch allocator's on a CUDA device, the resident set's on the CPU. One
/// at a time.
class MemoryMeter {
 public:
  explicit MemoryMeter(const std::string& device);
  /// Bytes at the peak less bytes at construction; 0 without such a meter.
  int64_t peak_bytes() const;
  /// "torch_allocator", "rss" or, on a GPU in a build without CUDA, "none".
  std::string kind() const;

 private:
  int cuda_index_ = -1;
  int64_t baseline_bytes_ = 0;
};

}  // namespace patchbench::harness
