// The functions of op.h over the operators that op.cpp registers.
#include "../kernel/calls.h"
#include "op.h"

namespace patchbench::ops::dsa_graph_capture {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor topk_to_index_mask(const Tensor& topk_indices, int64_t seqlen_k,
                          std::optional<at::ScalarType> dtype, const OptionalTensor& out_of_range) {
  const c10::SymInt length = seqlen_k;
  if (out_of_range)
    return call_op<"topk_to_index_mask.out_of_range", Tensor>(topk_indices, length, dtype,
                                                              *out_of_range);
  return call_op<"topk_to_index_mask", Tensor>(topk_indices, length, dtype);
}

Tensor& topk_to_index_mask_(Tensor& index_mask, const Tensor& topk_indices,
                            const OptionalTensor& out_of_range) {
  call_op<"topk_to_index_mask_", void>(index_mask, topk_indices, out_of_range);
  return index_mask;
}

std::string topk_to_index_mask_path(const Tensor& topk_indices) {
  return call_op<"topk_to_index_mask_path", std::string>(topk_indices);
}

}  // namespace patchbench::ops::dsa_graph_capture
