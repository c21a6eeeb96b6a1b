"""Trains a head to predict the next token with TransformerEngine's fused loss, each token with a weight, and the same head in plain torch.

Where TransformerEngine is not compiled, over the pack's stand-in. The error is the largest relative difference of a trained weight.
"""

import json

import stand_in
import torch

stand_in.install()
from transformer_engine.pytorch.cross_entropy import CrossEntropyFunction  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def fused(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return CrossEntropyFunction.apply(logits, labels, 0.0, False, None)


def plain(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def trained(loss_of) -> torch.Tensor:  # noqa: ANN001
    torch.manual_seed(0)
    body, head = torch.nn.Embedding(40, 16).to(DEVICE), torch.nn.Linear(16, 40, bias=False).to(DEVICE)
    tokens, weight = torch.randint(0, 40, (3, 9)).to(DEVICE), torch.rand(3, 8).to(DEVICE)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        losses = loss_of(head(body(tokens))[:, :-1], tokens[:, 1:])
        (losses * weight / weight.sum()).sum().backward()
        optimizer.step()
    return torch.cat([body.weight.detach().flatten(), head.weight.detach().flatten()])


got, right = trained(fused), trained(plain)
print(json.dumps({"error": ((got - right).abs().max() / right.abs().max()).item(), "bound": 1e-4}))
