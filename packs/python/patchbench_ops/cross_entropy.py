"""Cross entropy of given logits, whole or with the vocabulary spread over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .library import fake, has, not_differentiable

_OPS = torch.ops.patchbench


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    overwrites_logits: bool = False,
) -> Tensor:
    """loss_i = (1 - e) (lse_i - x_it) + e (lse_i - sum_j x_ij / v) with lse_i = log sum_j exp(x_ij), x the logits of row i, t its label
    and e the label smoothing. A row whose label is ignore_index has loss and gradient 0.

    logits [b, s, v] float32, float16, bfloat16 or float64, any strides; labels [b, s] int64, any strides; ignore_index in
    [-2^53, 2^53], label_smoothing in [0, 1]. Returns [b, s] for reduction "none", [] for "sum" and "mean", which divides by the number
    of rows with a label: float32, or float64 for float64. The gradient has the logits' dtype, whatever the strides of grad_output.

    overwrites_logits: the gradient takes the logits' memory in backward and raises their version. They must be contiguous and must not
    be used afterwards; a graph that is kept for another backward is refused. In torch.compile the gradient has memory of its own.

    Sums in float32 (float64), rounded once; a confident row keeps its digits. Differentiable once in the logits. Held for backward: the
    logits, the labels and 4 numbers a row. Bitwise deterministic on one path. RuntimeError names a wrong argument. A label outside of
    [0, v) that is not ignore_index is an IndexError on a CPU; on CUDA its loss is inf and its gradient that of no label. "mean" over no
    label is nan with gradients 0. Kernels serve float32, float16 and bfloat16 on compute capability 8.0 and later, plain torch the rest
    of CUDA, with one warning. Source: derived here (packs/te_fused_ce/op.h).
    """
    return _OPS.cross_entropy_forward(
        logits,
        labels,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        overwrites_logits=overwrites_logits and not torch.compiler.is_compiling(),
    )[0]


def cross_entropy_statistics(logits: Tensor, labels: Tensor, vocab_begin: int = 0) -> Tensor:
    """[4, b, s] of one rank's classes [vocab_begin, vocab_begin + v): max_j x_ij; sum_j exp(x_ij - max) less the maximum's own 1; the
    label's logit, -inf where the label is not among these classes; sum_j x_ij.

    logits and labels as in cross_entropy; float32, or float64 for float64. Bitwise deterministic on one path; not differentiable.
    RuntimeError names a wrong argument. Source: derived here (packs/te_fused_ce/op.h).
    """
    return _OPS.cross_entropy_statistics(logits, labels, vocab_begin)


def cross_entropy_combine(statistics: Tensor) -> Tensor:
    """Combines the statistics of each rank, [ranks, 4, b, s], into one [4, b, s] for all classes; float32 or float64.

    What goes between ranks is the caller's all-gather of 4 numbers a row. The rest as in cross_entropy_statistics.
    """
    return _OPS.cross_entropy_combine(statistics)


def cross_entropy_loss(
    statistics: Tensor, labels: Tensor, vocab_total: int, *, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0
) -> Tensor:
    """The loss of combined statistics [4, b, s]; vocab_total is the number of all ranks' classes. The rest as in cross_entropy, but not
    differentiable: its gradient is cross_entropy_backward."""
    return _OPS.cross_entropy_loss(
        statistics, labels, vocab_total, reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
    )


def cross_entropy_backward(
    grad_output: Tensor,
    statistics: Tensor,
    logits: Tensor,
    labels: Tensor,
    vocab_begin: int,
    vocab_total: int,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """grad_logits_ij = g_i (exp(x_ij - lse_i) - e / vocab_total - (1 - e) [j = t_i - vocab_begin]) / D, of one rank's classes
    [vocab_begin, vocab_begin + v) from the combined statistics; D is 1, or for "mean" the number of rows with a label.

    grad_output [b, s] for "none", else []: floating point, any strides. Returns [b, s, v], contiguous, in the logits' dtype. The rest as
    in cross_entropy; not differentiable.
    """
    return _OPS.cross_entropy_backward(
        grad_output,
        statistics,
        logits,
        labels,
        vocab_begin,
        vocab_total,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


def cross_entropy_backward_(
    grad_output: Tensor,
    statistics: Tensor,
    logits: Tensor,
    labels: Tensor,
    vocab_begin: int,
    vocab_total: int,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """cross_entropy_backward in the place of the logits, which must be contiguous. Returns logits, with a higher version."""
    _OPS.cross_entropy_backward_(
        grad_output,
        statistics,
        logits,
        labels,
        vocab_begin,
        vocab_total,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(logits)  # the stable ABI has no key that would
    return logits


def cross_entropy_path(logits: Tensor) -> str:
    """Who would do it for logits like these: "cpu", "cuda" or "plain" (torch)."""
    return _OPS.cross_entropy_path(logits)


def _sum_dtype(logits: Tensor) -> torch.dtype:
    return logits.dtype if logits.dtype == torch.float64 else torch.float32


@fake("cross_entropy_forward")
def _(logits: Tensor, labels: Tensor, *, reduction: str = "mean", **unused: Any) -> tuple[Tensor, Tensor]:
    statistics = logits.new_empty((4, *logits.shape[:2]), dtype=_sum_dtype(logits))
    return statistics.new_empty(logits.shape[:2] if reduction == "none" else ()), statistics


@fake("cross_entropy_statistics")
def _(logits: Tensor, labels: Tensor, vocab_begin: int = 0) -> Tensor:
    return logits.new_empty((4, *logits.shape[:2]), dtype=_sum_dtype(logits))


@fake("cross_entropy_combine")
def _(statistics: Tensor) -> Tensor:
    return statistics.new_empty(statistics.shape[1:])


@fake("cross_entropy_loss")
def _(statistics: Tensor, labels: Tensor, vocab_total: int, *, reduction: str = "mean", **unused: Any) -> Tensor:
    return statistics.new_empty(labels.shape if reduction == "none" else ())


@fake("cross_entropy_backward")
def _(grad_output: Tensor, statistics: Tensor, logits: Tensor, *unused: Any, **unused_too: Any) -> Tensor:
    return logits.new_empty(logits.shape)


@fake("cross_entropy_backward_")
def _(*unused: Any, **unused_too: Any) -> None:
    return None


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.options = dict(keyword_only_inputs)
    ctx.overwrites_logits = ctx.options.pop("overwrites_logits")
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # else backward makes zeros for the statistics


def _backward(ctx: Any, grad_loss: Tensor | None, *unused: Any) -> tuple[Tensor | None, None]:
    if grad_loss is None:
        return None, None
    logits, labels, statistics = ctx.saved_tensors
    if not ctx.overwrites_logits:
        return cross_entropy_backward(grad_loss, statistics, logits, labels, 0, logits.shape[2], **ctx.options), None
    if torch._C._autograd._get_current_graph_task_keep_graph():
        raise RuntimeError(
            "cross_entropy: a graph that is kept for another backward needs the logits; set overwrites_logits to False, or call "
            "without retain_graph and create_graph"
        )
    # Another reader of the logits in this graph then raises, as after any in-place operation: detach() shares their version.
    return cross_entropy_backward_(grad_loss, statistics, logits.detach(), labels, 0, logits.shape[2], **ctx.options), None


if has("cross_entropy_forward"):
    torch.library.register_autograd("patchbench::cross_entropy_forward", _backward, setup_context=_setup)
not_differentiable("cross_entropy_statistics", "cross_entropy_combine", "cross_entropy_loss", "cross_entropy_backward")
