#pragma once
#include <ATen/record_function.h>

#include <cstdint>

namespace patchbench::harness {

/// Counts, on this thread and while it lives, the calls of torch operators that hand a device value
/// to the host, nested ones included: scalar reads (item, bool of a tensor), equal, nonzero (also
/// inside boolean indexing, masked_select and where with one argument), is_nonzero, unique. Each is
/// illegal while a CUDA stream captures. Counted by name, whatever the device, so that a path can
/// be judged without a GPU; a scalar read of a CPU tensor on a GPU path counts too. Calls below the
/// dispatcher (raw CUDA) are not seen.
class HostReadCounter {
 public:
  HostReadCounter();
  ~HostReadCounter();
  HostReadCounter(const HostReadCounter&) = delete;
  HostReadCounter& operator=(const HostReadCounter&) = delete;
  int64_t count() const;

 private:
  at::CallbackHandle handle_;
  int64_t before_ = 0;
};

}  // namespace patchbench::harness
