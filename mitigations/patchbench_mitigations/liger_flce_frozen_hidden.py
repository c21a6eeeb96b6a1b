"""Liger-Kernel's fused linear cross entropy over a frozen trunk: weight and bias get the gradients that they want.

The hook replaces `forward` on the class object, so every alias of it sees it. A call with "mean" or "sum" whose hidden states want no
gradient, and whose weight or bias wants one, gives the release's own forward a detached view of the hidden states that wants one:
the release then makes the gradients as it does for a trained trunk. Every other call goes to the original untouched.

Mode "exact" (what "auto" stands for) is exact: loss and gradients are the release's own, bit for bit, as with a trained trunk. It
costs the gradient of the hidden states, one matrix product that nobody takes. Calls with "none" are those of pack
liger_flce_none_bwd, whose mitigation may be on as well, in either order. Not for the Ascend, cuTile and CuTe classes.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from patchbench_mitigations.registry import MODE_AUTO
from patchbench_mitigations.switch import Finding, Hook, Mitigation, Placement, probe_device, saveable

SLUG = "liger_flce_frozen_hidden"
UPSTREAM = "liger-kernel"
TARGET = "liger_kernel.ops.fused_linear_cross_entropy"
CLASS = "LigerFusedLinearCrossEntropyFunction"
EXACT = "exact"
KEYS = tuple(f"{TARGET}:{part}{half}" for part in (f"{CLASS}.", "fused_linear_cross_entropy_") for half in ("forward", "backward"))


def _wants_gradient(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def _forward_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forward(ctx: Any, hidden: torch.Tensor, *args: Any) -> Any:
        bound = signature.bind(ctx, hidden, *args)
        bound.apply_defaults()
        given = bound.arguments
        is_frozen = not _wants_gradient(hidden) and (_wants_gradient(given["weight"]) or _wants_gradient(given.get("bias")))
        if not is_frozen or given["reduction"] == "none" or torch.is_inference_mode_enabled():
            return original(ctx, hidden, *args)
        hook.serve(served=1)
        return original(ctx, saveable(hidden).requires_grad_(), *args)

    return forward


# ---- probe ----


def observed_state(function: type) -> tuple[str, str]:
    """Runs a mean over two tokens of a frozen trunk through an autograd Function, once for each of weight and bias: (state, reason)."""
    device = probe_device()
    if device is None:
        return "unknown", "no GPU, and TRITON_INTERPRET is not 1: the kernels cannot run here"
    generator = torch.Generator().manual_seed(25)
    hidden = torch.randn(2, 8, generator=generator).to(device)
    weight, bias = (torch.randn(*shape, generator=generator).to(device) for shape in ((16, 8), (16,)))
    target = torch.tensor([3, 5], device=device)
    parameters = list(inspect.signature(function.forward).parameters.values())[1:]
    for name in ("weight", "bias"):
        given = {"_input": hidden, "weight": weight.clone(), "target": target, "bias": bias.clone(), "reduction": "mean"}
        leaf = given[name].requires_grad_()
        try:
            loss = function.apply(*(given.get(p.name, p.default) for p in parameters))
        except (UnboundLocalError, AttributeError) as error:
            return "forward_raises", f"forward raises: {error}"
        (got,) = torch.autograd.grad(loss[0] if isinstance(loss, tuple) else loss, leaf, allow_unused=True)
        if got is None:
            return "gradient_missing", f"a {name} over a frozen trunk gets no gradient"
        (right,) = torch.autograd.grad(F.cross_entropy(hidden @ given["weight"].T + given["bias"], target), leaf)
        if (got - right).norm() > 1e-2 * right.norm():
            return "unknown", f"the gradient of {name} over a frozen trunk is neither missing nor right"
    return "right", "weight and bias over a frozen trunk get their gradients"


# ---- switch ----


class _FrozenHidden(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "", KEYS
    counted = ("served",)
    force_lifts_unknown = True  # without a GPU no probe can run

    def meaning(self, mode: str) -> str:
        return EXACT if mode == MODE_AUTO else mode

    def op_note(self, mode: str) -> str:
        return "no op: the release computes"

    def served_by(self, hook: Hook) -> str:
        return "the release's own forward of a trained trunk"

    def release(self) -> tuple[type, str]:
        return self.installed_class(TARGET, CLASS, ("forward",))

    def look(self, release: type, version: str) -> Finding:
        both = {name: staticmethod(getattr(release, name)) for name in ("forward", "backward")}
        state, reason = observed_state(type("Upstream" + CLASS, (torch.autograd.Function,), both))
        return Finding(state, version, reason)

    def objection(self, release: type, finding: Finding) -> str:
        impl = os.environ.get("LIGER_KERNEL_IMPL", "triton")
        return "" if impl in ("", "triton") else f"LIGER_KERNEL_IMPL={impl} runs another class than the one this changes"

    def placements(self, release: type, hook: Hook) -> list[Placement]:
        placed = staticmethod(_forward_for(hook, release.forward))
        return [Placement(release, "forward", vars(release)["forward"], placed, f"{CLASS}.forward")]

    def left(self, release: type, hook: Hook) -> str:
        state, reason = observed_state(release)
        return "" if state == "right" or probe_device() is None else reason


_own = _FrozenHidden()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
