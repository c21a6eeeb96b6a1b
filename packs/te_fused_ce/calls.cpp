// The ops for C++ programs on the whole of libtorch: the judge and the tests. Each function calls
// the operator that op.cpp registers.
#include <ATen/core/dispatch/Dispatcher.h>

#include "op.h"

namespace patchbench::ops::te_fused_ce {

using at::Tensor;
using c10::SymInt;
using Pair = std::tuple<Tensor, Tensor>;

Pair cross_entropy_forward(const Tensor& logits, const Tensor& labels,
                           const CrossEntropyOptions& options) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::cross_entropy_forward", "")
          .typed<Pair(const Tensor&, const Tensor&, std::string, int64_t, double, bool)>();
  return op.call(logits, labels, options.reduction, options.ignore_index, options.label_smoothing,
                 /*overwrites_logits=*/false);
}

Tensor cross_entropy_statistics(const Tensor& logits, const Tensor& labels, int64_t vocab_begin) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::cross_entropy_statistics", "")
                             .typed<Tensor(const Tensor&, const Tensor&, SymInt)>();
  return op.call(logits, labels, vocab_begin);
}

Tensor cross_entropy_combine(const Tensor& statistics) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::cross_entropy_combine", "")
                             .typed<Tensor(const Tensor&)>();
  return op.call(statistics);
}

Tensor cross_entropy_loss(const Tensor& statistics, const Tensor& labels, int64_t vocab_total,
                          const CrossEntropyOptions& options) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::cross_entropy_loss", "")
          .typed<Tensor(const Tensor&, const Tensor&, SymInt, std::string, int64_t, double)>();
  return op.call(statistics, labels, vocab_total, options.reduction, options.ignore_index,
                 options.label_smoothing);
}

Tensor cross_entropy_backward(const Tensor& grad_output, const Tensor& statistics,
                              const Tensor& logits, const Tensor& labels, int64_t vocab_begin,
                              int64_t vocab_total, const CrossEntropyOptions& options) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("patchbench::cross_entropy_backward", "")
          .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, SymInt, SymInt,
                        std::string, int64_t, double)>();
  return op.call(grad_output, statistics, logits, labels, vocab_begin, vocab_total,
                 options.reduction, options.ignore_index, options.label_smoothing);
}

Tensor& cross_entropy_backward_(const Tensor& grad_output, const Tensor& statistics, Tensor& logits,
                                const Tensor& labels, int64_t vocab_begin, int64_t vocab_total,
                                const CrossEntropyOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::cross_entropy_backward_", "")
                             .typed<void(const Tensor&, const Tensor&, Tensor&, const Tensor&,
                                         SymInt, SymInt, std::string, int64_t, double)>();
  op.call(grad_output, statistics, logits, labels, vocab_begin, vocab_total, options.reduction,
          options.ignore_index, options.label_smoothing);
  return logits;
}

std::string cross_entropy_path(const Tensor& logits) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("patchbench::cross_entropy_path", "")
                             .typed<std::string(const Tensor&)>();
  return op.call(logits);
}

}  // namespace patchbench::ops::te_fused_ce
