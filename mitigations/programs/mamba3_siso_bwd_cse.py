"""Trains a small Mamba-3 layer without MIMO on packed sequences, d_state 48, and the same layer on the sequences one by one.

Over the pack's stand-in, in Triton's interpreter. The error is the largest relative difference of a trained weight.
"""

import json
import os

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import stand_in  # noqa: E402
import torch  # noqa: E402

LENGTHS, HEADS, D_STATE, HEAD_DIM, ANGLES = (33, 64, 1, 52), 2, 48, 16, 12
stand_in.install()
release = stand_in.op()


def forward(layer: torch.nn.Module, u: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
    q, k, v, dt, trap, angles = layer(u).split([D_STATE, D_STATE, HEADS * HEAD_DIM, HEADS, HEADS, ANGLES], dim=-1)
    dt, bias = torch.nn.functional.softplus(dt).mT, u.new_zeros(HEADS, D_STATE)
    rows = (q.unsqueeze(2), k.unsqueeze(2), v.unflatten(-1, (HEADS, HEAD_DIM)), -dt, dt, trap.mT, bias, bias)
    return release.mamba3_siso_combined(*rows, angles.unsqueeze(2).expand(-1, -1, HEADS, -1), chunk_size=32, cu_seqlens=cu_seqlens)


def trained(bounds: torch.Tensor | None) -> torch.Tensor:
    torch.manual_seed(0)
    layer, u = torch.nn.Linear(8, 2 * D_STATE + HEADS * (HEAD_DIM + 2) + ANGLES), torch.randn(1, sum(LENGTHS), 8)
    for _ in range(2):
        parts = u.split(LENGTHS, dim=1) if bounds is None else [u]
        torch.cat([forward(layer, part, bounds) for part in parts], dim=1).square().mean().backward()
        torch.optim.SGD(layer.parameters(), lr=0.5).step()
        layer.zero_grad()
    return layer.weight.detach()


with stand_in.interpreted():
    packed, single = trained(torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)), trained(None)
print(json.dumps({"error": ((packed - single).abs().max() / single.abs().max()).item(), "bound": 1e-5}))
