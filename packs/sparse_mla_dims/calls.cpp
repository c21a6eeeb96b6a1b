// The functions of op.h over the operators that op.cpp registers.
#include "../kernel/calls.h"
#include "op.h"

namespace patchbench::ops::sparse_mla_dims {

using at::Tensor;

Tensors<3> sparse_mla_forward(const Tensor& q, const Tensor& kv, const Tensor& topk_indices,
                              double softmax_scale, int64_t head_dim_v) {
  return call_op<"sparse_mla_forward", Tensors<3>>(q, kv, topk_indices, softmax_scale, head_dim_v,
                                                   std::string("exact"), std::string("bf16"));
}

Tensors<2> sparse_mla_backward(const Tensor& grad_out, const Tensor& out,
                               const Tensor& out_remainder, const Tensor& lse, const Tensor& q,
                               const Tensor& kv, const Tensor& topk_indices, double softmax_scale,
                               const std::string& delta, const std::string& staging,
                               std::array<bool, 2> output_mask) {
  return call_op<"sparse_mla_backward", Tensors<2>>(grad_out, out, out_remainder, lse, q, kv,
                                                    topk_indices, softmax_scale, delta, staging,
                                                    output_mask);
}

std::string sparse_mla_path(const Tensor& q, int64_t head_dim_v, const std::string& staging) {
  return call_op<"sparse_mla_path", std::string>(q, head_dim_v, staging);
}

}  // namespace patchbench::ops::sparse_mla_dims
