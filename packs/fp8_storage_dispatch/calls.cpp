// The functions of op.h over the operators that op.cpp registers.
#include "../kernel/calls.h"
#include "op.h"

namespace patchbench::ops::fp8_storage_dispatch {

using at::Tensor;

Fp8Storage quantize_mla(const Tensor& x, const std::string& layout) {
  return std::make_from_tuple<Fp8Storage>(
      call_op<"quantize_mla", std::tuple<Tensor, std::optional<Tensor>>>(x, layout));
}

Tensor dequantize_mla(const Fp8Storage& storage) {
  return call_op<"dequantize_mla", Tensor>(storage.payload, storage.scale);
}

Tensors<2> sparse_mla_fp8_forward(const Fp8Storage& q, const Fp8Storage& kv,
                                  const Tensor& topk_indices, double softmax_scale) {
  return call_op<"sparse_mla_fp8_forward", Tensors<2>>(q.payload, q.scale, kv.payload, kv.scale,
                                                       topk_indices, softmax_scale);
}

Tensors<2> sparse_mla_fp8_backward(const Tensor& grad_out, const Tensor& out, const Tensor& lse,
                                   const Fp8Storage& q, const Fp8Storage& kv,
                                   const Tensor& topk_indices, double softmax_scale) {
  return call_op<"sparse_mla_fp8_backward", Tensors<2>>(
      grad_out, out, lse, q.payload, q.scale, kv.payload, kv.scale, topk_indices, softmax_scale);
}

std::string sparse_mla_fp8_path(const Tensor& kv) {
  return call_op<"sparse_mla_fp8_path", std::string>(kv);
}

}  // namespace patchbench::ops::fp8_storage_dispatch
