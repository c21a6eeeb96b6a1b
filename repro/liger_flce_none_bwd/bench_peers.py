"""Times patchbench::flce and what else computes a fused linear cross entropy here: liger-kernel, quack, Cut Cross-Entropy, torch.

    PYTHONPATH=repro/bench PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_peers.py [--shape 8192,4096,128256] [--repeats 20]

Forward and backward, bfloat16, two sets of operands in turn, a tenth of the targets ignored; "none" with a gradient for each token,
a fifth of them 0, and "mean". Peers are imported from PYTHONPATH; of those that are not there, or refuse, the output says why.
The CuTe DSL kernels (liger-kernel's for sm_90 and quack's) need nvidia-cutlass-dsl and a GPU of compute capability 9.0. Errors are
against float64 on the device, on the first set: [of the whole, of the worst row] of 64 tokens' grad_hidden and 64 classes'
grad_weight. The floor is the time of three matrix products, as cuBLAS runs one here: who keeps the logits needs no fourth for "none".
"hot_ms" is of calls that follow one another without a rest.
"""

from __future__ import annotations

import importlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable

import torch
from bench_liger import inputs, loss_of
from bench_main import Bench, Shape, bench_main, best_peer, versions
from device_time import hot, in_turn, peak_bytes
from torch.nn.functional import cross_entropy, linear

Given = dict[str, torch.Tensor]
Loss = Callable[[Given], torch.Tensor]
PACKAGES = ("liger-kernel", "quack-kernels", "cut-cross-entropy", "nvidia-cutlass-dsl", "apache-tvm-ffi", "triton", "torch")
SAMPLES = 64
WRONG = 0.05  # a peer that is this far off is not compared with


def patchbench(reduction: str, keep_bytes: int = 0) -> Loss:
    return lambda t: torch.ops.patchbench.flce(t["_input"], t["weight"], t["target"], reduction=reduction, keep_bytes=keep_bytes)


def plain(reduction: str) -> Loss:
    return lambda t: cross_entropy(linear(t["_input"], t["weight"]), t["target"], reduction=reduction)


def compiled(reduction: str) -> Loss:
    """The plain form through torch.compile."""
    loss = torch.compile(lambda hidden, weight, target: cross_entropy(linear(hidden, weight), target, reduction=reduction))
    return lambda t: loss(t["_input"], t["weight"], t["target"])


def cut(reduction: str, **words: object) -> Loss:
    """Cut Cross-Entropy, whose backward leaves out small gradients unless filter_eps is None."""
    apply = importlib.import_module("cut_cross_entropy").linear_cross_entropy
    return lambda t: apply(t["_input"], t["weight"], t["target"], reduction=reduction, **words)


def liger(reduction: str) -> Loss:
    """Its fused linear cross entropy in Triton: what a user gets."""
    function = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction
    return lambda t: loss_of(function, t, reduction)


def liger_scaled() -> Loss:
    """Its per-token scaled cross entropy: in CuTe DSL on compute capability 9.0, and nothing else replaces it here."""
    module = importlib.import_module("liger_kernel.ops.fused_linear_scaled_cross_entropy")
    if module._resolve_implementation(torch.device("cuda")) is module._FusedLinearPPOFallbackFunction:
        raise RuntimeError("compute capability is not 9.0: the form in torch would stand for it")
    apply = module.LigerFusedLinearScaledCrossEntropyFunction.apply
    return lambda t: apply(t["_input"], t["weight"], t["target"])


def liger_sm90(reduction: str) -> Loss:
    """Its fused linear cross entropy in CuTe DSL for compute capability 9.0, called by its module: no dispatcher reaches it."""
    module = importlib.import_module("liger_kernel.ops.cutedsl.ops.fused_linear_cross_entropy_sm90")
    (function,) = [v for n, v in vars(module).items() if n.startswith("Liger") and n.endswith("Function")]
    return lambda t: loss_of(function, t, reduction)


def quack(tuned: bool = False, **words: object) -> Loss:
    """Its chunked linear cross entropy, of mean and sum alone; on compute capability 9.0 it takes scaled exponents by itself."""
    chunked = importlib.import_module("quack.linear_cross_entropy").chunked_linear_cross_entropy
    return lambda t: chunked(t["_input"], t["weight"], t["target"], reduction="mean", tuned=tuned, **words)


