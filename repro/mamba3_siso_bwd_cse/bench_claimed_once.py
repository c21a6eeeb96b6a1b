"""Times the release's dQ/dK/dV call and the same with the edit claimed:once, in turn, in one process.

    patchbench patch new mamba3_siso_bwd_cse DIR
    PYTHONPATH=MAMBA_SSM:repro/harness:repro/bench MAMBA3_SISO_BWD_EDITED=DIR/…/mamba3_siso_bwd.py python3 bench_claimed_once.py

bfloat16, with D, no state at either end. `sigma_percent` is the standard deviation of a call's own times over their mean; "release
again" is the release a second time, so that a difference between equal code shows. The edit changes nothing where the two differ
by no more than the release from itself.
"""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType

import stand_in
import torch
from bench_main import Bench, Shape, bench_main, versions
from device_time import summary, turns

CHUNK = 64


def edited() -> ModuleType:
    """The edited file as a module of its own next to the release's, its kernel's launch fixed, too."""
    spec = importlib.util.spec_from_file_location(stand_in.MODULE + "_edited", os.environ["MAMBA3_SISO_BWD_EDITED"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stand_in.fix_launch(getattr(module, stand_in.KERNEL))
    return module


def words_of(shape: Shape) -> dict[str, object]:
    """The host function's arguments: unit normals, decays below one."""
    batch, seqlen, heads, width, values = shape
    torch.manual_seed(9)

    def bf16(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device="cuda").bfloat16()

    steps = -0.5 * math.log2(math.e) * torch.rand(batch, heads, seqlen // CHUNK, CHUNK, device="cuda")
    return {
        "q": bf16(batch, seqlen, heads, width), "k": bf16(batch, seqlen, heads, width), "v": bf16(batch, seqlen, heads, values),
        "do": bf16(batch, seqlen, heads, values), "da_cs": steps.cumsum(-1).flatten(2), "da_cs_sum": steps.sum(-1),
        "qk_dot": torch.randn(batch, heads, seqlen, device="cuda"),
        "SSM_States": bf16(batch, heads, values, seqlen // CHUNK * width), "d_ossm_state": None,
        "D": torch.randn(heads, device="cuda"), "Cu_Seqlens": None, "chunk_size": CHUNK, "has_input_state": False,
    }  # fmt: skip


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    stand_in.install()
    release, changed, words = stand_in.module(), edited(), words_of(shape)
    if release is None:
        raise RuntimeError("this release has no SISO backward")

    def call(module: ModuleType) -> Callable[[int], object]:
        return lambda _: module.compute_dqkv(**words)

    pairs = zip(call(release)(0), call(changed)(0), strict=True)
    is_equal = all(a is b is None or torch.equal(a, b) for a, b in pairs)
    times = turns({"release": call(release), "edited": call(changed), "release again": call(release)}, options.repeats)
    sigma = {name: round(100 * statistics.stdev(some) / statistics.mean(some), 2) for name, some in times.items()}
    row = {"shape": shape, **{name: summary(some) for name, some in times.items()}}
    return [row | {"sigma_percent": sigma, "bitwise equal": is_equal}]


# The last three are those that the change was proposed with.
SHAPES = [[2, 8192, 128, 128, 64], [4, 4096, 64, 128, 64], [1, 4096, 32, 128, 64],
          [1, 4096, 24, 64, 128], [1, 2048, 32, 128, 128], [2, 256, 8, 64, 64]]  # fmt: skip
BENCH = Bench(
    "claimed:once", rows_of, SHAPES, "batch, seqlen, heads, head_dim_qk, head_dim_v", repeats=100, needs_ops=False,
    about=lambda: {"order": "all in turn"} | versions("triton", "torch"),
)  # fmt: skip

if __name__ == "__main__":
    bench_main(BENCH)
