"""Times the sparse-MLA forward and backward of the megatron-core on the path, at 576/512 with 128 heads.

    PYTHONPATH=TREE:repro/bench python3 bench_backward.py

Once for the release and once for a tree with the edit. The peak is what the allocator held beyond the operands in a forward and
backward.
"""

from __future__ import annotations

import os
from argparse import Namespace

import torch
from bench_main import Bench, Shape, bench_main, versions
from device_time import peak_bytes, spread

WIDTH, VALUES = 576, 512


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    os.environ["MCORE_DSA_TILELANG_SEQ_BUCKET"] = "1"
    from megatron.core.transformer.experimental_attention_variant.ops.sparse_mla import SparseMLA

    context, heads, topk = shape
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    q, kv = (torch.randn(context, n, WIDTH, **kind).requires_grad_() for n in (heads, 1))
    grad = torch.randn(context, heads, VALUES, **kind)
    indices = torch.randint(0, context, (context, 1, topk), device="cuda", dtype=torch.int32)

    def forward() -> torch.Tensor:
        return SparseMLA.apply(q, kv, indices, WIDTH**-0.5)[0]

    def step() -> None:
        torch.autograd.grad(forward(), (q, kv), grad)

    step()
    row = {"shape": shape, "peak_bytes": peak_bytes(step), "forward": spread(forward, options.repeats)}
    out = forward()
    return [row | {"backward": spread(lambda: torch.autograd.grad(out, (q, kv), grad, retain_graph=True), options.repeats)}]


SHAPES, AXES = [[4096, 128, 2048], [16384, 128, 2048]], "queries = keys, heads, topk"
BENCH = Bench("megatron-core's SparseMLA", rows_of, SHAPES, AXES, about=lambda: versions("tilelang"), needs_ops=False)

if __name__ == "__main__":
    bench_main(BENCH)
