#!/usr/bin/env python3
"""What each op costs over the size of its main axis, on every path that it has.

    PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 scaling.py > scaling.json     measures, on a CUDA device
    python3 scaling.py scaling.json > scaling.svg                                  draws
    ncu --profile-from-start off ... python3 scaling.py --once OP SIZE             profiles one warm call of an op's kernels

"op's fall-back, GPU" is the form in torch that the op itself takes where it has no kernel (PATCHBENCH_OP_FALLBACK). It is not what a
user has without the op: F.linear with F.cross_entropy, which the page of liger_flce_none_bwd calls plain torch, is another computation.
No peer is measured here. The inputs of sparse_mla_fp8 are quantised before the clock starts.

One panel for each op, both axes logarithmic: milliseconds against the work that the results need at least, FLOPs of the products or
bytes of operands and results, each counted once. The floor is that work at the rate of a product of 8192 x 8192 matrices, or of a
copy of 1 GiB, measured in the same run. The same file gives the same drawing.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from curves import Panel, Point, drawing

KERNEL, PORTABLE, FALLBACK, CPU = "CUDA, sm_90a", "CUDA, sm_80 on", "op's fall-back, GPU", "CPU"
COLOURS = {KERNEL: "#0072b2", PORTABLE: "#d55e00", FALLBACK: "#009e73", CPU: "#7a3e9d"}  # also told apart by their marks
MARKS = {KERNEL: "circle", PORTABLE: "diamond", FALLBACK: "square", CPU: "triangle"}
NOT_TIMED = {"sparse_mla_fp8": "quantisation"}  # what a step needs besides the call that is timed
FLOOR = "#000000"
BUDGET_MS, MOST_MS = 200, 1500  # of the repeats of one point; of one call, beyond which a path is not taken further
FP32_BYTES = 4

Call = Callable[[], object]


class Work(NamedTuple):
    """One call that is timed, and what it has to do at least."""

    axis: int  # the main axis
    call: Call
    flops: int = 0
    bytes: int = 0


class Series(NamedTuple):
    """One line of a panel."""

    op: str
    axis: str  # what the main axis is
    path: str
    sizes: tuple[int, ...]
    make: Callable[[int], Work]  # inputs lie on the device that is the default one
    fallback: str = ""  # the slug whose plain form is forced


def nbytes(*tensors: object) -> int:
    import torch

    flat = [t for one in tensors for t in (one if isinstance(one, tuple | list) else [one])]
    return sum(t.nbytes for t in flat if isinstance(t, torch.Tensor))


def flce(reduction: str, hidden: int, vocab: int) -> Callable[[int], Work]:
    """Forward and backward: three products."""
    import torch

    weight = torch.empty(0)

    def make(tokens: int) -> Work:
        nonlocal weight
        if weight.device != torch.get_default_device() or weight.numel() == 0:
            weight = (0.02 * torch.randn(vocab, hidden)).bfloat16().requires_grad_()
        x = torch.randn(tokens, hidden).bfloat16().requires_grad_()
        target = torch.randint(0, vocab, (tokens,))
        grad = torch.rand(tokens) if reduction == "none" else torch.ones(())

        def call() -> object:
            loss = torch.ops.patchbench.flce(x, weight, target, reduction=reduction)
            return torch.autograd.grad(loss, (x, weight), grad)

        return Work(tokens, call, flops=6 * tokens * hidden * vocab)

    return make


def index_mask(length: int) -> Work:
    import torch

    indices = torch.randint(0, length, (1, length, min(2048, length // 2)), dtype=torch.int32)
    return Work(length, lambda: torch.ops.patchbench.topk_to_index_mask(indices, length), bytes=nbytes(indices) + FP32_BYTES * length**2)


def sparse_mla(op: str, heads: int, keys: int, topk: int) -> Callable[[int], Work]:
    """Forward and backward at 576/512: seven products."""
    import torch

    ops, scale = torch.ops.patchbench, 0.05

    def make(queries: int) -> Work:
        q, kv = torch.randn(1, queries, heads, 576).bfloat16(), torch.randn(1, keys, 1, 576).bfloat16()
        grad = torch.randn(1, queries, heads, 512).bfloat16()
        indices = torch.randint(0, keys, (1, queries, 1, topk), dtype=torch.int32)
        flops = 2 * queries * heads * topk * (4 * 576 + 3 * 512)
        if op == "sparse_mla":

            def call() -> object:
                out, lse, rest = ops.sparse_mla_forward(q, kv, indices, softmax_scale=scale, head_dim_v=512)
                return ops.sparse_mla_backward(grad, out, rest, lse, q, kv, indices, softmax_scale=scale)
        else:
            operands = (*ops.quantize_mla(q, "token"), *ops.quantize_mla(kv, "token"), indices)

            def call() -> object:
                out, lse = ops.sparse_mla_fp8_forward(*operands, softmax_scale=scale)
                return ops.sparse_mla_fp8_backward(grad, out, lse, *operands, softmax_scale=scale)

        return Work(queries, call, flops=flops)

    return make


def siso(dtype: str, batch: int, heads: int) -> Callable[[int], Work]:
    import torch

    def make(seqlen: int) -> Work:
        kind = getattr(torch, dtype)
        q, k, v, grad = (torch.randn(batch, seqlen, heads, width).to(kind) for width in (128, 128, 64, 64))
        adt, qk_dot = -0.1 * torch.rand(batch, heads, seqlen), torch.randn(batch, heads, seqlen)
        states = torch.randn(batch, heads, seqlen // 64, 64, 128).to(kind)
        operands = (q, k, v, adt, qk_dot, torch.randn(heads), None, 64, grad, states)
        results = torch.ops.patchbench.mamba3_siso_bwd(*operands)
        return Work(seqlen, lambda: torch.ops.patchbench.mamba3_siso_bwd(*operands), bytes=nbytes(operands, results))

    return make


def siso_rotary(dtype: str, batch: int, heads: int, groups: int) -> Callable[[int], Work]:
    import torch

    def make(seqlen: int) -> Work:
        kind = getattr(torch, dtype)
        q, k = (torch.randn(batch, seqlen, groups, 128).to(kind) for _ in range(2))
        biases = torch.randn(heads, 128), torch.randn(heads, 128)
        angles, summed = (torch.randn(batch, seqlen, heads, 32).to(kind) for _ in range(2))
        dt, trap, grad_qk_dot = (torch.rand(batch, heads, seqlen) for _ in range(3))
        grads = (torch.randn(batch, seqlen, heads, 128).to(kind) for _ in range(2))
        operands = (q, k, *biases, angles, summed, dt, trap, *grads, grad_qk_dot)
        results = torch.ops.patchbench.mamba3_siso_rotary_bwd(*operands)
        return Work(seqlen, lambda: torch.ops.patchbench.mamba3_siso_rotary_bwd(*operands), bytes=nbytes(operands, results))

    return make


def mimo(dtype: str, heads: int, groups: int, dim_qk: int) -> Callable[[int], Work]:
    """Four ranks, head_dim_v 64."""
    import torch

    def make(seqlen: int) -> Work:
        def low(*shape: int) -> torch.Tensor:
            return torch.randn(1, *shape).to(getattr(torch, dtype))

        q, k = low(seqlen, 4, groups, dim_qk), low(seqlen, 4, groups, dim_qk)
        v, z, grad = (low(seqlen, heads, 64) for _ in range(3))
        adt, dt, trap = -0.5 * torch.rand(1, heads, seqlen) - 1e-4, 0.25 * torch.rand(1, heads, seqlen), low(heads, seqlen)
        weights = (torch.rand(heads, 4, width) for width in (dim_qk, dim_qk, 64, 64, 64))
        operands = (q, k, v, adt, dt, trap, *weights, 6.28 * torch.rand(1, seqlen, heads, dim_qk // 4), torch.rand(heads), z, None, grad)
        results = torch.ops.patchbench.mamba3_mimo_bwd(*operands)
        return Work(seqlen, lambda: torch.ops.patchbench.mamba3_mimo_bwd(*operands), bytes=nbytes(operands, results))

    return make


def group_reduce(heads: int) -> Callable[[int], Work]:
    import torch

    def make(seqlen: int) -> Work:
        dq, dk = (torch.randn(1, seqlen, 4, heads, 128).bfloat16() for _ in range(2))
        results = torch.ops.patchbench.group_reduce_bwd(dq, dk, 8)
        return Work(seqlen, lambda: torch.ops.patchbench.group_reduce_bwd(dq, dk, 8), bytes=nbytes(dq, dk, results))

    return make


def qk_dot(heads: int, copy: str) -> Callable[[int], Work]:
    """Forward and backward."""
    import torch

    ops = torch.ops.patchbench

    def make(seqlen: int) -> Work:
        q, k = (torch.randn(1, seqlen, 4, 8, 128).bfloat16() for _ in range(2))
        operands = (q, k, torch.randn(heads, 4, 128), torch.randn(heads, 4, 128))
        grad = torch.randn(1, heads, seqlen, 4, 4).bfloat16()
        made = ops.mamba3_mimo_qk_dot(*operands, copy=copy), ops.mamba3_mimo_qk_dot_bwd(grad, *operands, copy=copy)

        def call() -> object:
            ops.mamba3_mimo_qk_dot(*operands, copy=copy)
            return ops.mamba3_mimo_qk_dot_bwd(grad, *operands, copy=copy)

        return Work(seqlen, call, bytes=nbytes(operands, operands, grad, *made))

    return make


def doubled(first: int, count: int) -> tuple[int, ...]:
    return tuple(first << i for i in range(count))


Small = tuple[Callable, tuple[int, ...]]  # what makes a CPU's operands, and their sizes


def all_series() -> list[Series]:
    """Every op on every path; on a CPU at the sizes of its tests."""
    found = []

    def add(op: str, slug: str, axis: str, kernel: str, sizes: tuple[int, ...], make: Callable, small: Small) -> None:
        found.append(Series(op, axis, kernel, sizes, make))
        found.append(Series(op, axis, FALLBACK, sizes, make, slug))
        found.append(Series(op, axis, CPU, small[1], small[0]))

    for reduction in ("none", "mean"):
        small = flce(reduction, 256, 4096), doubled(64, 5)
        add(f"flce, {reduction}", "liger_flce_none_bwd", "tokens", PORTABLE, doubled(512, 6), flce(reduction, 4096, 128256), small)
    add("topk_to_index_mask", "dsa_graph_capture", "queries = keys", PORTABLE, doubled(1024, 5), index_mask, (index_mask, doubled(64, 6)))
    for op, slug in (("sparse_mla", "sparse_mla_dims"), ("sparse_mla_fp8", "fp8_storage_dispatch")):
        add(op, slug, "queries", KERNEL, doubled(256, 5), sparse_mla(op, 128, 8192, 2048), (sparse_mla(op, 4, 256, 64), doubled(8, 5)))
    add(
        "mamba3_siso_bwd",
        "mamba3_siso_bwd_cse",
        "seqlen",
        KERNEL,
        doubled(512, 5),
        siso("bfloat16", 2, 128),
        (siso("float32", 1, 2), doubled(64, 5)),
    )
    found.append(Series("mamba3_siso_bwd", "seqlen", PORTABLE, doubled(512, 5), siso("float16", 2, 128)))
    rotary = siso_rotary("bfloat16", 2, 128, 8), (siso_rotary("float32", 1, 2, 1), doubled(64, 5))
    add("mamba3_siso_rotary_bwd", "mamba3_siso_bwd_cse", "seqlen", PORTABLE, doubled(512, 5), *rotary)
    whole = mimo("bfloat16", 32, 8, 128), (mimo("float32", 2, 1, 16), doubled(16, 5))
    add("mamba3_mimo_bwd", "mamba3_mimo_gqa_bwd", "seqlen", PORTABLE, doubled(256, 5), *whole)
    add(
        "group_reduce_bwd",
        "mamba3_mimo_gqa_bwd",
        "seqlen",
        PORTABLE,
        doubled(512, 6),
        group_reduce(128),
        (group_reduce(16), doubled(16, 5)),
    )
    add(
        "mamba3_mimo_qk_dot",
        "mamba3_mimo_smem_2d",
        "seqlen",
        KERNEL,
        doubled(512, 6),
        qk_dot(128, "tma"),
        (qk_dot(16, "tma"), doubled(16, 5)),
    )
    found.append(Series("mamba3_mimo_qk_dot", "seqlen", PORTABLE, doubled(512, 6), qk_dot(128, "cp_async")))
    return found


def host_times(call: Call, repeats: int) -> list[float]:
    """Milliseconds on the CPU; the first call is a warm-up."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times[1:])


