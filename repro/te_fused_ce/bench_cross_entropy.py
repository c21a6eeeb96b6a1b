"""Times the cross entropies of patchbench_ops, TransformerEngine, liger-kernel, quack and torch, forward and backward, in turn.

    PYTHONPATH=repro/harness:repro/bench:RELEASES PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_cross_entropy.py --out FILE

Without --shape: a curve over the vocabulary and one over the tokens. RELEASES are unpacked wheels of the peers; what is not there, or
refuses, is named with its reason. A tenth of the labels is ignored; "none" has a gradient for each token, a fifth of them 0.
liger-kernel and TransformerEngine write the gradient over the logits, as `overwrites_logits` does. torch.compile compiles the first
shape alone, and the later ones with sizes that vary, as it does by default. The floor of a shape is the time of a copy of its logits, by
the rows that must move: read, read again and the gradient written; a row whose gradient is 0 is read once, an ignored one not at all.
Errors are against float64 on 64 rows that are drawn and the
row of the largest gradient.

--library LABEL=FILE, twice or more: times patchbench_ops over each of these libraries instead, each in a process of its own, which take
turns.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import time
from argparse import Namespace
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from bench_main import Bench, Shape, bench_main, best_peer, versions
from device_time import clocks, hot, in_turn, load_ops, peak_bytes, summary, turns
from torch.nn.functional import cross_entropy

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PACKAGES = ("transformer-engine", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl", "triton", "torch")
SAMPLES, IGNORED = 64, -100
LIMIT_SECONDS, BEGAN = 140, time.monotonic()  # no shape is begun later
ROUNDS = 4  # of the libraries


def patchbench(reduction: str, **words: bool) -> Loss:
    apply = importlib.import_module("patchbench_ops").cross_entropy
    return lambda logits, labels: apply(logits, labels, reduction=reduction, **words)


def plain(reduction: str) -> Loss:
    return lambda logits, labels: cross_entropy(logits, labels, reduction=reduction)


def compiled(reduction: str) -> Loss:
    return torch.compile(plain(reduction))


def liger(reduction: str) -> Loss:
    apply = importlib.import_module("liger_kernel.ops.cross_entropy").LigerCrossEntropyFunction.apply
    return lambda logits, labels: apply(logits, labels, None, IGNORED, 0.0, 0.0, reduction)[0]


def liger_cute(reduction: str) -> Loss:
    """Its kernel in CuTe DSL, which its dispatcher chooses where it may."""
    apply = importlib.import_module("liger_kernel.ops.cutedsl.ops.cross_entropy").LigerCrossEntropyFunction.apply
    return lambda logits, labels: apply(logits, labels, None, IGNORED, 0.0, 0.0, reduction)[0]


def quack(reduction: str, **words: bool) -> Loss:
    apply = importlib.import_module("quack.cross_entropy").cross_entropy
    return lambda logits, labels: apply(logits, labels, ignore_index=IGNORED, reduction=reduction, **words)


def transformer_engine(reduction: str) -> Loss:
    importlib.import_module("stand_in").install()
    apply = importlib.import_module("transformer_engine.pytorch.cross_entropy").parallel_cross_entropy
    return lambda logits, labels: apply(logits, labels, 0.0, reduction == "mean", None, IGNORED)


PEERS: list[tuple[str, Callable[[str], Loss]]] = [
    ("patchbench_ops", patchbench),
    ("patchbench_ops, over the logits", lambda reduction: patchbench(reduction, overwrites_logits=True)),
    ("TransformerEngine", transformer_engine),
    ("liger-kernel", liger),
    ("liger-kernel, CuTe DSL", liger_cute),
    ("quack", quack),
    ("quack, over the logits", lambda reduction: quack(reduction, inplace_backward=True)),
    ("torch", plain),
    ("torch.compile", compiled),
]


def shaped(name: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As this program takes them: two of them have an axis for the batch."""
    return tuple(t[None] for t in tensors) if name.startswith(("patchbench", "Transformer")) else tensors


