"""Liger-Kernel's fused linear cross entropy, whatever the release's argument list. Import after `liger_stand_in.install()`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Flce
from subject_runtime import Case, Unsupported

# What a case asks for besides, by its axis `also`: the loss and its gradients stay what they are.
ALSO = {
    "returned": {"return_z_loss": True, "return_token_accuracy": True, "return_predicted_tokens": True},
    "accumulated_in_float32": {"accum_dtype": torch.float32},
}


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
    wanted |= {name: value for name, value in optional.items() if value is not None} | ALSO.get(axes.get("also"), {})
    if axes.get("has_token_scaling"):
        wanted["use_token_scaling"] = True
    parameters = dict(list(inspect.signature(Flce.forward).parameters.items())[1:])
    for name in wanted:
        if name not in parameters:
            raise Unsupported(f"this release's forward has no argument {name}")
    return [wanted.get(name, parameter.default) for name, parameter in parameters.items()]


def loss_of(case: Case, leaves: dict[str, torch.Tensor], reduction: str) -> torch.Tensor:
    """The loss alone, from a release's return value."""
    result: Any = Flce.apply(*arguments(case, leaves, reduction))
    return result[0] if isinstance(result, tuple) else result