def points(series: Series) -> Iterator[dict[str, object]]:
    import torch
    from device_time import event_times

    device = "cpu" if series.path == CPU else "cuda"
    os.environ["PATCHBENCH_OP_FALLBACK"] = series.fallback
    with torch.device(device):
        for size in series.sizes:
            torch.manual_seed(9)
            try:
                work = series.make(size)
                once = host_times(lambda: (work.call(), torch.cuda.synchronize()), 1)[0]  # noqa: B023
            except torch.OutOfMemoryError:
                return
            repeats = max(3, min(20, int(BUDGET_MS / once)))
            times = host_times(work.call, repeats) if device == "cpu" else event_times(work.call, repeats)
            ms = [float(f"{t:.4g}") for t in (statistics.median(times), times[0], times[-1])]
            yield {"size": size, "ms": ms, "repeats": repeats, **({"flops": work.flops} if work.flops else {"bytes": work.bytes})}
            if once > MOST_MS:
                return
    torch.cuda.empty_cache()


def rates() -> dict[str, float]:
    """FLOP/s of a large product and bytes/s of a large copy, read and written."""
    import torch
    from device_time import event_times

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source, to = (torch.empty(1 << 30, device="cuda", dtype=torch.uint8) for _ in range(2))
    product, copy = (statistics.median(event_times(call, 20)) for call in (lambda: a @ b, lambda: to.copy_(source)))
    return {"flops": 2 * 8192**3 / product * 1e3, "bytes": 2 * source.nbytes / copy * 1e3}


