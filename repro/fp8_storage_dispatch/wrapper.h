#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>
#include <torch/torch.h>

/// A tensor that says bfloat16 and has no memory of it: the wrapper of an FP8 library, in libtorch
/// alone. Its values are `payload` (e4m3) times `scale`; its own storage has the logical size and a
/// null pointer.
namespace patchbench::fp8_storage_dispatch {

constexpr auto kWrapperKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

class WrapperImpl : public c10::TensorImpl {
 public:
  WrapperImpl(at::Tensor payload, at::Tensor scale)
      : c10::TensorImpl(null_storage(payload), c10::DispatchKeySet(kWrapperKey),
                        caffe2::TypeMeta::Make<at::BFloat16>()),
        payload_(std::move(payload)),
        scale_(std::move(scale)) {
    set_sizes_contiguous(payload_.sizes());
  }
  const at::Tensor& payload() const { return payload_; }
  const at::Tensor& scale() const { return scale_; }
  at::Tensor dequantize() const { return (payload_.to(at::kFloat) * scale_).to(at::kBFloat16); }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_change) const override {
    auto copy = c10::make_intrusive<WrapperImpl>(payload_, scale_);
    copy_tensor_metadata(this, copy.get(), version, allow_change);
    return copy;
  }

 private:
  static c10::Storage null_storage(const at::Tensor& payload) {
    const auto bytes = 2 * payload.numel();
    return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                        c10::DataPtr(nullptr, payload.device()), nullptr, /*resizable=*/false);
  }

  at::Tensor payload_, scale_;
};

inline at::Tensor make_wrapper(const at::Tensor& payload, const at::Tensor& scale) {
  return at::detail::make_tensor<WrapperImpl>(payload, scale);
}

/// The wrapper behind a tensor, or null.
inline const WrapperImpl* wrapper_of(const at::Tensor& tensor) {
  return dynamic_cast<const WrapperImpl*>(tensor.unsafeGetTensorImpl());
}

/// What consumers were handed; reset by whoever asks.
struct Handed {
  int64_t null_pointers = 0;  ///< says bfloat16, has elements, and its pointer is null
  int64_t densified = 0;      ///< dense, though a wrapper was given
  int64_t dequantize_calls = 0;
  int64_t payload_bytes = 0;  ///< read as they are stored
};
inline Handed& handed() {
  static Handed seen;
  return seen;
}

/// A consumer that takes its pointer as a kernel's launcher would.
inline void take_pointer(const at::Tensor& tensor) {
  const bool is_null = tensor.numel() > 0 && tensor.scalar_type() == at::kBFloat16 &&
                       tensor.const_data_ptr() == nullptr;
  handed().null_pointers += is_null;
}

/// Every operator without a kernel of its own: wrappers among the operands become dense, then it
/// runs again. So do the wrappers of FP8 libraries.
inline void dequantize_and_redispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  for (auto at = stack->end() - static_cast<std::ptrdiff_t>(count); at != stack->end(); ++at) {
    if (!at->isTensor() || wrapper_of(at->toTensor()) == nullptr) continue;
    *at = wrapper_of(at->toTensor())->dequantize();
    ++handed().dequantize_calls;
  }
  const c10::impl::ExcludeDispatchKeyGuard guard(kWrapperKey);
  op.callBoxed(stack);
}

}  // namespace patchbench::fp8_storage_dispatch
