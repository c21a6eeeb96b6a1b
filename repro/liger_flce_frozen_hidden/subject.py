"""Calls the installed Liger-Kernel's fused linear cross entropy with the inputs that the case trains."""

from __future__ import annotations

import liger_stand_in
import torch
from subject_runtime import Case

liger_stand_in.install()

from liger_flce import loss_of  # noqa: E402

PACKAGE = "liger_kernel"
INPUTS = {"hidden": "input", "weight": "weight", "bias": "bias"}


def run(case: Case) -> dict[str, torch.Tensor]:
    """The loss and the gradients that are wanted; one that autograd does not give has no element. Of several backwards through one
    graph (axis `backwards`) the last one's."""
    trained = [INPUTS[name] for name in case.axes["trained"].split("+")]
    leaves = {n: case.tensors[n].detach().requires_grad_(n in trained) for n in INPUTS.values() if n in case.tensors}
    loss = loss_of(case, leaves, case.axes["reduction"])
    grad_loss = case.tensors["grad_loss"]
    output, words = (loss, (grad_loss,)) if loss.shape == grad_loss.shape else ((loss * grad_loss).sum(), ())
    sources = [leaves[name] for name in trained]
    for _ in range(case.axes.get("backwards", 1)):
        grads = torch.autograd.grad(output, sources, *words, retain_graph=True, allow_unused=True)
    given = [torch.empty(0, dtype=s.dtype) if g is None else g.clone() for s, g in zip(sources, grads, strict=True)]
    return {"loss": loss.detach()} | {f"grad_{name}": grad for name, grad in zip(trained, given, strict=True)}
