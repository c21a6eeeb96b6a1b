"""Trains B and C of a Mamba-3 MIMO layer of 4 heads in 2 groups by mamba-ssm's backward, and with each group's row given to its heads.

Without TileLang over the pack's stand-in for the kernels. The error is the relative difference of the steps; 1 where the release raises.
"""

import importlib
import json

import stand_in
import torch

stand_in.install()
release = importlib.import_module("mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd")
helpers = importlib.import_module(stand_in.HELPERS)
SEQLEN, HEADS, GROUPS, RANKS, N, P = 16, 4, 2, 2, 32, 32
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
q, k = (torch.randn(1, SEQLEN, RANKS, GROUPS, N, device=device) for _ in "qk")
v, dout = (torch.randn(1, SEQLEN, HEADS, P, device=device) for _ in "vo")
per_head = {"q_bias": N, "k_bias": N, "mimo_v": P, "mimo_o": P}
given = {name: torch.randn(HEADS, RANKS, size, device=device) for name, size in per_head.items()}
adt, dt, trap = (torch.rand(1, HEADS, SEQLEN, device=device) for _ in range(3))
sums = dict(zip(("dA_cs", "dA_cs_rev", "segsum"), helpers.compute_dacs_segsum_triton(-adt, SEQLEN), strict=True))
given |= sums | {"v": v, "dout": dout, "dt": dt, "trap": trap, "angles": torch.rand(1, SEQLEN, HEADS, N // 4, device=device),
                 "z": None, "mimo_z": None, "D": None, "chunk_size": SEQLEN, "rotary_dim_divisor": 4, "dtype": torch.float32}  # fmt: skip


def steps(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.stack(release.mamba_mimo_bwd_combined(q=q, k=k, **given)[:2]).float()


right = steps(*(x.repeat_interleave(HEADS // GROUPS, 3) for x in (q, k))).unflatten(4, (GROUPS, -1)).sum(5)
try:
    error = ((steps(q, k) - right).abs().max() / right.abs().max()).item()
except ValueError:
    error = 1.0
print(json.dumps({"error": error, "bound": 1e-3}))
