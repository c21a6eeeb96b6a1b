"""Trains a small hybrid (Mamba-3, absorbed sparse attention, Liger's head with a loss mask) on the packages of the path.

    PYTHONPATH=PACKAGES:mitigations:repro/harness python3 train_hybrid.py --variant raw|mitigated|patched|ops [--steps 200] [--seed 0 1 2]
        [--device cuda:0] [--report RUN-{seed}.json] [--losses LOSSES-{seed}.json] [--capture DIR] [--shares FILE]

raw and mitigated want the releases on the path, patched the releases with our edits (`patchbench patch apply`); mitigated switches on
PATCHBENCH_MITIGATE, by default the mitigation of the head; ops takes the operators of PATCHBENCH_OPS_LIB for sparse attention, Mamba-3's
backward and Liger's head, beside the releases. `--head transformer-engine` takes TransformerEngine's fused cross entropy of
the logits in the place of Liger's head, which has the logits' product in it; `frozen-trunk` trains Liger's head alone. A path with
{seed} is written once a seed. `--report` is for `patchbench job goodput`; `--losses` has the loss of each step, what the head's gradients
are off by, and the digests of the kernels' files; `--capture` keeps the operands of each sparse attention in the last step; `--shares`
writes how much of a step each of the three kernels takes.

On CUDA: mamba-ssm's Triton SISO kernels (each at one of its own configurations, not timed), megatron-core's TileLang SparseMLA and
liger-kernel, in bfloat16 with float32 weights. On a CPU, at a smaller size: our reference, patchbench::sparse_mla
(PATCHBENCH_OPS_LIB) and liger-kernel in Triton's interpreter, in float32. The text is Markov's, its second half a copy of the first;
the labels at masked positions are noise. Exit: 0 trained, 2 usage, 4 no such device here.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from absent import enter_without_init, stand_in_for
from hybrid_model import FULL, SMALL, Attention, Hybrid, Siso, Sizes, siso_reference

MAMBA = "mamba_ssm.ops.triton.mamba3"
SPARSE = "megatron.core.transformer.experimental_attention_variant.ops"
#: distribution -> modules whose files are digested: those that a pack of ours edits.
SUBJECTS = {
    "liger-kernel": ("liger_kernel.ops.fused_linear_cross_entropy",),
    "transformer-engine": ("transformer_engine.pytorch.cross_entropy", "transformer_engine.pytorch.triton.cross_entropy"),
    "mamba-ssm": (f"{MAMBA}.mamba3_siso_bwd",),
    "megatron-core": (f"{SPARSE}.sparse_mla", f"{SPARSE}.tilelang_sparse_mla_bwd"),
}
#: head -> its distribution, and the pack whose mitigation it takes.
HEADS = {
    "liger-kernel": ("liger-kernel", "liger_flce_none_bwd"),
    "frozen-trunk": ("liger-kernel", "liger_flce_frozen_hidden"),
    "transformer-engine": ("transformer-engine", "te_fused_ce"),
}
SUCCESSORS = torch.tensor([0.6, 0.2, 0.1, 0.1])  # of a token; the mean loss of who knows them is 1.09
PROMPT_SHARE, MASKED_SHARE, CHECK_EVERY, WARM_UP = 0.5, 0.1, 10, 20


class Batch(NamedTuple):
    tokens: torch.Tensor  # [b, s]
    target: torch.Tensor  # [t]
    weights: torch.Tensor  # [t]: what a token's loss counts, 0 where it is masked; their sum is 1


def batches(sizes: Sizes, steps: int, seed: int) -> list[Batch]:
    """The run's batches, on the CPU. Half the sequences begin with a prompt of noise; it and a tenth of all positions are masked."""
    vocab, length = sizes.vocab, sizes.seqlen
    table = torch.randint(vocab, (vocab, len(SUCCESSORS)), generator=torch.Generator().manual_seed(0))
    gen = torch.Generator().manual_seed(1000 + seed)
    many = steps * sizes.sequences
    text = torch.randint(vocab, (many, 1), generator=gen)
    choice = torch.multinomial(SUCCESSORS, many * length, replacement=True, generator=gen).view(many, length)
    for i in range(length // 2 - 1):
        text = torch.cat([text, table[text[:, -1], choice[:, i]].unsqueeze(1)], 1)
    text = torch.cat([text, text, text[:, :1]], 1)
    noise, position = torch.randint(vocab, (2, many, length), generator=gen), torch.arange(length)
    prompt = torch.randint(1, length // 4 + 1, (many, 1), generator=gen) * (torch.rand(many, 1, generator=gen) < PROMPT_SHARE)
    is_masked = (position < prompt) | (torch.rand(many, length, generator=gen) < MASKED_SHARE)
    tokens = torch.where(position < prompt, noise[0], text[:, :-1]).split(sizes.sequences)
    target = torch.where(is_masked, noise[1], text[:, 1:]).split(sizes.sequences)
    counted = [(~one).float().flatten() for one in is_masked.split(sizes.sequences)]
    return [Batch(a, b.flatten(), c / c.sum()) for a, b, c in zip(tokens, target, counted, strict=True)]


def fix_launches(modules: list[ModuleType]) -> None:
    """Leaves each autotuned kernel the first of its configurations with 4 warps, one stage and no bound on registers: timing all of
    them takes longer than the run, and subjects tuned apart are not comparable."""
    from triton.runtime.autotuner import Autotuner

    for module in modules:
        for kernel in [one for one in vars(module).values() if isinstance(one, Autotuner)]:
            fit = [c for c in kernel.configs if (c.num_warps, c.num_stages, c.maxnreg) == (4, 1, None)]
            kernel.configs = (fit or kernel.configs)[:1]


def cuda_kernels(variant: str, sizes: Sizes) -> tuple[Siso, Attention]:
    """The release's own Mamba-3 and sparse attention; of "ops" our sparse attention, and our parts in Mamba-3's backward."""
    os.environ["MCORE_DSA_TILELANG_SEQ_BUCKET"] = "1"  # rows and keys are otherwise padded to 256
    stand_in_for(("einops",))
    enter_without_init("mamba_ssm")  # its __init__ imports compiled extensions
    names = ("mamba3_siso_fwd", "mamba3_siso_bwd", "angle_dt")
    fix_launches([importlib.import_module(f"{MAMBA}.{name}") for name in names])
    siso = importlib.import_module(f"{MAMBA}.mamba3_siso_combined")
    if variant == "ops":
        return siso_with_op_backward(siso), op_attention(sizes)
    return siso.mamba3_siso_combined, importlib.import_module(f"{SPARSE}.sparse_mla").SparseMLA.apply


def siso_with_op_backward(module: ModuleType) -> Siso:
    """The release's forward; each backward belongs to the last forward that has had none."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mamba3_siso_bwd_cse"))
    by_ops = importlib.import_module("backward_by_ops")
    opened: list[Any] = []
    for name, part in by_ops.BackwardByOps(opened.pop).all().items():
        setattr(module, name, part)

    def siso(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        adt, dt, trap, _, _, angles, *_ = (one.detach() for one in rest)
        low = torch.bfloat16  # as the release takes them
        opened.append(by_ops.Given(adt, angles.to(low), dt, trap.to(low)))
        return module.mamba3_siso_combined(q, k, v, *rest)

    return siso


def op_attention(sizes: Sizes) -> Attention:
    """patchbench::sparse_mla."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packs" / "python"))
    ops = importlib.import_module("patchbench_ops")

    def attend(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        one = (x.unsqueeze(0) for x in (q, kv, indices))
        out, lse = ops.sparse_mla(*one, softmax_scale=scale, head_dim_v=sizes.latent)
        return out.squeeze(0), lse.squeeze(0)

    return attend


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(f"{((got.float() - wanted).norm() / wanted.norm()).item():.4g}")


class Head(NamedTuple):
    """One call of the loss head: its operands as they were handed over, to be held against plain torch."""

    hidden: torch.Tensor
    weight: torch.Tensor
    batch: Batch
    kind: str  # of HEADS, or "op"

    def losses(self) -> torch.Tensor:
        """One a token; of the frozen trunk the mean over those that count. All but the first head mask tokens by their labels."""
        if self.kind == "op":
            return torch.ops.patchbench.flce(self.hidden, self.weight, self.batch.target, reduction="none")
        module = importlib.import_module(SUBJECTS[HEADS[self.kind][0]][0])
        labels = self.batch.target.masked_fill(self.batch.weights == 0, -100)
        if self.kind == "transformer-engine":
            # smoothing, whether to take the mean, process group, ignored index
            return module.parallel_cross_entropy((self.hidden @ self.weight.T)[None], labels[None], 0.0, False, None, -100).flatten()
        function = module.LigerFusedLinearCrossEntropyFunction
        is_mean = self.kind == "frozen-trunk"
        target, reduction = (labels, "mean") if is_mean else (self.batch.target, "none")
        # bias, class weights, ignored index, z-loss, smoothing
        return function.apply(self.hidden, self.weight, target, None, None, -100, 0.0, 0.0, reduction)[0]

    def loss(self) -> torch.Tensor:
        """The mean over the tokens that count. Of TransformerEngine's losses it is a sum: all have the same gradient."""
        losses = self.losses().float()
        if losses.dim() == 0:
            return losses
        return losses.sum() * self.batch.weights.max() if self.kind == "transformer-engine" else (losses * self.batch.weights).sum()

    def errors(self) -> dict[str, float]:
        """||got - wanted|| / ||wanted|| of the gradients; wanted: float32, from the same operands. One that is missing counts as 0."""
        hidden, weight = self.hidden.detach().float(), self.weight.detach().float()
        slopes = (hidden @ weight.T).softmax(-1)
        slopes[torch.arange(len(slopes)), self.batch.target] -= 1
        slopes *= self.batch.weights.unsqueeze(-1)
        wanted = {"grad_weight": (self.weight, slopes.T @ hidden)}
        if self.hidden.requires_grad:
            wanted["grad_hidden"] = (self.hidden, slopes @ weight)
        return {name: relative(torch.zeros_like(right) if of.grad is None else of.grad, right) for name, (of, right) in wanted.items()}


class Watched:
    """A kernel that counts its calls and keeps the operands of the last."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.num_calls, self.operands = call, 0, ()

    def __call__(self, *operands: Any) -> Any:
        self.num_calls, self.operands = self.num_calls + 1, operands
        return self.call(*operands)

    def seconds(self, device: torch.device, repeats: int = 5) -> float:
        """Median time of a forward and backward pass on those operands, after one that is not counted."""
        taken = []
        for _ in range(repeats + 1):
            copies = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in self.operands]
            leaves = [x.requires_grad_() for x in copies if isinstance(x, torch.Tensor) and x.is_floating_point()]
            synchronize(device)
            begin = time.perf_counter()
            out = self.call(*copies)
            out = out[0] if isinstance(out, tuple) else out
            torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
            synchronize(device)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken[1:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Run:
    """One seed's training: `losses`, `norms` of all gradients, `walls` of the steps and `checks` of the head's gradients."""

    def __init__(self, sizes: Sizes, device: torch.device, kernels: tuple[Siso, Attention], head: str, steps: int, seed: int) -> None:
        self.began, self.sizes, self.device, self.head, self.seed = time.perf_counter(), sizes, device, head, seed
        torch.manual_seed(seed)
        self.model = Hybrid(sizes, *kernels).to(device)
        if head == "frozen-trunk":
            self.model.requires_grad_(False).weight.requires_grad_()
        self.batches = [Batch(*(x.to(device) for x in batch)) for batch in batches(sizes, steps, seed)]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95))
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.walls: list[float] = []
        self.checks: list[dict[str, Any]] = []

    def loss_of(self, batch: Batch) -> tuple[torch.Tensor, Head]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            hidden = self.model(batch.tokens)
        low = torch.bfloat16 if hidden.is_cuda else hidden.dtype
        head = Head(hidden.to(low), self.model.weight.to(low, copy=True), batch, self.head)
        for operand in (head.hidden, head.weight):
            if operand.requires_grad:
                operand.retain_grad()
        return head.loss(), head

    def step(self, i: int) -> None:
        begin = time.perf_counter()
        self.optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, (i + 1) / WARM_UP)
        loss, head = self.loss_of(self.batches[i])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.norms.append(norm.item())
        self.walls.append(time.perf_counter() - begin)
        if i % CHECK_EVERY == 0:
            self.checks.append({"step": i, **head.errors()})
        self.optimizer.zero_grad()

    def train(self, capture: Path | None) -> None:
        for i in range(len(self.batches)):
            if capture and i == len(self.batches) - 1:
                for attention in self.model.attentions:
                    attention.captured = {}
            self.step(i)
        self.wall = time.perf_counter() - self.began  # what is captured is written after it
        if capture:
            capture.mkdir(parents=True, exist_ok=True)
            for layer, attention in enumerate(self.model.attentions):
                torch.save(attention.captured | {"scale": attention.scale}, capture / f"layer-{layer}-seed-{self.seed}.pt")


def revisions(is_cuda: bool, distribution: str) -> dict[str, str]:
    """What was run: versions, and the SHA-256 of each file that a pack edits."""
    found = {"torch": torch.__version__, "triton": importlib.metadata.version("triton")}
    if is_cuda:
        found["tilelang"] = importlib.metadata.version("tilelang")
    for name in (distribution, "mamba-ssm", "megatron-core") if is_cuda else (distribution,):
        files = [Path(importlib.import_module(module).__file__) for module in SUBJECTS[name]]
        digests = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
        found[name] = "; ".join([importlib.metadata.version(name), *digests])
    return found


def siso_errors(sizes: Sizes, siso: Siso, device: torch.device) -> dict[str, float]:
    """How far a Mamba-3 block's output and weight gradients by `siso` are from those by our reference, on random data."""
    torch.manual_seed(5)
    block = Hybrid(sizes, siso, lambda *_: None).mambas[0].to(device)
    x, grad = torch.randn(2, sizes.sequences, sizes.seqlen, sizes.hidden, device=device)
    found = []
    for block.siso in (siso, siso_reference):
        with torch.autocast(device.type, torch.bfloat16):
            y = block(x)
        found.append((y.detach().float(), *torch.autograd.grad(y, list(block.parameters()), grad.to(y.dtype))))
    names = ("out", *(f"grad_{name}" for name, _ in block.named_parameters()))
    return {name: relative(got, wanted.float()) for name, got, wanted in zip(names, *found, strict=True)}


def report_of(run: Run, variant: str, made_of: dict[str, str]) -> dict[str, Any]:
    """What `patchbench job goodput` reads. What the first step took beyond the median of the others is called compilation; the tokens of
    a step count for nothing where every gradient was zero."""
    is_cuda = run.device.type == "cuda"
    compiled = max(0.0, run.walls[0] - statistics.median(run.walls))
    tokens = run.sizes.sequences * run.sizes.seqlen
    steps = [{"tokens": tokens if norm else 0, "wall_s": wall} for norm, wall in zip(run.norms, run.walls, strict=True)]
    steps[0]["compile_s"] = compiled
    name = "cpu" if not is_cuda else "{} (sm_{}{})".format(torch.cuda.get_device_name(), *torch.cuda.get_device_capability())
    peak = torch.cuda.max_memory_allocated() if is_cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {
        "model": run.sizes.text(),
        "batch": {"sequences": run.sizes.sequences, "seqlen": run.sizes.seqlen},
        "hardware": {"device": name, "num_devices": 1},
        "backend": {"family": "triton and tilelang" if is_cuda else "triton's interpreter", "adapter": variant},
        "revisions": made_of,
        "steps": steps,
        "wall_s": run.wall,
        "failures": [],
        "peak_memory_bytes": peak,
    }


def shares_of(run: Run, kernels: dict[str, Watched], report: dict[str, Any]) -> dict[str, Any]:
    """Of each kernel: calls a step, seconds of one call's forward and backward, and their share of the median step. The loss head is
    called once a step, on the operands of the last."""
    calls = {name: kernel.num_calls // len(run.walls) for name, kernel in kernels.items()} | {"loss_head": 1}
    _, head = run.loss_of(run.batches[-1])
    loss = Watched(lambda hidden, weight: Head(hidden, weight, run.batches[-1], run.head).losses())
    loss.operands = (head.hidden, head.weight)
    step, shares = statistics.median(run.walls), {}
    for name, kernel in {**kernels, "loss_head": loss}.items():
        seconds = kernel.seconds(run.device)
        shares[name] = {"calls": calls[name], "seconds": round(seconds, 6), "share": round(calls[name] * seconds / step, 4)}
    about = {key: report[key] for key in ("model", "batch", "hardware", "backend", "revisions")}
    return {**about, "num_steps": len(run.walls), "step_s": round(step, 6), "shares": shares}


def losses_of(run: Run, variant: str, report: dict[str, Any]) -> dict[str, Any]:
    first = [bool(batch.weights[0] == 0) for batch in run.batches]
    about = {key: report[key] for key in ("model", "batch", "hardware", "revisions")}
    switched: dict[str, Any] = {}
    if variant == "mitigated":
        import patchbench_mitigations

        every = patchbench_mitigations.status()["mitigations"]
        switched = {"mitigations": [one for one in every.values() if one["on"]]}
    shown = {"losses": [round(x, 5) for x in run.losses], "norms": [float(f"{x:.4g}") for x in run.norms]}
    return {"variant": variant, "seed": run.seed, **about, **switched, **shown, "is_first_row_masked": first, "checks": run.checks}


def path_for(words: str | None, seed: int) -> Path | None:
    return Path(words.replace("{seed}", str(seed))) if words else None


def arguments_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", required=True, choices=("raw", "mitigated", "patched", "ops"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cuda:0")
    for name in ("report", "losses"):
        parser.add_argument(f"--{name}", metavar="FILE")
    parser.add_argument("--capture", type=Path, metavar="DIR")
    parser.add_argument("--shares", type=Path, metavar="FILE", help="of the last seed")
    parser.add_argument("--head", choices=sorted(HEADS), default="liger-kernel")
    parser.add_argument("--siso", choices=("release", "reference"), default="release", help="on CUDA: whose Mamba-3 recurrence")
    got = parser.parse_args(words)
    if got.capture and got.head == "frozen-trunk":
        parser.error("--capture: the attention of a frozen trunk has no gradient to keep")
    if got.variant == "ops" and got.head != "liger-kernel":
        parser.error("--variant ops: the op is Liger's head")
    if got.steps < 2:
        parser.error("--steps: at least 2")
    if len(got.seed) > 1 and any("{seed}" not in path for path in (got.report, got.losses) if path):
        parser.error("--report and --losses: with several seeds put {seed} into the file's name")
    return got


def main(words: list[str] | None = None) -> int:
    arguments = arguments_of(words)
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("train_hybrid.py: no CUDA device on this machine; --device cpu trains a smaller model", file=sys.stderr)
        return 4
    if device.type == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    distribution, slug = HEADS[arguments.head]
    if distribution == "transformer-engine":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "te_fused_ce"))
        importlib.import_module("stand_in").install()
    if arguments.variant == "mitigated":
        os.environ.setdefault("PATCHBENCH_MITIGATE", slug)
        importlib.import_module("patchbench_mitigations.auto")
    sizes = FULL if device.type == "cuda" else SMALL
    is_cuda, head = device.type == "cuda", "op" if arguments.variant == "ops" else arguments.head
    siso, attend = cuda_kernels(arguments.variant, sizes) if is_cuda else (siso_reference, op_attention(sizes))
    made_of = revisions(is_cuda, distribution)
    if head == "op":
        library = importlib.import_module("patchbench_ops.library").path()
        made_of["patchbench_ops"] = f"{library.name} {hashlib.sha256(library.read_bytes()).hexdigest()}"
    if arguments.siso == "reference":
        siso = siso_reference
    elif is_cuda:
        print(json.dumps({"siso_against_reference": siso_errors(sizes, siso, device)}), flush=True)
    for seed in arguments.seed:
        watched = {"siso": Watched(siso), "sparse_attention": Watched(attend)}
        kernels = tuple(watched.values()) if arguments.shares else (siso, attend)
        run = Run(sizes, device, kernels, head, arguments.steps, seed)
        run.train(arguments.capture)
        report = report_of(run, arguments.variant, made_of)
        for path, made in ((arguments.report, report), (arguments.losses, losses_of(run, arguments.variant, report))):
            if path:
                path_for(path, seed).write_text(json.dumps(made) + "\n")
        if arguments.shares:
            arguments.shares.write_text(json.dumps(shares_of(run, watched, report), indent=2) + "\n")
        tail = statistics.mean(run.losses[-50:])
        print(f"{arguments.variant} seed {seed}: loss {run.losses[0]:.4f}, over the last 50 steps {tail:.4f}; {run.wall:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
