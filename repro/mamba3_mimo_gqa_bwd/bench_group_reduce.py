"""Times patchbench::group_reduce_bwd beside the same sums in torch and a copy of its inputs.

    PYTHONPATH=repro/harness PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_group_reduce.py

The floor is what must move: dq and dk once, grad_q and grad_k once, the biases once.
"""

from __future__ import annotations

import os

import torch
from device_time import in_turn, need_cuda, print_bench

SEQLEN, GROUPS = 4096, 8  # of the sweeps along the other axis


def row_of(seqlen: int, num_groups: int, heads: int = 128) -> dict[str, object]:
    shape = (1, seqlen, 4, heads, 128)  # batch, seqlen, ranks, heads, head_dim
    dq, dk = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def ours() -> tuple[torch.Tensor, ...]:
        return torch.ops.patchbench.group_reduce_bwd(dq, dk, num_groups)

    def plain() -> list[torch.Tensor]:
        grouped = [t.unflatten(3, (num_groups, heads // num_groups)).sum(4, dtype=torch.float32).to(t.dtype) for t in (dq, dk)]
        return grouped + [t.sum((0, 1), dtype=torch.float32).transpose(0, 1) for t in (dq, dk)]

    assert all(torch.allclose(a.float(), b.float(), rtol=1e-2, atol=1e-2) for a, b in zip(ours(), plain(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours(), ours(), strict=True))
    moved = dq.nbytes + dk.nbytes + sum(t.nbytes for t in ours())
    copied = torch.empty_like(dq)
    calls = {"ours": lambda _: ours(), "torch": lambda _: plain(), "copy of dq": lambda _: copied.copy_(dq)}
    row = {"shape": [*shape, num_groups], **in_turn(calls)}
    return row | {"floor_bytes": moved, "GB/s": round(moved / row["ours"][0] / 1e6)}


def main() -> None:
    need_cuda("bench_group_reduce.py")
    torch.ops.load_library(os.environ["PATCHBENCH_OPS_LIB"])
    shape_is = "batch, seqlen, ranks, heads, head_dim, groups"
    rows = [row_of(SEQLEN, groups) for groups in (1, 2, 4, 8, 16, 32, 64, 128)]
    rows += [row_of(SEQLEN, 8, heads=96)]  # 12 heads a group: a quarter of the threads' heads are idle
    rows += [row_of(seqlen, GROUPS) for seqlen in (512, 1024, 2048, 8192, 16384)]
    print_bench("patchbench::group_reduce_bwd", rows, dtype="bfloat16", order="all in turn", shape_is=shape_is)


if __name__ == "__main__":
    main()
