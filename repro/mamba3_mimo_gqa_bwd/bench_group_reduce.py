"""Times patchbench::group_reduce_bwd against the same sums in torch and a copy of its inputs.

    PYTHONPATH=repro/bench PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_group_reduce.py

The floor is what must move: dq and dk once, grad_q and grad_k once, the biases once.
"""

from __future__ import annotations

from argparse import Namespace

import torch
from bench_main import Bench, Shape, bench_main
from device_time import in_turn


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    *sizes, num_groups = shape
    dq, dk = (torch.randn(sizes, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def ours() -> tuple[torch.Tensor, ...]:
        return torch.ops.patchbench.group_reduce_bwd(dq, dk, num_groups)

    def plain() -> list[torch.Tensor]:
        grouped = [t.unflatten(3, (num_groups, -1)).sum(4, dtype=torch.float32).to(t.dtype) for t in (dq, dk)]
        return grouped + [t.sum((0, 1), dtype=torch.float32).transpose(0, 1) for t in (dq, dk)]

    assert all(torch.allclose(a.float(), b.float(), rtol=1e-2, atol=1e-2) for a, b in zip(ours(), plain(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours(), ours(), strict=True))
    moved = dq.nbytes + dk.nbytes + sum(t.nbytes for t in ours())
    copied = torch.empty_like(dq)
    calls = {"ours": lambda _: ours(), "torch": lambda _: plain(), "copy of dq": lambda _: copied.copy_(dq)}
    row = {"shape": shape, **in_turn(calls, options.repeats)}
    return [row | {"floor_bytes": moved, "GB/s": round(moved / row["ours"][0] / 1e6)}]


SHAPES = [[1, 4096, 4, 128, 128, groups] for groups in (1, 2, 4, 8, 16, 32, 64, 128)]
SHAPES += [[1, 4096, 4, 96, 128, 8]]  # 12 heads a group: a quarter of the threads' heads are idle
SHAPES += [[1, seqlen, 4, 128, 128, 8] for seqlen in (512, 1024, 2048, 8192, 16384)]
AXES = "batch, seqlen, ranks, heads, head_dim, groups"
BENCH = Bench("patchbench::group_reduce_bwd", rows_of, SHAPES, AXES, about=lambda: {"order": "all in turn"})

if __name__ == "__main__":
    bench_main(BENCH)