PEERS: list[tuple[str, str, Callable[[], Loss]]] = [
    ("patchbench::flce", "none", lambda: patchbench("none")),
    ("patchbench::flce, all logits kept", "none", lambda: patchbench("none", 2**63 - 1)),
    ("plain torch", "none", lambda: plain("none")),
    ("torch.compile", "none", lambda: compiled("none")),
    ("Cut Cross-Entropy, as it comes", "none", lambda: cut("none")),
    ("Cut Cross-Entropy, nothing left out", "none", lambda: cut("none", filter_eps=None)),
    ("liger-kernel, Triton", "none", lambda: liger("none")),
    ("liger-kernel, scaled, CuTe DSL", "none", liger_scaled),
    ("patchbench::flce", "mean", lambda: patchbench("mean")),
    ("plain torch", "mean", lambda: plain("mean")),
    ("torch.compile", "mean", lambda: compiled("mean")),
    ("Cut Cross-Entropy, as it comes", "mean", lambda: cut("mean")),
    ("Cut Cross-Entropy, nothing left out", "mean", lambda: cut("mean", filter_eps=None)),
    ("liger-kernel, Triton", "mean", lambda: liger("mean")),
    ("liger-kernel, CuTe DSL", "mean", lambda: liger_sm90("mean")),
    ("quack, as it comes", "mean", quack),
    ("quack, products tuned first", "mean", lambda: quack(tuned=True)),
    ("quack, scaled exponents, chunks of 2048", "mean", lambda: quack(use_scaled_exp=True, chunk_size=2048)),
    ("quack, scaled exponents, chunks of 8192", "mean", lambda: quack(use_scaled_exp=True, chunk_size=8192)),
    ("quack, logits in chunks of 4096", "mean", lambda: quack(use_scaled_exp=False)),
]
PRODUCTS = 3


