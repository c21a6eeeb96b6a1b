"""Times patchbench::sparse_mla and what else computes it here: megatron-core, TileLang's example, cudnn-frontend, FlashMLA.

    PYTHONPATH=repro/bench PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_sparse_mla.py [--shape ...] [--repeats 20]

Peers are imported from PYTHONPATH; of those that are not there the output says why. bfloat16; indices distinct within a query; two
sets of operands in turn. Sets of indices: "uniform" over all keys, queries at the end of the keys; "local", from the 4096 keys
before the query; "causal", queries and keys the same positions, uniform up to the query; "layout", uniform, also in Megatron's
[seqlen, batch, num_heads, head_dim]. FLOPs counted are those of the products over the keys named (forward 2, backward 5), bytes
those of operands and results once; the floor is the greater of both over RATES. Errors are against float64 on the device, on the
first set of operands: [of the whole, of the worst row]. "step" is autograd: megatron-core runs its forward again in there. A forward
and a backward of others, one after the other, are compared with a step, too: "step of parts". Of a causal set FlashMLA and
cudnn-frontend are given the number of each query's keys (topk_length); zeros stand for heads and columns that they have no kernels
without. "hot_ms" is of calls that follow one another without a rest.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from argparse import Namespace

import torch
from bench_main import Bench, Shape, bench_main, best_peer, versions
from device_time import hot, in_turn
from oracle import attention, error
from peers import Call, Calls, CannotTake, Operands, in_layout_of_megatron, peers

SHAPES = [
    [1, 1024, 8192, 128, 2048, 576, 512, "uniform"],
    [1, 4096, 4096, 128, 2048, 576, 512, "causal"],
    [1, 1024, 8192, 128, 2048, 512, 512, "uniform"],
    [1, 1024, 8192, 64, 2048, 320, 256, "uniform"],
    [1, 1024, 8192, 64, 2048, 192, 128, "uniform"],
    [1, 1024, 8192, 16, 2048, 128, 64, "uniform"],
    [2, 1024, 8192, 128, 2048, 576, 512, "layout"],
    [1, 1024, 8192, 128, 2048, 576, 512, "local"],
    *([1, 1024, keys, 128, 2048, 576, 512, kind] for keys in (16384, 32768, 65536) for kind in ("uniform", "local")),
]
PACKAGES = ("megatron-core", "tilelang", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "flash_mla", "apache-tvm-ffi", "torch")
SCALE = 0.05
WINDOW = 4096
WRONG = 0.02  # a peer that is this far off is not compared with
PAIR = " + "  # between the names of a forward and of a backward that run as one call
RATES = {"flops": 790e12, "bytes": 4.3e12}  # a second, of products and copies on an H200
NAMES = {"forward": ("out",), "backward": ("grad_q", "grad_kv"), "step": ("out", "grad_q", "grad_kv")}


def named_keys(shape: tuple[int, int, int, int], kind: str, device: str = "cuda") -> torch.Tensor:
    """[batch, queries, 1, topk] int32 for a (batch, queries, keys, topk), distinct within a query, -1 at its end where keys lack."""
    batch, queries, keys, topk = shape
    number, position = (torch.arange(n, device=device) for n in (keys, queries))
    last = position + (keys - queries) + 1
    first = (last - WINDOW).clamp_min(0) if kind == "local" else torch.zeros_like(last)
    last = last if kind in ("local", "causal") else torch.full_like(last, keys)
    found = []
    for rows in position.split(256):
        is_key = (number >= first[rows, None]) & (number < last[rows, None])
        draw = torch.rand(batch, len(rows), keys, device=device).masked_fill(~is_key, -1.0)
        best, named = draw.topk(topk, dim=-1)
        found.append(named.masked_fill(best < 0, -1))
    return torch.cat(found, 1).unsqueeze(2).to(torch.int32).contiguous()


def operands(batch: int, queries: int, keys: int, heads: int, topk: int, width: int, values: int, kind: str) -> Operands:
    """Normal operands, and what patchbench's forward makes of them."""
    normal = {"dtype": torch.bfloat16, "device": "cuda"}
    q, kv = torch.randn(batch, queries, heads, width, **normal), torch.randn(batch, keys, 1, width, **normal)
    grad = torch.randn(batch, queries, heads, values, **normal)
    made = Operands(q, kv, named_keys((batch, queries, keys, topk), kind), grad, SCALE, kind == "causal")
    made.out, made.lse, made.rest = torch.ops.patchbench.sparse_mla_forward(q, kv, made.indices, softmax_scale=SCALE, head_dim_v=values)
    return made


def floor_of(o: Operands) -> dict[str, dict[str, float]]:
    """FLOPs and bytes of a step, and the least time for them."""
    pair = 2 * o.q.shape[2] * int((o.indices >= 0).sum())
    width, values = o.widths
    flops = {"forward": pair * (width + values), "backward": pair * (3 * width + 2 * values)}
    read = [o.q, o.kv, o.indices]
    moved = {"forward": [*read, o.out, o.lse], "backward": [*read, o.q, o.kv, o.grad_out, o.out, o.lse]}
    found = {s: {"flops": flops[s], "bytes": sum(t.nbytes for t in moved[s])} for s in flops}
    found["step"] = {unit: found["forward"][unit] + found["backward"][unit] for unit in RATES}
    for cost in found.values():
        cost["least_ms"] = round(1e3 * max(cost[unit] / rate for unit, rate in RATES.items()), 4)
    return found


