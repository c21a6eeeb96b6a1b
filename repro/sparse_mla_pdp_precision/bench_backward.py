"""Times the sparse-MLA forward and backward of the megatron-core on the path, at 576/512 with 128 heads.

    PYTHONPATH=TREE:repro/harness python3 bench_backward.py

Once for the release and once for a tree with the edit. The peak is what the allocator held beyond the operands in a forward and
backward.
"""

from __future__ import annotations

import importlib.metadata
import os

import torch
from device_time import need_cuda, print_bench, spread

HEADS, TOPK, WIDTH, VALUES = 128, 2048, 576, 512


def row_of(context: int) -> dict[str, object]:
    from megatron.core.transformer.experimental_attention_variant.ops.sparse_mla import SparseMLA

    kind = {"device": "cuda", "dtype": torch.bfloat16}
    q, kv = (torch.randn(context, n, WIDTH, **kind).requires_grad_() for n in (HEADS, 1))
    grad = torch.randn(context, HEADS, VALUES, **kind)
    indices = torch.randint(0, context, (context, 1, TOPK), device="cuda", dtype=torch.int32)

    def forward() -> torch.Tensor:
        return SparseMLA.apply(q, kv, indices, WIDTH**-0.5)[0]

    torch.autograd.grad(forward(), (q, kv), grad)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(forward(), (q, kv), grad)
    row = {"shape": [context, HEADS, TOPK], "peak_bytes": torch.cuda.max_memory_allocated() - held, "forward": spread(forward)}
    out = forward()
    return row | {"backward": spread(lambda: torch.autograd.grad(out, (q, kv), grad, retain_graph=True))}


def main() -> None:
    need_cuda("bench_backward.py")
    os.environ["MCORE_DSA_TILELANG_SEQ_BUCKET"] = "1"
    about = {"tilelang": importlib.metadata.version("tilelang"), "shape_is": "queries = keys, heads, topk"}
    print_bench("megatron-core's SparseMLA", [row_of(context) for context in (4096, 16384)], dtype="bfloat16", **about)


if __name__ == "__main__":
    main()
