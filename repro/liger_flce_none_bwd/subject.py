"""Calls the installed Liger-Kernel's fused linear cross entropy, whatever the release's argument list."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import stand_in
import torch
from subject_runtime import Case, Unsupported
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

stand_in.install()

from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Flce  # noqa: E402

PACKAGE = "liger_kernel"
PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}


class Meter(TorchDispatchMode):
    """While open: multiply-adds of the matrix products, and bytes of the storages that torch made, those of `given` left out."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.num_multiplied = self.held_bytes = self.peak_bytes = 0
        self._seen = WeakIdKeyDictionary({tensor.untyped_storage(): None for tensor in given})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in PRODUCTS:
            left, right = args[-2:]
            self.num_multiplied += left.numel() * right.shape[-1]
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen[storage] = None
        num_bytes = storage.nbytes()
        weakref.finalize(storage, self._drop, num_bytes)
        self.held_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def _drop(self, num_bytes: int) -> None:
        self.held_bytes -= num_bytes


def arguments(case: Case, leaves: dict[str, torch.Tensor], reduction: str) -> list[object]:
    """The positional arguments of this release's forward; Unsupported if it lacks one that the case needs."""
    axes = case.axes
    wanted = {
        "_input": leaves["input"],
        "weight": leaves["weight"],
        "target": case.tensors["target"],
        "bias": leaves.get("bias"),
        "ignore_index": axes["ignore_index"],
        "reduction": reduction,
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


def leaves_of(case: Case) -> dict[str, torch.Tensor]:
    return {n: case.tensors[n].detach().requires_grad_() for n in ("input", "weight", "bias") if n in case.tensors}


def first(result: Any) -> torch.Tensor:
    """The loss of what a release returns."""
    return result[0] if isinstance(result, tuple) else result


def gradients(case: Case) -> dict[str, torch.Tensor]:
    """Loss and gradients of `(loss * grad_loss).sum()`; grad_loss reaches the backward as it is, strides included. Of several
    backwards through one graph (axis `backwards`) the last one's."""
    leaves = leaves_of(case)
    loss = first(Flce.apply(*arguments(case, leaves, case.axes["reduction"])))
    grad_loss = case.tensors["grad_loss"]
    output, words = (loss, (grad_loss,)) if loss.shape == grad_loss.shape else ((loss * grad_loss).sum(), ())
    num_backwards = case.axes.get("backwards", 1)
    for _ in range(num_backwards):
        grads = torch.autograd.grad(output, list(leaves.values()), *words, retain_graph=num_backwards > 1)
    return {"loss": loss.detach()} | {f"grad_{name}": grad for name, grad in zip(leaves, grads, strict=True)}


def consumer(case: Case) -> dict[str, torch.Tensor]:
    """The same, with the loss as a consumer weighs it."""
    outputs = gradients(case)
    return outputs | {"loss": (outputs["loss"] * case.tensors["grad_loss"]).sum()}


def cost(case: Case, reduction: str) -> dict[str, float]:
    """Of one call: products, in units of tokens x hidden x vocab, and bytes beside the inputs."""
    leaves = leaves_of(case)
    grad_loss = case.tensors["grad_loss"] if reduction == "none" else case.tensors["grad_loss"].new_ones(())
    with Meter([*case.tensors.values(), *leaves.values()]) as meter:
        loss = first(Flce.apply(*arguments(case, leaves, reduction)))
        forward, forward_peak, forward_held = meter.num_multiplied, meter.peak_bytes, meter.held_bytes
        grads = torch.autograd.grad(loss, list(leaves.values()), grad_loss)
    del grads
    unit = leaves["input"].numel() * leaves["weight"].shape[0]
    return {
        "forward_products": forward / unit, "backward_products": (meter.num_multiplied - forward) / unit,
        "forward_peak_bytes": float(forward_peak), "forward_held_bytes": float(forward_held), "peak_bytes": float(meter.peak_bytes),
    }  # fmt: skip


def beyond_claim(case: Case) -> dict[str, torch.Tensor]:
    """`beyond`: what "none" costs more than "mean" in this package, less what the claim grants: one product in backward, or no byte of
    what forward holds at its peak and at its end."""
    none, mean = cost(case, "none"), cost(case, "mean")
    case.numbers |= {f"none_{name}": value for name, value in none.items()} | {f"mean_{name}": value for name, value in mean.items()}
    if case.axes["answer"] == "backward_products":
        beyond = none["backward_products"] - mean["backward_products"] - 1
    else:
        beyond = max(none[name] - mean[name] for name in ("forward_peak_bytes", "forward_held_bytes"))
    return {"beyond": torch.tensor([max(0.0, beyond)])}


ANSWERS: dict[str, Callable[[Case], dict[str, torch.Tensor]]] = {
    "gradients": gradients, "consumer": consumer, "backward_products": beyond_claim, "forward_bytes": beyond_claim,
}  # fmt: skip


def run(case: Case) -> dict[str, torch.Tensor]:
    """What the case's axis `answer` asks for."""
    return ANSWERS[case.axes.get("answer", "gradients")](case)
