#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace patchbench::ops::te_fused_ce {

/// The arguments of `cross_entropy` besides its two tensors.
struct CrossEntropyOptions {
  std::string reduction = "mean";  ///< "none", "mean" or "sum"
  int64_t ignore_index = -100;
  double label_smoothing = 0;  ///< in [0, 1]
  /// The gradient takes the logits' memory in backward. The logits must be contiguous, must not be
  /// used afterwards, and there is one backward.
  bool overwrites_logits = false;
};

/// Cross entropy of logits that are there. With m_i = max_j x_ij, r_i = sum_j exp(x_ij - m_i) less
/// the maximum's own 1, lse_i = m_i + log1p(r_i), e the label smoothing, V the vocabulary, t_i the
/// label and D = 1, or for the mean the number of rows with a label:
///   loss_i = ((1 - e) (lse_i - x_it) + e (lse_i - sum_j x_ij / V)) / D
///   grad_logits_ij = g_i (exp(x_ij - lse_i) - e / V - (1 - e) [j = t_i]) / D
/// for any g = grad_output, of any strides (sum and mean: one g). A row whose label is ignore_index
/// has loss and gradient 0 whatever its g is.
///
/// logits [b, s, v]: float32, float16, bfloat16 or float64, any strides. labels [b, s] int64, any
/// strides. Returns [b, s] for "none", else []: float32, or float64 for float64. The gradient has
/// the logits' dtype and is contiguous. Work is done on the current stream, without a host
/// synchronisation on CUDA, so that it can be captured in a graph.
///
/// Rounding: everything is computed in float32 (float64) and the gradient is rounded once. m and r
/// are kept apart: at the label the gradient is expm1 of a difference, so that a confident row
/// keeps its digits, and elsewhere exp(x - m) / (1 + r), where no logarithm was rounded.
/// Rerun-stable on one device.
///
/// Work: forward reads the logits once. Each backward reads them once and writes the gradient once.
/// Held from forward to backward: the logits and 4 numbers a row.
///
/// "mean" over no label is NaN with gradients 0, as in torch. A label outside [0, v) that is not
/// ignore_index raises on the CPU; on CUDA its loss is inf and its gradient that of no label.
///
/// Throws c10::Error, one line: `cross_entropy: labels must have shape [2, 8], got [2, 7]`. Not
/// differentiable twice: a second derivative raises. Autocast does not change it.
///
/// The dispatcher holds `patchbench::cross_entropy` and its parts, for a vocabulary that is spread
/// over ranks: `cross_entropy_statistics(logits, labels, vocab_begin)` -> [4, b, s] (row_max,
/// rest, the label's logit or -inf, the sum of the logits) of one rank's classes [vocab_begin,
/// vocab_begin + v); `cross_entropy_combine([ranks, 4, b, s])` -> [4, b, s] of all of them;
/// `cross_entropy_loss` of these; `cross_entropy_backward`, the gradient of one rank's classes.
/// What goes between ranks is the caller's all-gather of 4 numbers a row. `cross_entropy_path` ->
/// "cpu", "cuda" or "plain", the torch form, which serves float64 on CUDA, devices below compute
/// capability 8.0, libraries built without CUDA, and whatever PATCHBENCH_OP_FALLBACK=te_fused_ce
/// forces.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                         const CrossEntropyOptions& options = {});

/// The statistics of one rank's classes, as above.
at::Tensor cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                                    int64_t vocab_begin = 0);
/// [ranks, 4, b, s] -> [4, b, s]. Ranks that hold no label give -inf for its logit.
at::Tensor cross_entropy_combine(const at::Tensor& statistics);
/// The loss of the combined statistics; `vocab_total` is V.
at::Tensor cross_entropy_loss(const at::Tensor& statistics, const at::Tensor& labels,
                              int64_t vocab_total, const CrossEntropyOptions& options = {});
/// grad_logits of one rank's classes from the combined statistics.
at::Tensor cross_entropy_backward(const at::Tensor& grad_output, const at::Tensor& statistics,
                                  const at::Tensor& logits, const at::Tensor& labels,
                                  int64_t vocab_begin, int64_t vocab_total,
                                  const CrossEntropyOptions& options = {});

/// The path that `cross_entropy` takes for logits like these: "cpu", "cuda" or "plain".
std::string cross_entropy_path(const at::Tensor& logits);

}  // namespace patchbench::ops::te_fused_ce
