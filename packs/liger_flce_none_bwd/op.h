#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace patchbench::ops::liger_flce_none_bwd {

/// The arguments of `flce` besides its three tensors.
struct FlceOptions {
  std::optional<at::Tensor> bias;          ///< [vocab], dtype of hidden
  std::optional<at::Tensor> class_weight;  ///< [vocab], any floating dtype; gets no gradient
  std::string reduction = "mean";          ///< "none", "mean" or "sum"
  int64_t ignore_index = -100;
  double label_smoothing = 0;     ///< in [0, 1]
  double lse_square_scale = 0;    ///< factor of lse^2 (z-loss), finite
  std::optional<double> softcap;  ///< > 0: logits become softcap * tanh(logits / softcap)
  /// > 0, of one tile of logits; on CUDA 256 MiB where rows are walked or one tile has all logits,
  /// 132 MiB where classes are walked; 64 MiB on a CPU.
  std::optional<int64_t> chunk_bytes;
  /// >= 0, on CUDA for "none": memory that forward may add to keep more logits for backward
  int64_t keep_bytes = 0;
};

/// Fused linear cross entropy: the loss of logits = hidden @ weight^T + bias, without memory for
/// logits of [tokens, vocab] besides grad_weight's own. With ce_i and zl_i as in kernel.cuh (0 for
/// ignored rows), D = number of valid rows (with class weights: sum of w_t over them) and n =
/// number of valid rows:
///   none: loss[i] = ce_i + zl_i     sum: sum_i of it     mean: sum_i ce_i / D + sum_i zl_i / n
/// and for any g = grad_output (sum: g_i = g; mean: g / D for ce, g / n for zl)
///   grad_hidden[i] = sum_j dz_ij weight[j]     grad_weight[j] = sum_i dz_ij hidden[i]
///   grad_bias[j] = sum_i dz_ij
///
/// hidden [tokens, hidden] and weight [vocab, hidden]: float32, bfloat16, float16 or float64,
/// strided, any strides. target [tokens] int64. Returns [tokens] for "none", else []: float32, or
/// float64 for float64 inputs. Gradients have the inputs' dtypes and are contiguous. Work is done
/// on the current stream; no host synchronisation on CUDA, so it can be captured in a graph.
///
/// Rounding: logits are rounded to the input dtype, as F.linear does; softmax and dz are computed
/// in float32 (float64) and dz is rounded once, after g was applied; matrix products accumulate in
/// float32, and where a gradient is summed over several tiles the sum is kept in float32 until its
/// end (on the CPU each tile's bfloat16 product is rounded before it is added). "mean" and "sum"
/// make and round their gradients for g = 1, then multiply them by g and round again, unless g is
/// 1; in bfloat16 on CUDA grad_weight's sum is rounded after each tile of rows. Rerun-stable on one
/// device; not bitwise equal across chunk sizes.
///
/// Work: "none" makes the logits again in backward, four GEMMs in all. On CUDA forward keeps
/// logits, and only the others are made again: three GEMMs where it keeps all. All lie in one tile
/// if keep_bytes has room for them, or if they fit both in a tile of rows and in the size of
/// grad_weight. Otherwise it keeps as many as fit in the memory that grad_weight takes over (all up
/// to hidden tokens, half at twice as many), and in keep_bytes. "mean" and "sum" take their
/// gradients in forward, three GEMMs, and hold them for backward; not in bfloat16 on a CPU, on the
/// plain path or for more than 32 tiles: these go as "none" does. Gradients that nobody wants are
/// not computed. A graph that is kept for another backward, or traced, costs the whole fourth GEMM,
/// or copies of held memory.
///
/// Memory besides inputs and gradients: one tile of chunk_bytes (at least one row, or 1 class of
/// all rows), and for "none" 4 * tokens * hidden bytes where both grad_hidden and grad_weight of
/// bfloat16 inputs are wanted (4 * vocab * hidden if tokens > vocab), and where logits are kept one
/// tile's rows of grad_weight. Memory held from forward to backward is at most that of the
/// gradients and keep_bytes.
///
/// Ignored rows are selected away, not multiplied by 0: an infinite g_i there does no harm. "mean"
/// over no valid row is NaN with gradients 0, as in torch. A target outside [0, vocab) that is not
/// ignore_index raises on the CPU; on CUDA its loss, and what depends on it, is NaN.
///
/// Throws c10::Error, one line: `flce: weight must have shape [vocab, 64], got [10, 32]`. Not
/// differentiable twice: a second derivative raises. Not vmap-able. Autocast does not change it.
///
/// The dispatcher holds `patchbench::flce` (CPU, CUDA, Meta, Autograd), the halves
/// `patchbench::flce_forward` -> (loss, lse) and `patchbench::flce_backward` -> (grad_hidden,
/// grad_weight, grad_bias), undefined where its output_mask entry is false, both in one walk for
/// g = 1, `patchbench::flce_with_gradients` -> (loss, lse, grad_hidden, grad_weight, grad_bias),
/// and `patchbench::flce_path` -> "cpu", "cuda" or "plain". lse is [2, tokens]: row maximum and
/// log-sum, whose sum is the log-sum-exp. "plain", the torch form of the elementwise steps, serves
/// float16 and float64 on CUDA, devices below compute capability 8.0, libraries built without CUDA,
/// and whatever PATCHBENCH_OP_FALLBACK=liger_flce_none_bwd (a comma-separated list; read at every
/// call) forces; it needs about four float32 tiles more.
at::Tensor flce(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                const FlceOptions& options = {});

/// The elementwise path that `flce` takes for inputs like `hidden`: "cpu", "cuda" or "plain".
std::string flce_path(const at::Tensor& hidden);

}  // namespace patchbench::ops::liger_flce_none_bwd
