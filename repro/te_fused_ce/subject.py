"""Calls the release's fused cross entropy, whatever its argument list, and returns loss and gradient."""

from __future__ import annotations

import inspect

import stand_in
import torch
from absent import optional_module
from subject_runtime import Case, Unsupported

stand_in.install()

PACKAGE = "transformer_engine"
MODULE = optional_module("transformer_engine.pytorch.cross_entropy")


def arguments(case: Case, logits: torch.Tensor) -> list[object]:
    """The positional arguments of this release's forward, as many as the case needs: a caller names ignore_idx where its value is
    not the default."""
    axes = case.axes
    if MODULE is None:
        raise Unsupported("this release has no fused cross entropy")
    group = torch.distributed.group.WORLD if case.num_ranks > 1 else None
    named = [logits, case.tensors["labels"], axes["label_smoothing"], axes["reduction"] == "mean", group]
    parameters = inspect.signature(MODULE.CrossEntropyFunction.forward).parameters
    if axes["ignored"] != "none" and "ignore_idx" not in parameters:
        raise Unsupported("this release's forward has no argument ignore_idx")
    if "ignore_idx" in parameters and axes["ignore_index"] != parameters["ignore_idx"].default:
        named.append(axes["ignore_index"])
    if axes.get("is_cg_capturable"):
        if "is_cg_capturable" not in parameters:
            raise Unsupported("this release's forward has no argument is_cg_capturable")
        named += [parameters["ignore_idx"].default] * (6 - len(named)) + [True]
    return named


def run(case: Case) -> dict[str, torch.Tensor]:
    """Loss and the gradient of the logits; grad_loss reaches the backward as it is, strides included. Where the axis `answer` asks for
    it, the logits as forward left them instead of the gradient. Each of several ranks has a part of the vocabulary."""
    logits = case.tensors["logits"].detach()
    if case.num_ranks > 1:
        backend = "nccl" if case.device.startswith("cuda") else "gloo"
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(backend)
        logits = logits.chunk(case.num_ranks, -1)[case.rank].contiguous()
    logits = logits.requires_grad_()
    words = arguments(case, logits)
    loss = MODULE.CrossEntropyFunction.apply(*words)
    grad_loss = case.tensors["grad_loss"]
    # From 2.12.0 on the mean has the shape [1].
    shaped = loss.detach().reshape(grad_loss.shape)
    if case.axes.get("answer") == "logits_after":
        return {"loss": shaped, "logits_after": logits.detach().clone()}
    grad = grad_loss if loss.shape == grad_loss.shape else grad_loss.reshape(loss.shape)
    for _ in range(case.axes.get("backwards", 1)):
        (grad_logits,) = torch.autograd.grad(loss, logits, grad, retain_graph=True)
    parts = [grad_logits.clone()]
    if case.num_ranks > 1:
        parts = [torch.empty_like(grad_logits).contiguous() for _ in range(case.num_ranks)]
        torch.distributed.all_gather(parts, grad_logits.contiguous())
    return {"loss": shaped, "grad_logits": torch.cat(parts, -1)}
