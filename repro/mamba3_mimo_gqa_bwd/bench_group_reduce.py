"""Times patchbench::group_reduce_bwd beside the same sums in torch and a copy of its inputs.

    PYTHONPATH=repro/harness PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_group_reduce.py

The floor is what must move: dq and dk once, grad_q and grad_k once, the biases once.
"""

from __future__ import annotations

import os

import torch
from device_time import need_cuda, print_bench, spread

SHAPE = (1, 4096, 4, 128, 128)  # batch, seqlen, ranks, heads, head_dim


def row_of(num_groups: int) -> dict[str, object]:
    dq, dk = torch.randn(2, *SHAPE, device="cuda", dtype=torch.bfloat16)
    heads = SHAPE[3]

    def ours() -> tuple[torch.Tensor, ...]:
        return torch.ops.patchbench.group_reduce_bwd(dq, dk, num_groups)

    def plain() -> list[torch.Tensor]:
        grouped = [t.unflatten(3, (num_groups, heads // num_groups)).sum(4, dtype=torch.float32).to(t.dtype) for t in (dq, dk)]
        return grouped + [t.sum((0, 1), dtype=torch.float32).transpose(0, 1) for t in (dq, dk)]

    assert all(torch.allclose(a.float(), b.float(), rtol=1e-2, atol=1e-2) for a, b in zip(ours(), plain(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours(), ours(), strict=True))
    moved = dq.nbytes + dk.nbytes + sum(t.nbytes for t in ours())
    copied = torch.empty_like(dq)
    row = {"shape": [*SHAPE, num_groups], "ours": spread(ours), "torch": spread(plain), "copy of dq": spread(lambda: copied.copy_(dq))}
    return row | {"floor_bytes": moved, "GB/s": round(moved / row["ours"][0] / 1e6)}


def main() -> None:
    need_cuda("bench_group_reduce.py")
    torch.ops.load_library(os.environ["PATCHBENCH_OPS_LIB"])
    shape_is = "batch, seqlen, ranks, heads, head_dim, groups"
    print_bench("patchbench::group_reduce_bwd", [row_of(g) for g in (1, 2, 8, 32, 128)], dtype="bfloat16", shape_is=shape_is)


if __name__ == "__main__":
    main()
