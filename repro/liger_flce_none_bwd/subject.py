"""Calls the installed Liger-Kernel's fused linear cross entropy, whatever the release's argument list."""

from __future__ import annotations

import inspect

import stand_in
import torch
from subject_runtime import Case, Unsupported

stand_in.install()

from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Flce  # noqa: E402

PACKAGE = "liger_kernel"


def arguments(case: Case, leaves: dict[str, torch.Tensor]) -> list[object]:
    """The positional arguments of this release's forward; Unsupported if it lacks one that the case needs."""
    axes = case.axes
    wanted = {
        "_input": leaves["input"],
        "weight": leaves["weight"],
        "target": case.tensors["target"],
        "bias": leaves.get("bias"),
        "ignore_index": axes["ignore_index"],
        "reduction": axes["reduction"],
        "label_smoothing": axes["label_smoothing"],
    }
    optional = {
        "ce_weight": case.tensors.get("class_weight"),
        "lse_square_scale": axes["lse_square_scale"] or None,
        "softcap": axes["softcap"] or None,
    }
    wanted |= {name: value for name, value in optional.items() if value is not None}
    parameters = dict(list(inspect.signature(Flce.forward).parameters.items())[1:])
    for name in wanted:
        if name not in parameters:
            raise Unsupported(f"this release's forward has no argument {name}")
    return [wanted.get(name, parameter.default) for name, parameter in parameters.items()]


def run(case: Case) -> dict[str, torch.Tensor]:
    """Loss and gradients of `(loss * grad_loss).sum()`; grad_loss reaches the backward as it is, strides included. Of several
    backwards through one graph (axis `backwards`) the last one's."""
    leaves = {n: case.tensors[n].detach().requires_grad_() for n in ("input", "weight", "bias") if n in case.tensors}
    result = Flce.apply(*arguments(case, leaves))
    loss = result[0] if isinstance(result, tuple) else result
    grad_loss = case.tensors["grad_loss"]
    output, words = (loss, (grad_loss,)) if loss.shape == grad_loss.shape else ((loss * grad_loss).sum(), ())
    num_backwards = case.axes.get("backwards", 1)
    for _ in range(num_backwards):
        grads = torch.autograd.grad(output, list(leaves.values()), *words, retain_graph=num_backwards > 1)
    return {"loss": loss.detach()} | {f"grad_{name}": grad for name, grad in zip(leaves, grads, strict=True)}
