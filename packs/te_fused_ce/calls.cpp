// The functions of op.h over the operators that op.cpp registers.
#include "../kernel/calls.h"
#include "op.h"

namespace patchbench::ops::te_fused_ce {

using at::Tensor;
using c10::SymInt;

Tensors<2> cross_entropy_forward(const Tensor& logits, const Tensor& labels,
                                 const CrossEntropyOptions& options) {
  return call_op<"cross_entropy_forward", Tensors<2>>(logits, labels, options.reduction,
                                                      options.ignore_index, options.label_smoothing,
                                                      /*overwrites_logits=*/false);
}

Tensor cross_entropy_statistics(const Tensor& logits, const Tensor& labels, int64_t vocab_begin) {
  return call_op<"cross_entropy_statistics", Tensor>(logits, labels, SymInt(vocab_begin));
}

Tensor cross_entropy_combine(const Tensor& statistics) {
  return call_op<"cross_entropy_combine", Tensor>(statistics);
}

Tensor cross_entropy_loss(const Tensor& statistics, const Tensor& labels, int64_t vocab_total,
                          const CrossEntropyOptions& options) {
  return call_op<"cross_entropy_loss", Tensor>(statistics, labels, SymInt(vocab_total),
                                               options.reduction, options.ignore_index,
                                               options.label_smoothing);
}

Tensor cross_entropy_backward(const Tensor& grad_output, const Tensor& statistics,
                              const Tensor& logits, const Tensor& labels, int64_t vocab_begin,
                              int64_t vocab_total, const CrossEntropyOptions& options) {
  return call_op<"cross_entropy_backward", Tensor>(
      grad_output, statistics, logits, labels, SymInt(vocab_begin), SymInt(vocab_total),
      options.reduction, options.ignore_index, options.label_smoothing);
}

Tensor& cross_entropy_backward_(const Tensor& grad_output, const Tensor& statistics, Tensor& logits,
                                const Tensor& labels, int64_t vocab_begin, int64_t vocab_total,
                                const CrossEntropyOptions& options) {
  call_op<"cross_entropy_backward_", void>(
      grad_output, statistics, logits, labels, SymInt(vocab_begin), SymInt(vocab_total),
      options.reduction, options.ignore_index, options.label_smoothing);
  return logits;
}

std::string cross_entropy_path(const Tensor& logits) {
  return call_op<"cross_entropy_path", std::string>(logits);
}

}  // namespace patchbench::ops::te_fused_ce
