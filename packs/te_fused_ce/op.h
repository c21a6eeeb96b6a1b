#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace patchbench::ops::te_fused_ce {

/// The arguments of the ops besides their tensors.
struct CrossEntropyOptions {
  std::string reduction = "mean";  ///< "none", "mean" or "sum"
  int64_t ignore_index = -100;     ///< in [-2^53, 2^53]
  double label_smoothing = 0;      ///< in [0, 1]
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
/// strides. Returns the loss, [b, s] for "none", else [], and the statistics of the rows, [4, b,
/// s]: m, r, x_it (-inf where the label is not among the classes) and sum_j x_ij. Both are float32,
/// or float64 for float64. Work is done on the current stream, without a host synchronisation on
/// CUDA, so that it can be captured in a graph.
///
/// Rounding: everything is computed in float32 (float64) and the gradient is rounded once. m and r
/// are kept apart: at the label the gradient is expm1 of a difference, so that a confident row
/// keeps its digits, and elsewhere exp(x - m) / (1 + r), where no logarithm was rounded.
/// Rerun-stable on one device.
///
/// Work: forward reads the logits once. Each backward reads them once and writes the gradient once.
/// The kernels do not read an ignored row, whose statistics are 0 in forward's result. Their
/// backward does not read a row of finite logits whose g is 0.
///
/// Launches of the kernels for contiguous labels and a float32 g: 1 in forward, 1 in backward. Sum
/// and mean add 1 in forward, mean adds 1 in backward.
///
/// "mean" over no label is NaN with gradients 0, as in torch. A label outside [0, v) that is not
/// ignore_index throws std::out_of_range on the CPU; on CUDA its loss is inf and its gradient that
/// of no label.
///
/// Throws std::runtime_error, one line: `cross_entropy: labels must have shape [2, 8], got [2, 7]`.
/// Not differentiable here: patchbench_ops.cross_entropy is, in Python.
///
/// Each function calls the operator `patchbench::` of its name. The parts after this one serve a
/// vocabulary that is spread over ranks: what goes between ranks is the caller's all-gather of 4
/// numbers a row. "plain", a torch form, serves float64 on CUDA, devices below compute capability
/// 8.0, libraries built without CUDA, and whatever PATCHBENCH_OP_FALLBACK=te_fused_ce forces.
/// Source: derived here.
std::tuple<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits,
                                                         const at::Tensor& labels,
                                                         const CrossEntropyOptions& options = {});

/// The statistics of one rank's classes, [vocab_begin, vocab_begin + v): [4, b, s].
at::Tensor cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                                    int64_t vocab_begin = 0);
/// [ranks, 4, b, s] -> [4, b, s]. Ranks that hold no label give -inf for its logit.
at::Tensor cross_entropy_combine(const at::Tensor& statistics);
/// The loss of the combined statistics; `vocab_total` is V.
at::Tensor cross_entropy_loss(const at::Tensor& statistics, const at::Tensor& labels,
                              int64_t vocab_total, const CrossEntropyOptions& options = {});
/// grad_logits of one rank's classes from the combined statistics, [b, s, v] contiguous in the
/// logits' dtype.
at::Tensor cross_entropy_backward(const at::Tensor& grad_output, const at::Tensor& statistics,
                                  const at::Tensor& logits, const at::Tensor& labels,
                                  int64_t vocab_begin, int64_t vocab_total,
                                  const CrossEntropyOptions& options = {});
/// The same in the place of the logits, which must be contiguous. Returns logits.
at::Tensor& cross_entropy_backward_(const at::Tensor& grad_output, const at::Tensor& statistics,
                                    at::Tensor& logits, const at::Tensor& labels,
                                    int64_t vocab_begin, int64_t vocab_total,
                                    const CrossEntropyOptions& options = {});

/// The path taken for logits like these: "cpu", "cuda" or "plain".
std::string cross_entropy_path(const at::Tensor& logits);

}  // namespace patchbench::ops::te_fused_ce
