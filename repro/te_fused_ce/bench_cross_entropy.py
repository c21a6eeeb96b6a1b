"""Times the cross entropies of patchbench_ops, TransformerEngine, liger-kernel and torch, forward and backward, in turn.

    PYTHONPATH=repro/harness:repro/bench:RELEASES PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_cross_entropy.py

RELEASES are unpacked wheels of the peers; what is not there, or refuses, is named with its reason. A tenth of the labels is
ignored; "none" has a gradient for each token, a fifth of them 0. liger-kernel and TransformerEngine write the gradient over the
logits, as `overwrites_logits` does. The floor is the logits' bytes three times (read, read again, gradient written) at the rate of a
large copy in the same run. Errors are against float64 on 64 rows that are drawn and the row of the largest gradient.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable

import torch
from bench_main import Bench, Shape, bench_main, versions
from device_time import in_turn, peak_bytes
from torch.nn.functional import cross_entropy

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SAMPLES, IGNORED = 64, -100


def patchbench(reduction: str, **words: bool) -> Loss:
    apply = importlib.import_module("patchbench_ops").cross_entropy
    return lambda logits, labels: apply(logits[None], labels[None], reduction=reduction, **words)


def plain(reduction: str) -> Loss:
    return lambda logits, labels: cross_entropy(logits, labels, reduction=reduction)


def compiled(reduction: str) -> Loss:
    return torch.compile(plain(reduction))


def liger(reduction: str) -> Loss:
    apply = importlib.import_module("liger_kernel.ops.cross_entropy").LigerCrossEntropyFunction.apply
    return lambda logits, labels: apply(logits, labels, None, IGNORED, 0.0, 0.0, reduction)[0]


def transformer_engine(reduction: str) -> Loss:
    importlib.import_module("stand_in").install()
    apply = importlib.import_module("transformer_engine.pytorch.cross_entropy").parallel_cross_entropy
    return lambda logits, labels: apply(logits[None], labels[None], 0.0, reduction == "mean", None, IGNORED)


PEERS: list[tuple[str, Callable[[str], Loss]]] = [
    ("patchbench_ops", patchbench),
    ("patchbench_ops, over the logits", lambda reduction: patchbench(reduction, overwrites_logits=True)),
    ("TransformerEngine", transformer_engine),
    ("liger-kernel", liger),
    ("torch", plain),
    ("torch.compile", compiled),
]


def step(loss: Loss, logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the gradient of the logits."""
    given = logits.detach().requires_grad_()
    made = loss(given, labels)
    weight = grad.to(made.dtype).reshape(made.shape) if made.numel() > 1 else torch.ones_like(made)
    return made, torch.autograd.grad(made, given, weight)[0]


def errors(loss: Loss, reduction: str, logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> list[float]:
    """Of the gradient: of the sampled rows together, and of the worst of them over their mean norm."""
    valid = labels != IGNORED
    scale = grad.double() if reduction == "none" else torch.ones_like(grad, dtype=torch.float64) / valid.sum()
    pick = torch.Generator(logits.device).manual_seed(1)
    rows = torch.randperm(len(logits), generator=pick, device=logits.device)[:SAMPLES]
    rows = torch.cat((rows, (scale.abs() * valid).argmax()[None]))
    want = logits[rows].double().softmax(1)
    want[torch.arange(len(rows), device=logits.device), labels[rows].clamp_min(0)] -= 1
    want *= (scale * valid)[rows, None]
    got = step(loss, logits.clone(), labels, grad)[1].reshape(logits.shape)[rows].double()
    difference, norms = (got - want).norm(dim=1), want.norm(dim=1)
    return [float(f"{n.item():.3e}") for n in (difference.norm() / norms.norm(), difference.max() / norms.square().mean().sqrt())]


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    tokens, vocab, dtype = shape
    torch.manual_seed(3)
    logits = torch.randn(tokens, vocab, device="cuda", dtype=getattr(torch, dtype)) * 3
    labels = torch.randint(0, vocab, (tokens,), device="cuda")
    labels[torch.rand(tokens, device="cuda") < 0.1] = IGNORED
    grad = torch.randn(tokens, device="cuda") * (torch.rand(tokens, device="cuda") > 0.2)
    spare, rows, not_run = torch.empty_like(logits), [], {}
    for reduction in ("mean", "none"):
        calls, found = {}, {}
        for name, load in PEERS:
            try:
                loss = load(reduction)
                found[name] = {"error": errors(loss, reduction, logits, labels, grad)}
                found[name]["peak_bytes"] = peak_bytes(lambda loss=loss: step(loss, spare, labels, grad))
                calls[name] = lambda _, loss=loss: step(loss, spare, labels, grad)
            except Exception as failure:  # imports, compilers and launches fail in many ways
                not_run[f"{name}, {reduction}"] = f"{type(failure).__name__}: {str(failure).strip()[:300]}"
        calls["copy"] = lambda _: spare.copy_(logits)
        times = in_turn(calls, options.repeats)
        floor = 1.5 * times.pop("copy")[0]  # a copy moves the bytes twice
        theirs = {name: ms[0] for name, ms in times.items() if not name.startswith("patchbench") and found[name]["error"][0] < 0.05}
        best = min(theirs, key=theirs.__getitem__, default="")
        for name, ms in times.items():
            row = {"shape": shape, "reduction": reduction, "name": name, "ms": ms} | found[name]
            row |= {"floor_ms": round(floor, 4), "of_floor": round(ms[0] / floor, 3)}
            if name.startswith("patchbench") and best:
                row["of_best_peer"] = {"peer": best, "ratio": round(ms[0] / theirs[best], 3)}
            rows.append(row)
    return rows + ([{"shape": shape, "not_run": not_run}] if not_run else [])


def about() -> dict[str, object]:
    how = "one process, in turn, the copy before each round restores the logits, 256 MiB written between calls, CUDA events"
    return {"how": how, "versions": versions("transformer-engine", "liger-kernel", "triton", "torch")}


SHAPES: list[Shape] = [
    [8192, 128256, "bfloat16"],
    [8192, 128256, "float32"],
    [8192, 32000, "bfloat16"],
    [16384, 50257, "bfloat16"],
    [2048, 262144, "bfloat16"],
    [32768, 4096, "bfloat16"],
]

BENCH = Bench("patchbench_ops.cross_entropy beside its peers", rows_of, SHAPES, "tokens, vocab, dtype", repeats=20, about=about)

if __name__ == "__main__":
    bench_main(BENCH)
