#pragma once
#include <torch/csrc/stable/accelerator.h>

#include "tensor.h"

/// Registration of an op's functions by torch's stable ABI. Autograd and fake implementations are
/// Python's (packs/python/patchbench_ops); called from C++ alone, no op has a gradient.
namespace patchbench::ops {

/// Nothing in here is recorded for autograd. Without it the torch calls of a plain form would be:
/// the ABI has no dispatch key below autograd.
class NoGrad {
 public:
  NoGrad() : was_enabled_(aoti_torch_grad_mode_is_enabled()) {
    aoti_torch_grad_mode_set_enabled(false);
  }
  ~NoGrad() { aoti_torch_grad_mode_set_enabled(was_enabled_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool was_enabled_;
};

/// The tensor's GPU, if it is on one, for the length of a scope.
class DeviceScope {
 public:
  explicit DeviceScope(const Tensor& tensor) {
    if (tensor.is_cuda()) guard_.emplace(tensor.get_device_index());
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

/// `kFunction` as the stable ABI takes it, below autograd.
template <auto* kFunction>
void boxed(StableIValue* stack, uint64_t num_arguments, uint64_t num_results) {
  const NoGrad guard;
  torch::stable::detail::boxer<std::remove_pointer_t<decltype(kFunction)>, kFunction>::boxed_fn(
      stack, num_arguments, num_results);
}

}  // namespace patchbench::ops
