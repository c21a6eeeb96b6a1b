"""Times patchbench::topk_to_index_mask against the plain scatter of torch and a fill of the mask's size.

    PYTHONPATH=repro/bench PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_topk_to_index_mask.py

The floor is what must move: the indices once, the float32 mask once.
"""

from __future__ import annotations

from argparse import Namespace

import torch
from bench_main import Bench, Shape, bench_main
from device_time import spread


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    length, topk = shape
    indices = torch.randint(0, length, (1, length, topk), device="cuda", dtype=torch.int32)
    mask = torch.empty(1, length, length, device="cuda")
    wide = indices.long()

    def plain() -> torch.Tensor:
        return torch.full_like(mask, float("-inf")).scatter_(-1, wide, 0.0)

    ours = torch.ops.patchbench.topk_to_index_mask(indices, length)
    assert torch.equal(ours, plain())
    moved = mask.nbytes + indices.nbytes
    calls = {"ours": lambda: torch.ops.patchbench.topk_to_index_mask(indices, length), "fill alone": lambda: mask.fill_(0.0)}
    calls["fill and scatter in torch, int64 indices at hand"] = plain
    row = {"shape": shape} | {name: spread(call, options.repeats) for name, call in calls.items()}
    return [row | {"floor_bytes": moved, "GB/s": round(moved / row["ours"][0] / 1e6)}]


SHAPES = [[length, 2048] for length in (4096, 8192, 16384)]
BENCH = Bench("patchbench::topk_to_index_mask", rows_of, SHAPES, "queries = keys, topk", dtype="float32")

if __name__ == "__main__":
    bench_main(BENCH)
