"""Times the installed Liger-Kernel at a shape and prints bench.cpp's rows: {"rows": [...]}, a file that bench.cpp can read.

    PYTHONPATH=repro/bench python3 bench_liger.py [--shape 8192,4096,128256] [--repeats 20]

Rows: its fused linear cross entropy in Triton, "none" and "mean", and its per-token scaled one where the release has it: on a
GPU of compute capability 9.0 in CuTe DSL, where nvidia-cutlass-dsl is installed, else the form in torch that it ships beside.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType

import torch
from bench_main import Bench, Shape, bench_main
from device_time import event_times, peak_bytes


def inputs(tokens: int, hidden: int, vocab: int, seed: int = 9) -> dict[str, torch.Tensor]:
    """bf16 leaves, int64 targets of which a tenth is ignored, a per-token gradient with zeros; made as in bench.cpp."""
    torch.manual_seed(seed)
    kind = {"dtype": torch.bfloat16, "device": "cuda"}
    made = {
        "_input": torch.randn(tokens, hidden, **kind).requires_grad_(),
        "weight": torch.randn(vocab, hidden, **kind).mul_(0.02).requires_grad_(),
        "target": torch.randint(0, vocab, (tokens,), device="cuda"),
    }
    made["target"].masked_fill_(torch.rand(tokens, device="cuda") < 0.1, -100)
    weights = torch.rand(tokens, device="cuda")
    made["grad_output"] = weights.masked_fill(weights < 0.2, 0.0)
    return made


def loss_of(function: type, t: dict[str, torch.Tensor], reduction: str) -> torch.Tensor:
    """The forward of the release's autograd Function."""
    parameters = list(inspect.signature(function.forward).parameters.values())[1:]
    result = function.apply(*({**t, "reduction": reduction}.get(p.name, p.default) for p in parameters))
    return result[0] if isinstance(result, tuple) else result


def step_of(function: type, t: dict[str, torch.Tensor], reduction: str) -> Callable[[], None]:
    """One forward and backward of the release's autograd Function."""

    def step() -> None:
        loss = loss_of(function, t, reduction)
        grad = t["grad_output"].to(loss.dtype) if loss.dim() else torch.ones_like(loss)
        torch.autograd.grad(loss, (t["_input"], t["weight"]), grad)

    return step


def scaled_step(module: ModuleType, t: dict[str, torch.Tensor]) -> tuple[str, Callable[[], None]]:
    """The same with the release's per-token scaled cross entropy; the form that runs here, and one step of it."""
    operands = (t["_input"], t["weight"], t["target"])
    form, apply = "CuTe DSL", module.LigerFusedLinearScaledCrossEntropyFunction.apply
    try:
        apply(*operands)
    except ImportError as missing:
        print(f"bench_liger.py: scaled cross entropy without CuTe DSL: {missing}", file=sys.stderr)
        fallback = module._FusedLinearPPOFallbackFunction
        form, apply = "torch", lambda *tensors: fallback.apply(*tensors, 1.0, -100, False)

    def step() -> None:
        result = apply(*operands)
        loss = result[0] if isinstance(result, tuple) else result
        torch.autograd.grad(loss, operands[:2], t["grad_output"].to(loss.dtype))

    return form, step


def row_of(name: str, reduction: str, step: Callable[[], None], repeats: int) -> dict[str, object]:
    """Allocator peak above what was held, then the median and the 10th and 90th percentile of CUDA-event times."""
    step()
    peak = peak_bytes(step)
    times = event_times(step, repeats)
    low, median, high = (times[int(share * (repeats - 1) + 0.5)] for share in (0.1, 0.5, 0.9))
    return {"name": name, "reduction": reduction, "median_ms": median, "low_ms": low, "high_ms": high, "peak_bytes": peak}


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    t = inputs(*shape)
    name = f"liger-kernel {importlib.metadata.version('liger-kernel')}"
    rows = [row_of(name, r, step_of(LigerFusedLinearCrossEntropyFunction, t, r), options.repeats) for r in ("none", "mean")]
    try:
        from liger_kernel.ops import fused_linear_scaled_cross_entropy as scaled
    except ImportError:
        return rows
    form, step = scaled_step(scaled, t)
    return [*rows, row_of(f"{name}, scaled cross entropy in {form}", "none", step, options.repeats)]


HOW = "one process, warm, 256 MiB written between calls, CUDA events; low, high: 10th and 90th percentile"
SHAPES = [[8192, 4096, 128256]]
BENCH = Bench("liger-kernel", rows_of, SHAPES, "tokens, hidden, vocab", repeats=20, about=lambda: {"how": HOW}, needs_ops=False)


if __name__ == "__main__":
    bench_main(BENCH)