def measure() -> dict[str, object]:
    import torch
    from device_time import load_ops

    load_ops()
    report: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cpu_threads": torch.get_num_threads()}
    on_gpu = "on the GPU 256 MiB written between calls, the host ahead of the device, CUDA events"
    report["how"] = f"one process, warm; {on_gpu}; [median, least, greatest] ms"
    report["rates"] = rates()
    rows = []
    for series in all_series():
        rows.append({"op": series.op, "axis": series.axis, "path": series.path, "points": list(points(series))})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return report | {"series": rows}


def once(op: str, size: int) -> None:
    """One call of an op's first path between the marks of a profiler, after one before them."""
    import torch
    from device_time import load_ops

    load_ops()
    with torch.device("cuda"):
        call = next(series for series in all_series() if series.op == op).make(size).call
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def decades(values: list[float]) -> tuple[Point, list[tuple[float, str]]]:
    """Whole decades around the values, in logarithms, and their ticks."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    return (low, high), [(float(e), f"1e{e}") for e in range(low, high + 1)]


def panel(rows: list[dict], rates: dict[str, float]) -> Panel:
    unit = "flops" if "flops" in rows[0]["points"][0] else "bytes"
    lines = []
    for row in rows:
        places = [(math.log10(p[unit]), math.log10(p["ms"][0])) for p in row["points"]]
        lines.append((COLOURS[row["path"]], row["path"], places))
    work = [p[unit] for row in rows for p in row["points"]]
    times = [p["ms"][0] for row in rows for p in row["points"]]
    (left, right), ticks_x = decades(work)
    (low, high), ticks_y = decades(times)
    rate = math.log10(rates[unit] / 1e3)  # a millisecond
    lines.append((FLOOR, "floor", [(x, x - rate) for x in (max(left, low + rate), min(right, high + rate))]))
    op = rows[0]["op"]
    title = f"{op}, by {rows[0]['axis']}" + (f" ({NOT_TIMED[op]} not timed)" if op in NOT_TIMED else "")
    names = ("FLOPs of the products" if unit == "flops" else "bytes of operands and results", "ms")
    marks = {COLOURS[path]: mark for path, mark in MARKS.items()}
    return Panel(title, (left, right), (low, high), ticks_x, ticks_y, lines, names, marks)


def drawn(report: dict) -> str:
    ops = list(dict.fromkeys(row["op"] for row in report["series"]))
    panels = [panel([row for row in report["series"] if row["op"] == op and row["points"]], report["rates"]) for op in ops]
    return drawing(panels, [(COLOURS[path], path) for path in COLOURS] + [(FLOOR, "floor")], columns=4)


def main(words: list[str]) -> int:
    if words[:1] == ["--once"] and len(words) == 3 and words[2].isdigit():
        ops = {series.op for series in all_series()}
        if words[1] not in ops:
            print(f"scaling.py: no op {words[1]!r}; one of: {'; '.join(sorted(ops))}", file=sys.stderr)
            return 2
        once(words[1], int(words[2]))
        return 0
    if len(words) > 1 or words[:1] == ["--help"]:
        print(__doc__, file=sys.stderr)
        return 2
    print(drawn(json.loads(Path(words[0]).read_text())) if words else json.dumps(measure()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
