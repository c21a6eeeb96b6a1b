// The ops for C++ programs on the whole of libtorch: the judge and the tests. Each function calls
// the operator that op.cpp registers.
#include <ATen/core/dispatch/Dispatcher.h>

#include "op.h"

namespace patchbench::ops::sparse_mla_dims {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Triple sparse_mla_forward(const Tensor& q, const Tensor& kv, const Tensor& topk_indices,
                          double softmax_scale, int64_t head_dim_v) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_forward", "")
                             .typed<Triple(const Tensor&, const Tensor&, const Tensor&, double,
                                           int64_t, std::string, std::string)>();
  return op.call(q, kv, topk_indices, softmax_scale, head_dim_v, "exact", "bf16");
}

Pair sparse_mla_backward(const Tensor& grad_out, const Tensor& out, const Tensor& out_remainder,
                         const Tensor& lse, const Tensor& q, const Tensor& kv,
                         const Tensor& topk_indices, double softmax_scale, const std::string& delta,
                         const std::string& staging, std::array<bool, 2> output_mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_backward", "")
                             .typed<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, const Tensor&, const Tensor&, double,
                                         std::string, std::string, std::array<bool, 2>)>();
  return op.call(grad_out, out, out_remainder, lse, q, kv, topk_indices, softmax_scale, delta,
                 staging, output_mask);
}

std::string sparse_mla_path(const Tensor& q, int64_t head_dim_v, const std::string& staging) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::sparse_mla_path", "")
                             .typed<std::string(const Tensor&, int64_t, std::string)>();
  return op.call(q, head_dim_v, staging);
}

}  // namespace patchbench::ops::sparse_mla_dims