@functools.cache
def everyone() -> tuple[dict[str, Calls], dict[str, str]]:
    """The calls of each implementation that is here, and why the others are not."""
    return peers()


def tried(found: dict[str, Calls], sets: list[Operands], row: dict) -> dict[str, Calls]:
    """The calls that work on these operands, with their errors; why the others do not goes to the row."""
    want = attention(sets[0].q, sets[0].kv, sets[0].indices, sets[0].grad_out, SCALE)
    works: dict[str, Calls] = {}
    for name, calls in found.items():
        for step, call in calls.items():
            try:
                got = call(sets[0])
                errors = {of: error(tensor, want[of]) for of, tensor in zip(NAMES[step], got, strict=False)}
            except CannotTake as why:
                row["not_run"][f"{name} {step}"] = str(why)
                continue
            except Exception as failure:  # compilers and launches fail in many ways
                row["not_run"][f"{name} {step}"] = f"{type(failure).__name__}: {str(failure).strip()[:300]}"
                print(f"bench_sparse_mla.py: {name} {step}: {failure}"[:2000], file=sys.stderr)
                continue
            row[f"{name} {step}"] = {"error": errors}
            works.setdefault(name, {})[step] = call
    return works


def worst_of(errors: dict[str, list]) -> float:
    """The greatest of a call's errors as a whole; infinite where one is not a number."""
    return max(math.inf if isinstance(whole, str) else whole for whole, *_ in errors.values())


def compared(row: dict, times: dict[str, list[float]], hot_times: dict[str, float]) -> None:
    """The times and the FLOP rates; patchbench's time over the time of the best right peer, cold and hot, and over the floor."""
    for name, spread in times.items():
        rate = round(row["floor"][step_of(name)]["flops"] / spread[0] / 1e9, 1)
        row[name] |= {"ms": spread, "hot_ms": hot_times[name], "TFLOP/s": rate}
    for step in NAMES:
        if f"patchbench {step}" in times:
            row["of_floor"][step] = round(times[f"patchbench {step}"][0] / row["floor"][step]["least_ms"], 2)
    cold = {name: ms for name, (ms, *_) in times.items()}
    row["of_best_peer"], row["of_best_peer_hot"] = of_best(row, cold), of_best(row, hot_times)


def of_best(row: dict, times: dict[str, float]) -> dict[str, dict[str, object]]:
    """Of each step of patchbench: its time over that of the best peer that is right, alone and as a forward and a backward of two."""
    others = {name: ms for name, ms in times.items() if not name.startswith("patchbench") and worst_of(row[name]["error"]) < WRONG}
    found = {}
    for step in NAMES:
        theirs = {name: ms for name, ms in others.items() if step_of(name) == step}
        for what, is_pair in ((step, False), (f"{step} of parts", True)):
            some = {name: ms for name, ms in theirs.items() if (PAIR in name) == is_pair}
            if some and f"patchbench {step}" in times:
                found[what] = best_peer(times[f"patchbench {step}"], some)
    return found


def step_of(name: str) -> str:
    """What a call computes, from its name: a forward and a backward in one call are a step."""
    return "step" if PAIR in name else name.split()[-1]


def with_pairs(works: dict[str, Calls], row: dict) -> dict[str, Call]:
    """All calls by their names, and each forward with each backward of the others as one call, which has the errors of both."""
    calls = {f"{name} {step}": call for name, steps in works.items() for step, call in steps.items()}
    others = {name: call for name, call in calls.items() if not name.startswith("patchbench")}
    for forward, backward in itertools.product(others, others):
        if (step_of(forward), step_of(backward)) == ("forward", "backward"):
            both = others[forward], others[backward]
            calls[forward + PAIR + backward] = lambda o, both=both: (*both[0](o), *both[1](o))
            row[forward + PAIR + backward] = {"error": row[forward]["error"] | row[backward]["error"]}
    return calls


def timed(calls: dict[str, Call], sets: list[Operands], repeats: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """[median, least, greatest] ms of each, in turn, and ms of each without a rest; the sets alternate."""
    turned = {name: lambda i, call=call: call(sets[i % len(sets)]) for name, call in calls.items()}
    return in_turn(turned, repeats), hot(turned)


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    *sizes, kind = shape
    found, _ = everyone()
    found = {name: calls for name, calls in found.items() if name in ("patchbench", *(options.peer or found))}
    torch.manual_seed(9)
    sets = [operands(*sizes, kind) for _ in range(2)]
    path = torch.ops.patchbench.sparse_mla_path(sets[0].q, sets[0].head_dim_v, "bf16")
    row: dict[str, object] = {"shape": shape, "path": path, "floor": floor_of(sets[0])}
    row |= {key: {} for key in ("of_floor", "not_run")}
    if kind == "layout" and "megatron-core" in found:
        found |= in_layout_of_megatron()
    compared(row, *timed(with_pairs(tried(found, sets, row), row), sets, options.repeats))
    return [row]


def about() -> dict[str, object]:
    order = "all in turn, two sets of operands alternating"
    return {"order": order, "rates": RATES, "versions": versions(*PACKAGES), "absent": everyone()[1]}


AXES = "batch, queries, keys, heads, topk, head_dim_qk, head_dim_v, set of indices"
FILTERS = {"--peer": "only these beside patchbench"}
BENCH = Bench("patchbench::sparse_mla", rows_of, SHAPES, AXES, repeats=20, filters=FILTERS, about=about)

if __name__ == "__main__":
    bench_main(BENCH)
