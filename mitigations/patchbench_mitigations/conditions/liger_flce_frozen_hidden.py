"""Of Liger-Kernel's loss over hidden states that want no gradient: what its backward is asked for."""

from __future__ import annotations

from typing import Any

CLASS = "liger_kernel.ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction"


def gradient_missing(ctx: Any, grad_output: Any) -> bool:
    """What backward is asked for: a gradient of weight or bias and none of the hidden states, of one loss for all tokens."""
    wanted = ctx.needs_input_grad
    return grad_output is not None and grad_output.dim() == 0 and not wanted[0] and any(wanted[1:])


CALLS = {f"{CLASS}.backward": {"gradient_missing": gradient_missing}}
