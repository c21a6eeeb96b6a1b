"""Trains a head over a frozen trunk with Liger-Kernel's fused mean loss, and the same head in plain torch.

The error is the largest relative difference of a trained weight; 1 where the release raises.
"""

import inspect
import json

import torch
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused


def fused(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    given = {"_input": hidden, "weight": weight, "target": target, "reduction": "mean"}
    loss = Fused.apply(*(given.get(p.name, p.default) for p in list(inspect.signature(Fused.forward).parameters.values())[1:]))
    return loss[0] if isinstance(loss, tuple) else loss


def plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(hidden @ weight.T, target)


def trained(loss_of) -> torch.Tensor:  # noqa: ANN001
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    trunk, head = torch.nn.Linear(8, 16).requires_grad_(False).to(device), torch.nn.Linear(16, 40, bias=False).to(device)
    data, target = torch.randn(24, 8).to(device), torch.randint(0, 40, (24,)).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(trunk(data), head.weight, target).backward()
        optimizer.step()
    return head.weight.detach()


try:
    error = ((trained(fused) - (right := trained(plain))).abs().max() / right.abs().max()).item()
except (UnboundLocalError, AttributeError):
    error = 1.0
print(json.dumps({"error": error, "bound": 1e-4}))
