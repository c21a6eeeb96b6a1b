"""Times patchbench::sparse_mla and, where megatron-core and TileLang can be imported, the release's kernels at 576/512.

    PYTHONPATH=repro/harness PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_sparse_mla.py [--shape …] [--repeats 30]

bfloat16, batch 1, indices drawn with repetition. FLOPs counted are those of the products (forward 2, backward 5), bytes those of
operands and results once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

import torch
from device_time import need_cuda, print_bench, spread

SHAPES = ["1024,8192,128,2048,576,512", "1024,8192,128,2048,512,512", "1024,8192,64,2048,320,256", "1024,8192,16,2048,128,64"]
SCALE = 0.05


def release_kernels() -> tuple[Callable, Callable] | None:
    """The forward and the backward of the installed megatron-core; None without it."""
    try:
        from megatron.core.transformer.experimental_attention_variant.ops import tilelang_sparse_mla_bwd, tilelang_sparse_mla_fwd
    except ImportError as missing:
        print(f"bench_sparse_mla.py: no release beside: {missing}", file=sys.stderr)
        return None
    return tilelang_sparse_mla_fwd.sparse_mla_fwd_interface, tilelang_sparse_mla_bwd.sparse_mla_bwd


def row_of(shape: list[int], release: tuple[Callable, Callable] | None, repeats: int) -> dict[str, object]:
    queries, keys, heads, topk, width, values = shape
    torch.manual_seed(9)
    kind = {"dtype": torch.bfloat16, "device": "cuda"}
    q, kv = torch.randn(1, queries, heads, width, **kind), torch.randn(1, keys, 1, width, **kind)
    grad = torch.randn(1, queries, heads, values, **kind)
    indices = torch.randint(0, keys, (1, queries, 1, topk), device="cuda", dtype=torch.int32)
    ops = torch.ops.patchbench
    out, lse, rest = ops.sparse_mla_forward(q, kv, indices, softmax_scale=SCALE, head_dim_v=values)
    saved = (grad, out, rest, lse, q, kv, indices)
    pair = 2 * queries * heads * topk
    flops = {"forward": pair * (width + values), "backward": pair * (3 * width + 2 * values)}
    tensors = {"forward": (q, kv, indices, out, rest, lse), "backward": (*saved, q, kv)}
    row: dict[str, object] = {"shape": shape, "path": ops.sparse_mla_path(q, values, "bf16")}
    calls = {"forward": lambda: ops.sparse_mla_forward(q, kv, indices, softmax_scale=SCALE, head_dim_v=values),
             "backward": lambda: ops.sparse_mla_backward(*saved, softmax_scale=SCALE)}  # fmt: skip
    if release and (width, values) == (576, 512):
        forward, backward = release
        made, norm = forward(q, kv, indices, sm_scale=SCALE)
        calls["release forward"] = lambda: forward(q, kv, indices, sm_scale=SCALE)
        calls["release backward"] = lambda: backward(q, kv, made, grad, indices, norm, sm_scale=SCALE)
        row["difference of out"] = ((made.float() - out.float()).norm() / out.float().norm()).item()
        for name, ours, theirs in zip(("grad_q", "grad_kv"), calls["backward"](), calls["release backward"](), strict=False):
            row[f"difference of {name}"] = ((ours.float() - theirs.float()).norm() / ours.float().norm()).item()
    for name, call in calls.items():
        step = name.split()[-1]
        row[name] = spread(call, repeats)
        row[f"{name} TFLOP/s"] = round(flops[step] / row[name][0] / 1e9, 1)
    row["floor"] = {step: {"flops": flops[step], "bytes": sum(t.nbytes for t in tensors[step])} for step in flops}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", help="QUERIES,KEYS,HEADS,TOPK,QK,V")
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    need_cuda("bench_sparse_mla.py")
    torch.ops.load_library(os.environ["PATCHBENCH_OPS_LIB"])
    release = release_kernels()
    rows = [row_of([int(n) for n in shape.split(",")], release, arguments.repeats) for shape in arguments.shape or SHAPES]
    print_bench("patchbench::sparse_mla", rows, dtype="bfloat16", shape_is="queries, keys, heads, topk, head_dim_qk, head_dim_v")


if __name__ == "__main__":
    main()
