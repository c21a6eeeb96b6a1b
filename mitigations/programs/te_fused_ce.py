"""Trains a head to predict the next token with TransformerEngine's fused loss, each token with a weight, and the same head in plain torch.
Ranks have parts of the vocabulary. Where TransformerEngine is not compiled, over the pack's stand-in. The error is the largest relative
difference of a trained weight."""

import json
import os

import stand_in
import torch

stand_in.install()
from transformer_engine.pytorch.cross_entropy import CrossEntropyFunction  # noqa: E402

RANKS = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
group = torch.distributed.init_process_group("gloo") or torch.distributed.group.WORLD if size > 1 else None


def trained(is_fused: bool) -> torch.Tensor:
    torch.manual_seed(0)
    body, head = torch.nn.Embedding(40, 16).to(DEVICE), torch.nn.Linear(16, 40, bias=False).to(DEVICE)
    tokens, weight = torch.randint(0, 40, (3, 9)).to(DEVICE), torch.rand(3, 8).to(DEVICE)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        logits, labels = head(body(tokens))[:, :-1], tokens[:, 1:]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        if is_fused:
            part = logits if size == 1 else logits.chunk(size, -1)[rank].contiguous()
            losses = CrossEntropyFunction.apply(part, labels, 0.0, False, group)
        (losses * weight / weight.sum()).sum().backward()
        for one in (body, head) if is_fused and size > 1 else ():  # each rank has the gradient of its own logits
            torch.distributed.all_reduce(one.weight.grad)
        optimizer.step()
    return torch.cat([body.weight.detach().flatten(), head.weight.detach().flatten()])


got, right = trained(True), trained(False)
print(json.dumps({"error": ((got - right).abs().max() / right.abs().max()).item(), "bound": 1e-4}) if rank == 0 else "")