def gradients(loss: Loss, t: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Of hidden and weight, the loss weighted by grad_output where it has one number for each token."""
    made = loss(t)
    made = made[0] if isinstance(made, tuple) else made
    grad = t["grad_output"].to(made.dtype) if made.dim() else torch.ones_like(made)
    return torch.autograd.grad(made, (t["_input"], t["weight"]), grad)


class Oracle:
    """Rows of both gradients in float64: of SAMPLES tokens, and of SAMPLES classes of which half are targets."""

    def __init__(self, t: Given) -> None:
        hidden, weight, target = t["_input"].detach(), t["weight"].detach(), t["target"]
        device, valid = hidden.device, target >= 0
        pick = torch.Generator(device).manual_seed(1)
        lengths = len(hidden), len(weight)
        tokens, classes = (torch.randperm(n, generator=pick, device=device)[:SAMPLES] for n in lengths)
        self.tokens, self.classes = tokens.sort().values, torch.cat((target[valid][: SAMPLES // 2], classes[SAMPLES // 2 :]))
        scale = {"none": t["grad_output"].double(), "mean": valid.double() / valid.sum()}
        wide = weight.double()
        found: dict[str, dict[str, list[torch.Tensor]]] = {r: {"grad_hidden": [], "grad_weight": []} for r in scale}
        for rows in torch.arange(len(hidden), device=device).split(1024):
            given = hidden[rows].double()
            logits = given @ wide.T
            logits.sub_(logits.logsumexp(1, keepdim=True)).exp_()
            logits[torch.arange(len(rows), device=device), target[rows].clamp_min(0)] -= 1
            logits.mul_(valid[rows, None])
            named = torch.isin(rows, self.tokens)
            for reduction, factor in scale.items():
                found[reduction]["grad_hidden"].append(factor[rows][named, None] * logits[named] @ wide)
                found[reduction]["grad_weight"].append((factor[rows, None] * logits[:, self.classes]).T @ given)
        joined = {"grad_hidden": torch.cat, "grad_weight": sum}
        self.rows = {r: {name: joined[name](parts) for name, parts in both.items()} for r, both in found.items()}

    def errors(self, reduction: str, made: tuple[torch.Tensor, torch.Tensor]) -> dict[str, list[float]]:
        got = {"grad_hidden": made[0][self.tokens], "grad_weight": made[1][self.classes]}
        found = {}
        for name, tensor in got.items():
            want = self.rows[reduction][name]
            difference, norms = (tensor.double() - want).norm(dim=1), want.norm(dim=1)
            numbers = difference.norm() / norms.norm(), difference.max() / norms.square().mean().sqrt()
            found[name] = [float(f"{n.item():.3e}") if n.isfinite() else str(n.item()) for n in numbers]
        return found


def tried(only: list[str], t: Given, oracle: Oracle, not_run: dict[str, str]) -> list[tuple[dict, Loss]]:
    """A row for each that works, with its errors, its first call's seconds and its peak; why the others do not."""
    works = []
    for name, reduction, load in PEERS:
        if only and not any(part in name for part in only):
            continue
        try:
            loss, began = load(), time.monotonic()
            errors = oracle.errors(reduction, gradients(loss, t))
            first = time.monotonic() - began
        except Exception as failure:  # imports, compilers and launches fail in many ways
            not_run[f"{name}, {reduction}"] = f"{type(failure).__name__}: {str(failure).strip()[:300]}"
            print(f"bench_peers.py: {name}, {reduction}: {failure}"[:3000], file=sys.stderr)
            continue
        peak = peak_bytes(lambda loss=loss: gradients(loss, t))
        row = {"name": name, "reduction": reduction, "error": errors, "peak_bytes": peak, "first_call_s": round(first, 1)}
        works.append((row, loss))
    return works


def compared(rows: list[dict], product: float) -> None:
    """The time over the floor's, and patchbench's over that of the best peer that is right."""
    for row in rows:
        row["of_floor"] = round(row["median_ms"] / (product * PRODUCTS), 3)
        right = [r for r in rows if r["reduction"] == row["reduction"] and all(float(e[0]) < WRONG for e in r["error"].values())]
        for key, of in (("of_best_peer", "median_ms"), ("of_best_peer_hot", "hot_ms")):
            theirs = {r["name"]: r[of] for r in right if not r["name"].startswith("patchbench")}
            if row["name"].startswith("patchbench") and theirs:
                row[key] = best_peer(row[of], theirs)


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    """One run: a row for each peer that works, why others do not, and the time of one matrix product."""
    sets = [inputs(*shape, seed=seed) for seed in (9, 10)]
    not_run: dict[str, str] = {}
    oracle = Oracle(sets[0])
    torch.cuda.empty_cache()
    works = tried(options.only, sets[0], oracle, not_run)
    calls = {str(n): lambda i, loss=loss: gradients(loss, sets[i % 2]) for n, (_, loss) in enumerate(works)}
    bare = [(t["_input"].detach(), t["weight"].detach()) for t in sets]
    calls["product"] = lambda i: bare[i % 2][0] @ bare[i % 2][1].T
    times = in_turn(calls, options.repeats)
    hot_times = hot(calls)
    for n, (row, _) in enumerate(works):
        row |= dict(zip(("median_ms", "low_ms", "high_ms"), times[str(n)], strict=True)) | {"hot_ms": hot_times[str(n)]}
    rows = [row for row, _ in works]
    compared(rows, times["product"][0])
    rows += [
        {"name": f"floor: {PRODUCTS} products", "reduction": reduction, "median_ms": PRODUCTS * times["product"][0]}
        for reduction in ("none", "mean")
    ]
    run = {"device": torch.cuda.get_device_name(), "dtype": "bfloat16", "shape": shape, "one_product_ms": times["product"]}
    return [run | {"rows": rows, "not_run": not_run}]


def about() -> dict[str, object]:
    how = "one process, in turn, two sets of operands, 256 MiB written between calls, CUDA events; low, high: least, greatest"
    return {"how": how, "versions": versions(*PACKAGES)}


SHAPES, AXES = [[8192, 4096, 128256], [4096, 4096, 128256], [16384, 4096, 128256]], "tokens, hidden, vocab"
FILTERS = {"--only": "rows whose name holds this"}
BENCH = Bench("patchbench::flce beside its peers", rows_of, SHAPES, AXES, repeats=20, filters=FILTERS, about=about, rows_are="runs")

if __name__ == "__main__":
    bench_main(BENCH)
