// The op for C++ programs on the whole of libtorch: the judge and the tests. Each function calls
// the operator that op.cpp registers.
#include <ATen/core/dispatch/Dispatcher.h>

#include "op.h"

namespace patchbench::ops::dsa_graph_capture {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor topk_to_index_mask(const Tensor& topk_indices, int64_t seqlen_k,
                          std::optional<at::ScalarType> dtype, const OptionalTensor& out_of_range) {
  using Type = std::optional<at::ScalarType>;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::topk_to_index_mask", "")
                             .typed<Tensor(const Tensor&, c10::SymInt, Type)>();
  static const auto reporting =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::topk_to_index_mask", "out_of_range")
          .typed<Tensor(const Tensor&, c10::SymInt, Type, const Tensor&)>();
  return out_of_range ? reporting.call(topk_indices, seqlen_k, dtype, *out_of_range)
                      : op.call(topk_indices, seqlen_k, dtype);
}

Tensor& topk_to_index_mask_(Tensor& index_mask, const Tensor& topk_indices,
                            const OptionalTensor& out_of_range) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::topk_to_index_mask_", "")
                             .typed<void(Tensor&, const Tensor&, const OptionalTensor&)>();
  op.call(index_mask, topk_indices, out_of_range);
  return index_mask;
}

std::string topk_to_index_mask_path(const Tensor& topk_indices) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::topk_to_index_mask_path", "")
                             .typed<std::string(const Tensor&)>();
  return op.call(topk_indices);
}

}  // namespace patchbench::ops::dsa_graph_capture
