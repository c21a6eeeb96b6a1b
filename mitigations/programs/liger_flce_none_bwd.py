"""Trains two layers with Liger-Kernel's fused loss, one loss and one weight a token, and the same layers in plain torch.

The error is the largest relative difference of a trained weight.
"""

import inspect
import json

import torch
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def fused(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    given = {"_input": hidden, "weight": weight, "target": target, "reduction": "none"}
    losses = Fused.apply(*(given.get(p.name, p.default) for p in list(inspect.signature(Fused.forward).parameters.values())[1:]))
    return losses[0] if isinstance(losses, tuple) else losses


def plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(hidden @ weight.T, target, reduction="none")


def trained(loss_of) -> torch.Tensor:  # noqa: ANN001
    torch.manual_seed(0)
    body, head = torch.nn.Linear(8, 16).to(DEVICE), torch.nn.Linear(16, 40, bias=False).to(DEVICE)
    data, target, weight = torch.randn(24, 8).to(DEVICE), torch.randint(0, 40, (24,)).to(DEVICE), torch.rand(24).to(DEVICE)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (loss_of(body(data), head.weight, target) * weight / weight.sum()).sum().backward()
        optimizer.step()
    return torch.cat([body.weight.detach().flatten(), head.weight.detach().flatten()])


got, right = trained(fused), trained(plain)
print(json.dumps({"error": ((got - right).abs().max() / right.abs().max()).item(), "bound": 1e-4}))
