"""Times patchbench::mamba3_mimo_bwd on the kernel path, in turn with mamba-ssm's own backward and a copy of the bytes that must move.

    PYTHONPATH=MAMBA_SSM:TILELANG:repro/harness:repro/bench PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_mimo_bwd.py

The floor is the inputs once and the gradients once. The op's own scratch is named beside it: per-head gradients of q and k and the
chunks' states, each written once and read once, the states twice. Of mamba-ssm the host function with its TileLang kernels is
timed, in chunks of 64 / ranks tokens; the sums of adt, which it is given, are not in the time. Where it does not run, the row says why.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace

import torch
from bench_main import Bench, Shape, bench_main, best_peer, difference, versions
from device_time import in_turn

Inputs = tuple[torch.Tensor | None, ...]


def inputs_of(batch: int, seqlen: int, ranks: int, heads: int, groups: int, dim_qk: int, dim_v: int, num_angles: int) -> Inputs:
    """Of the layer's sizes, in the op's order; grad_out last."""

    def low(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def wide(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.rand(shape, device="cuda") * scale

    steps, projection = (batch, heads, seqlen), (heads, ranks, dim_v)
    tokens = (batch, seqlen, heads, dim_v)
    return (
        low(batch, seqlen, ranks, groups, dim_qk), low(batch, seqlen, ranks, groups, dim_qk), low(*tokens),
        -wide(*steps, scale=0.5) - 1e-4, wide(*steps, scale=0.25), low(*steps),
        wide(heads, ranks, dim_qk), wide(heads, ranks, dim_qk), wide(*projection), wide(*projection), wide(*projection),
        wide(batch, seqlen, heads, num_angles, scale=6.28), wide(heads), low(*tokens), None, low(*tokens),
    )  # fmt: skip


def release(given: list, packed: int) -> Callable[[], dict[str, torch.Tensor | None]]:
    """The backward of the mamba-ssm on PYTHONPATH on the same tensors: its gradients by name, in the op's order. Raises where it is not
    there or cannot take them."""
    import subject
    import tilelang  # noqa: F401 (without it the subject puts computations of ours in the kernels' place)

    axes: dict[str, object] = {"chunk": 64 // given[0].shape[2]}
    if packed:
        bounds = given[14].tolist()
        axes["seqlens"] = [end - begin for begin, end in itertools.pairwise(bounds)]
    names = (*subject.GRADIENTS, "cu_seqlens", "grad_out")
    case = SimpleNamespace(tensors=dict(zip(names, given, strict=True)), axes=axes)
    words = subject.words_of(case)
    return lambda: dict(zip(subject.GRADIENTS, subject.host_of(case)(**words), strict=False))


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    batch, seqlen, ranks, heads, groups, dim_qk, dim_v, packed = shape
    given = list(inputs_of(batch, seqlen, ranks, heads, groups, dim_qk, dim_v, dim_qk // 4))
    if packed:
        given[14] = torch.linspace(0, seqlen, packed + 1, device="cuda").to(torch.int32)
    ours = torch.ops.patchbench.mamba3_mimo_bwd
    first = ours(*given)
    assert torch.ops.patchbench.mamba3_mimo_bwd_path(given[0], given[2], given[11], given[14]) == "cuda"
    assert all(torch.equal(a, b) for a, b in zip(first, ours(*given), strict=True))
    moved = sum(t.nbytes for t in given if t is not None) + sum(t.nbytes for t in first)
    tokens, chunk = batch * seqlen, 64 // ranks
    scratch = 2 * 2 * tokens * ranks * heads * dim_qk * 2 + 2 * 4 * tokens // chunk * heads * dim_qk * dim_v * 2
    half = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(half)
    row: dict[str, object] = {"shape": shape, "floor_bytes": moved, "scratch_bytes_moved": scratch}
    calls: dict[str, Callable] = {"ours": lambda _: ours(*given), "copy of the floor": lambda _: other.copy_(half)}
    try:
        theirs = release(given, packed)
        row["difference"] = {name: difference(a, b) for (name, a), b in zip(theirs().items(), first, strict=True) if a is not None}
        calls["mamba-ssm"] = lambda _: theirs()
    except Exception as why:  # a compiler fails in many ways
        row["mamba-ssm not run"] = f"{type(why).__name__}: {(str(why).strip().splitlines() or [''])[-1][:200]}"
    row |= in_turn(calls, options.repeats)
    if "mamba-ssm" in calls:
        row["of_best_peer"] = best_peer(row["ours"][0], {"mamba-ssm": row["mamba-ssm"][0]})
    return [row]


SHAPES = [[1, 2048, 4, 32, groups, 128, 64, 0] for groups in (1, 8, 32)]
SHAPES += [[1, 2048, ranks, 32, 8, 128, 64, 0] for ranks in (1, 2, 8)]
SHAPES += [[1, 4096, 4, 128, 8, 128, 64, 0], [4, 2048, 4, 32, 8, 128, 64, 0], [1, 2048, 4, 32, 8, 64, 64, 0]]
SHAPES += [[1, 2048, 4, 32, 8, 128, 128, 0], [1, 2048, 4, 32, 8, 128, 64, 8]]
AXES = "batch, seqlen, ranks, heads, groups, head_dim_qk, head_dim_v, packed sequences (0: none)"
ABOUT = {"order": "all in turn", "versions": versions("mamba-ssm", "tilelang", "triton", "torch")}
BENCH = Bench("patchbench::mamba3_mimo_bwd", rows_of, SHAPES, AXES, about=lambda: ABOUT)

if __name__ == "__main__":
    bench_main(BENCH)
