"""Calls the installed Liger-Kernel's fused linear cross entropy, whatever the release's argument list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import liger_stand_in
import torch
from live_storages import LiveStorages
from subject_runtime import Case

liger_stand_in.install()

from liger_flce import loss_of  # noqa: E402

PACKAGE = "liger_kernel"
PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}


class Meter(LiveStorages):
    """The bytes of live storages, and the multiply-adds of the matrix products."""

    num_multiplied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            left, right = args[-2:]
            self.num_multiplied += left.numel() * right.shape[-1]
        return super().__torch_dispatch__(func, types, args, kwargs)


def leaves_of(case: Case) -> dict[str, torch.Tensor]:
    return {n: case.tensors[n].detach().requires_grad_() for n in ("input", "weight", "bias") if n in case.tensors}


def gradients(case: Case) -> dict[str, torch.Tensor]:
    """Loss and gradients of `(loss * grad_loss).sum()`; grad_loss reaches the backward as it is, strides included. Of several
    backwards through one graph (axis `backwards`) the last one's."""
    leaves = leaves_of(case)
    loss = loss_of(case, leaves, case.axes["reduction"])
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
    """Of one call: products, in units of tokens x hidden x vocab, and bytes besides the inputs."""
    leaves = leaves_of(case)
    grad_loss = case.tensors["grad_loss"] if reduction == "none" else case.tensors["grad_loss"].new_ones(())
    with Meter(*case.tensors.values(), *leaves.values()) as meter:
        loss = loss_of(case, leaves, reduction)
        forward, forward_peak, forward_held = meter.num_multiplied, meter.peak, meter.now()
        grads = torch.autograd.grad(loss, list(leaves.values()), grad_loss)
    del grads
    unit = leaves["input"].numel() * leaves["weight"].shape[0]
    return {
        "forward_products": forward / unit, "backward_products": (meter.num_multiplied - forward) / unit,
        "forward_peak_bytes": float(forward_peak), "forward_held_bytes": float(forward_held), "peak_bytes": float(meter.peak),
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


def input_error(case: Case) -> dict[str, torch.Tensor]:
    """`beyond`: the largest error of the gradient of hidden against eager torch in the same dtype, not relative to anything."""
    got, leaves = gradients(case)["grad_input"], leaves_of(case)
    logits = torch.nn.functional.linear(leaves["input"], leaves["weight"])
    loss = torch.nn.functional.cross_entropy(logits, case.tensors["target"], ignore_index=case.axes["ignore_index"], reduction="none")
    (want,) = torch.autograd.grad(loss, leaves["input"], case.tensors["grad_loss"].to(loss.dtype))
    return {"beyond": (got - want).abs().max()[None].float()}


ANSWERS: dict[str, Callable[[Case], dict[str, torch.Tensor]]] = {
    "gradients": gradients, "consumer": consumer, "backward_products": beyond_claim, "forward_bytes": beyond_claim,
    "input_error": input_error,
}  # fmt: skip


def run(case: Case) -> dict[str, torch.Tensor]:
    """What the case's axis `answer` asks for."""
    return ANSWERS[case.axes.get("answer", "gradients")](case)
