"""Of Liger-Kernel's loss: one loss a token, and what comes back for it."""

from __future__ import annotations

from typing import Any

from patchbench_mitigations.conditions import differs_by_row, of_values

CLASS = "liger_kernel.ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction"


def reduction_ignored(reduction: str) -> bool:
    """The argument reduction is "none"."""
    return reduction == "none"


@of_values
def wrong_gradients(grad_output: Any) -> Any:
    """The gradients of the losses, in backward: they differ from token to token."""
    return differs_by_row(grad_output)


CALLS = {f"{CLASS}.forward": {"reduction_ignored": reduction_ignored}, f"{CLASS}.backward": {"wrong_gradients": wrong_gradients}}
