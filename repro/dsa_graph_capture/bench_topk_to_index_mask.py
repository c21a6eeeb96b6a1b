"""Times patchbench::topk_to_index_mask beside the plain scatter of torch and a fill of the mask's size.

    PYTHONPATH=repro/harness PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_topk_to_index_mask.py

The floor is what must move: the indices once, the float32 mask once.
"""

from __future__ import annotations

import os

import torch
from device_time import need_cuda, print_bench, spread


def row_of(length: int, topk: int) -> dict[str, object]:
    indices = torch.randint(0, length, (1, length, topk), device="cuda", dtype=torch.int32)
    mask = torch.empty(1, length, length, device="cuda")
    wide = indices.long()

    def plain() -> torch.Tensor:
        return torch.full_like(mask, float("-inf")).scatter_(-1, wide, 0.0)

    ours = torch.ops.patchbench.topk_to_index_mask(indices, length)
    assert torch.equal(ours, plain())
    moved = mask.nbytes + indices.nbytes
    row = {"shape": [length, topk], "ours": spread(lambda: torch.ops.patchbench.topk_to_index_mask(indices, length))}
    row |= {"fill and scatter in torch, int64 indices at hand": spread(plain), "fill alone": spread(lambda: mask.fill_(0.0))}
    return row | {"floor_bytes": moved, "GB/s": round(moved / row["ours"][0] / 1e6)}


def main() -> None:
    need_cuda("bench_topk_to_index_mask.py")
    torch.ops.load_library(os.environ["PATCHBENCH_OPS_LIB"])
    rows = [row_of(length, 2048) for length in (4096, 8192, 16384)]
    print_bench("patchbench::topk_to_index_mask", rows, dtype="float32", shape_is="queries = keys, topk")


if __name__ == "__main__":
    main()
