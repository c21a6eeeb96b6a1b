"""Times patchbench::topk_to_index_mask in turn with megatron-core's own scatter, the plain scatter of torch and a fill of the mask's size.

    PYTHONPATH=repro/bench PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_topk_to_index_mask.py

megatron-core is imported from PYTHONPATH; where it is absent or fails, the row says why. Its time holds the fill before the scatter, as
its callers do both. The floor is what must move: the indices once, the float32 mask once.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable

import torch
from bench_main import Bench, Shape, bench_main, best_peer, versions
from device_time import in_turn

PLAIN, RELEASE = "fill and scatter in torch, int64 indices at hand", "megatron-core"


def release(indices: torch.Tensor, mask: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The mask as the megatron-core on PYTHONPATH makes it. Raises where it is not there."""
    scatter = importlib.import_module("megatron.core.transformer.experimental_attention_variant.dsa_masking").scatter_topk_into_index_mask

    def make() -> torch.Tensor:
        filled = torch.full_like(mask, float("-inf"))
        scatter(filled, indices, seq_chunk_size=256)
        return filled

    return make


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
    row: dict[str, object] = {"shape": shape}
    calls = {"ours": lambda: torch.ops.patchbench.topk_to_index_mask(indices, length), "fill alone": lambda: mask.fill_(0.0), PLAIN: plain}
    try:
        theirs = release(indices, mask)
        assert torch.equal(ours, theirs()), "its mask is another"
        calls[RELEASE] = theirs
    except Exception as why:  # an import fails in many ways
        row["megatron-core not run"] = f"{type(why).__name__}: {str(why).strip()[:200]}"
    row |= in_turn({name: lambda _, call=call: call() for name, call in calls.items()}, options.repeats)
    row["of_best_peer"] = best_peer(row["ours"][0], {name: row[name][0] for name in (PLAIN, RELEASE) if name in calls})
    return [row | {"floor_bytes": moved, "GB/s": round(moved / row["ours"][0] / 1e6)}]


SHAPES, AXES = [[length, 2048] for length in (4096, 8192, 16384)], "queries = keys, topk"
ABOUT = {"order": "all in turn", "versions": versions("megatron-core", "torch")}
BENCH = Bench("patchbench::topk_to_index_mask", rows_of, SHAPES, AXES, dtype="float32", about=lambda: ABOUT)

if __name__ == "__main__":
    bench_main(BENCH)
