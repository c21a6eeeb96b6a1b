// The ops for C++ programs on the whole of libtorch: the judge and the tests. Each function calls
// the operator that op.cpp registers.
#include <ATen/core/dispatch/Dispatcher.h>

#include "op.h"

namespace patchbench::ops::fp8_storage_dispatch {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;

Fp8Storage quantize_mla(const Tensor& x, const std::string& layout) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::quantize_mla", "")
          .typed<std::tuple<Tensor, OptionalTensor>(const Tensor&, std::string)>();
  const auto [payload, scale] = op.call(x, layout);
  return {payload, scale};
}

Tensor dequantize_mla(const Fp8Storage& storage) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::dequantize_mla", "")
                             .typed<Tensor(const Tensor&, const OptionalTensor&)>();
  return op.call(storage.payload, storage.scale);
}

Pair sparse_mla_fp8_forward(const Fp8Storage& q, const Fp8Storage& kv, const Tensor& topk_indices,
                            double softmax_scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_fp8_forward", "")
                             .typed<Pair(const Tensor&, const OptionalTensor&, const Tensor&,
                                         const OptionalTensor&, const Tensor&, double)>();
  return op.call(q.payload, q.scale, kv.payload, kv.scale, topk_indices, softmax_scale);
}

Pair sparse_mla_fp8_backward(const Tensor& grad_out, const Tensor& out, const Tensor& lse,
                             const Fp8Storage& q, const Fp8Storage& kv, const Tensor& topk_indices,
                             double softmax_scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_fp8_backward", "")
                             .typed<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const OptionalTensor&, const Tensor&,
                                         const OptionalTensor&, const Tensor&, double)>();
  return op.call(grad_out, out, lse, q.payload, q.scale, kv.payload, kv.scale, topk_indices,
                 softmax_scale);
}

std::string sparse_mla_fp8_path(const Tensor& kv) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_fp8_path", "")
                             .typed<std::string(const Tensor&)>();
  return op.call(kv);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