def step(loss: Loss, logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the gradient of the logits."""
    given = logits.detach().requires_grad_()
    made = loss(given, labels)
    weight = grad.to(made.dtype).reshape(made.shape) if made.numel() > 1 else torch.ones_like(made)
    return made, torch.autograd.grad(made, given, weight)[0]


def errors(name: str, loss: Loss, reduction: str, logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> list[float]:
    """Of the gradient: of the sampled rows together, and of the worst of them over their mean norm."""
    valid = labels != IGNORED
    scale = grad.double() if reduction == "none" else torch.ones_like(grad, dtype=torch.float64) / valid.sum()
    pick = torch.Generator(logits.device).manual_seed(1)
    rows = torch.randperm(len(logits), generator=pick, device=logits.device)[:SAMPLES]
    rows = torch.cat((rows, (scale.abs() * valid).argmax()[None]))
    want = logits[rows].double().softmax(1)
    want[torch.arange(len(rows), device=logits.device), labels[rows].clamp_min(0)] -= 1
    want *= (scale * valid)[rows, None]
    got = step(loss, *shaped(name, logits.clone(), labels, grad))[1].reshape(logits.shape)[rows].double()
    difference, norms = (got - want).norm(dim=1), want.norm(dim=1)
    return [float(f"{n.item():.3e}") for n in (difference.norm() / norms.norm(), difference.max() / norms.square().mean().sqrt())]


def inputs(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels and the gradient of each token's loss."""
    tokens, vocab, dtype, _ = shape
    torch.manual_seed(3)
    logits = torch.randn(tokens, vocab, device="cuda", dtype=getattr(torch, dtype)) * 3
    labels = torch.randint(0, vocab, (tokens,), device="cuda")
    labels[1:][torch.rand(tokens - 1, device="cuda") < 0.1] = IGNORED
    return logits, labels, torch.randn(tokens, device="cuda") * (torch.rand(tokens, device="cuda") > 0.2)


def own_times(shape: Shape, repeats: int) -> dict[str, list[float]]:
    logits, labels, grad = inputs(shape)
    spare = torch.empty_like(logits)
    calls: dict[str, Callable[[int], object]] = {"copy": lambda _: spare.copy_(logits)}
    for name, load in PEERS[:2]:
        loss, given = load(shape[3]), shaped(name, spare, labels, grad)
        calls[name] = lambda _, loss=loss, given=given: step(loss, *given)
    return turns(calls, repeats)


def serve(library: str, pipe: Connection) -> None:
    """Of each (shape, repeats) that comes by `pipe`: the times of patchbench_ops over that library."""
    os.environ["PATCHBENCH_OPS_LIB"] = library
    load_ops()
    while True:
        pipe.send(own_times(*pipe.recv()))
        torch.cuda.empty_cache()


@functools.cache
def workers(libraries: tuple[str, ...]) -> dict[str, Connection]:
    """One process for each LABEL=FILE, by its label; they end with this one."""
    spawn, pipes = multiprocessing.get_context("spawn"), {}
    for given in libraries:
        label, _, library = given.partition("=")
        pipes[label], theirs = spawn.Pipe()
        spawn.Process(target=serve, args=(library, theirs), daemon=True).start()
        theirs.close()
    return pipes


def rows_of_libraries(shape: Shape, options: Namespace) -> list[dict]:
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for label, pipe in workers(tuple(options.library)).items():
            try:
                pipe.send((shape, max(1, options.repeats // ROUNDS)))
                answer = pipe.recv()
            except (EOFError, OSError) as e:
                raise RuntimeError(f"the process of library {label} has ended") from e
            for name, some in answer.items():
                times.setdefault((label, name), []).extend(some)
    return [
        {"shape": shape[:3], "reduction": shape[3], "library": label, "name": name, "ms": summary(sorted(some))}
        for (label, name), some in times.items()
    ]


def passes(labels: torch.Tensor, grad: torch.Tensor, reduction: str) -> float:
    """How often a row is read or written at least, on average."""
    valid = labels != IGNORED
    again = valid & (grad != 0) if reduction == "none" else valid
    return 1 + (valid.double().mean() + again.double().mean()).item()


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    reduction, named = shape[3], {"shape": shape[:3], "reduction": shape[3]}
    if time.monotonic() - BEGAN > LIMIT_SECONDS:
        return [named | {"not_run": f"{LIMIT_SECONDS} s were over"}]
    if options.library:
        return rows_of_libraries(shape, options)
    logits, labels, grad = inputs(shape)
    spare, not_run, calls, found = torch.empty_like(logits), {}, {}, {}
    for name, load in PEERS:
        try:
            loss = load(reduction)
            given = shaped(name, spare, labels, grad)
            found[name] = {"error": errors(name, loss, reduction, logits, labels, grad)}
            found[name]["peak_bytes"] = peak_bytes(lambda loss=loss, given=given: step(loss, *given))
            calls[name] = lambda _, loss=loss, given=given: step(loss, *given)
        except Exception as failure:  # imports, compilers and launches fail in many ways
            not_run[name] = f"{type(failure).__name__}: {str(failure).strip()[:300]}"
    calls["copy"] = lambda _: spare.copy_(logits)
    times = in_turn(calls, options.repeats)
    copy = times.pop("copy")
    hot_times = hot({name: call for name, call in calls.items() if name != "copy"})
    for _ in range(20):
        spare.copy_(logits)  # the clocks are those under load
    rows = [named | {"name": "copy", "ms": copy, "clocks_sm_mem_temperature": clocks()}]
    floor = copy[0] * passes(labels, grad, reduction) / 2  # a copy moves each byte twice
    theirs = {name: ms[0] for name, ms in times.items() if not name.startswith("patchbench") and found[name]["error"][0] < 0.05}
    for name, ms in times.items():
        row = named | {"name": name, "ms": ms, "hot_ms": hot_times[name]} | found[name]
        row |= {"floor_ms": round(floor, 4), "of_floor": round(ms[0] / floor, 3)}
        if name.startswith("patchbench") and theirs:
            row["of_best_peer"] = best_peer(ms[0], theirs)
            row["of_best_peer_hot"] = best_peer(hot_times[name], {peer: hot_times[peer] for peer in theirs})
        rows.append(row)
    return rows + ([named | {"not_run": not_run}] if not_run else [])


def about() -> dict[str, object]:
    how = "one process, in turn, the copy before each round restores the logits, 256 MiB written between calls, CUDA events"
    return {"how": how, "versions": versions(*PACKAGES)}


VOCABULARIES = [4096, 8192, 16384, 32000, 50257, 65536, 151936, 262144]
TOKENS = [1, 16, 128, 1024, 4096, 32768]
# The bar's shapes come first: what the limit cuts off is the end of a curve.
SHAPES: list[Shape] = [
    [8192, 128256, "bfloat16", "mean"],
    [8192, 128256, "bfloat16", "none"],
    [32768, 4096, "bfloat16", "mean"],
    [32768, 4096, "bfloat16", "none"],
    *([8192, vocab, "bfloat16", "mean"] for vocab in VOCABULARIES),
    *([tokens, 128256, "bfloat16", "mean"] for tokens in TOKENS),
    *([tokens, 4096, "bfloat16", "mean"] for tokens in TOKENS[:-1]),
    [8192, 128256, "float32", "mean"],
    [8192, 128256, "float16", "mean"],
    [8192, 32000, "bfloat16", "none"],
    [16384, 50257, "bfloat16", "none"],
]

BENCH = Bench(
    "patchbench_ops.cross_entropy beside its peers",
    rows_of,
    SHAPES,
    "tokens, vocab, dtype, reduction",
    repeats=20,
    filters={"--library": "LABEL=FILE: an op library"},
    about=about,
)

if __name__ == "__main__":
    bench_main(BENCH)
