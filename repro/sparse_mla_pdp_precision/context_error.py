"""dQ and dKV of the installed megatron-core's real sparse-MLA backward on a GPU, against fp64, over the length of the context.

    PYTHONPATH=TREE:repro/bench python3 context_error.py --oracle FILE [--contexts 1024,4096] [--data iid,sink] [--heads 128]
        [--topk 2048]
        [--captured LAYER.pt ...]

Every position is a query. Data and indices are drawn as arithmetic.h draws them (other numbers). dQ is compared on 16 queries
spread over the context, dKV on the 4 keys that every query selects and on 8 drawn ones, with the terms of all queries; errors are
||got - wanted|| / ||wanted||. `cast` is what rounding the fp64 answer to bf16 leaves. FILE holds the fp64 answers: written where it
lacks them, so that a second tree is set against the same ones. Prints one JSON document.

`--captured` takes what train_hybrid.py kept of an attention layer instead of drawn data: all queries, the 4 keys that most
queries select and 64 others. Each row also says what the data are like: kappa as in sweep.h, how far Delta from an output rounded to
bf16 is off, the share of the keys' energy that is their mean, and the mean over queries and heads of the largest weight.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from device_time import need_cuda

WIDTH, VALUES, SINKS, DRAWN, CAPTURED_DRAWN, QUERIES, CHUNK = 576, 512, 4, 8, 64, 16, 32
KINDS = ("iid", "mean", "sink", "cancel")


class Problem(NamedTuple):
    q: torch.Tensor  # [context, heads, 576] bf16
    kv: torch.Tensor  # [context, 576] bf16
    grad_out: torch.Tensor  # [context, heads, 512] bf16
    indices: torch.Tensor  # [context, topk] int32
    keys: torch.Tensor  # the tracked ones
    queries: torch.Tensor  # the sampled ones
    scale: float = WIDTH**-0.5
    about: dict[str, object] = {}  # of captured tensors


def drawn(data: str, context: int, heads: int, topk: int) -> Problem:
    gen = torch.Generator(device="cuda").manual_seed(14 + context)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=gen, device="cuda", dtype=torch.bfloat16)

    q, kv, grad_out = normal(context, heads, WIDTH), normal(context, WIDTH), normal(context, heads, VALUES)
    if data in ("mean", "cancel"):
        q += normal(heads, WIDTH)
        grad_out += normal(heads, VALUES)
    if data == "mean":
        kv += 2 * normal(WIDTH)
    if data == "cancel":
        grad_out[::2].neg_()
    if data == "sink":
        direction = normal(WIDTH).sign()
        kv[0] += 2 * direction
        q += 14 / (2 * math.sqrt(WIDTH)) * direction
    position, slot = torch.arange(context, device="cuda").unsqueeze(1), torch.arange(topk, device="cuda")
    draw = torch.randint(0, 2**31, (context, topk), generator=gen, device="cuda")
    late = torch.where(slot < SINKS, slot, SINKS + draw % (position + 1 - SINKS).clamp_min(1))
    indices = torch.where(position < topk, torch.where(slot <= position, slot, -1), late).int()
    shuffled = torch.randperm(context // 4 - SINKS, generator=torch.Generator().manual_seed(1))
    keys = torch.cat([torch.arange(SINKS), SINKS + shuffled[:DRAWN]])
    return Problem(q, kv, grad_out, indices, keys.cuda(), torch.linspace(1, context - 1, QUERIES).long().cuda())


def described(x: torch.Tensor) -> str:
    """Shape, dtype and SHA-256 of the contiguous bytes."""
    digest = hashlib.sha256(x.contiguous().view(torch.uint8).cpu().numpy()).hexdigest()
    return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')} {digest}"


def captured(path: Path) -> Problem:
    """The operands that a run kept of one layer. ValueError if they are not of the kernels' widths."""
    kept = torch.load(path, map_location="cuda")
    q, kv, indices = kept["q"], kept["kv"].squeeze(1), kept["indices"].squeeze(1)
    if (q.shape[-1], kept["grad_out"].shape[-1]) != (WIDTH, VALUES):
        raise ValueError(f"{path}: widths {q.shape[-1]} and {kept['grad_out'].shape[-1]}, not {WIDTH} and {VALUES}")
    often = indices[indices >= 0].bincount(minlength=len(kv))
    sinks = often.topk(SINKS).indices
    others = often.index_fill(0, sinks, 0).nonzero().flatten()
    drawn_ones = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(1))[:CAPTURED_DRAWN].cuda()]
    every = torch.arange(len(q), device="cuda")
    about = {"tensors": {name: described(one) for name, one in sorted(kept.items()) if isinstance(one, torch.Tensor)}}
    return Problem(q, kv, kept["grad_out"], indices, torch.cat([sinks, drawn_ones]), every, kept["scale"], about)


def slopes_of(p: Problem, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """P and dS [rows, heads, topk], and the keys [rows, topk, 576], in fp64."""
    index, scale = p.indices[rows].long(), p.scale
    k = p.kv.double()[index.clamp_min(0).flatten()].unflatten(0, index.shape)
    z = torch.bmm(p.q[rows].double(), k.transpose(1, 2)) * scale
    weights = z.masked_fill_((index < 0).unsqueeze(1), -math.inf).softmax(-1)
    g = torch.bmm(p.grad_out[rows].double(), k[..., :VALUES].transpose(1, 2))
    return weights, scale * weights * (g - (weights * g).sum(-1, keepdim=True)), k


def answer(p: Problem) -> dict[str, torch.Tensor]:
    """grad_q of the sampled queries and grad_kv of the tracked keys, fp64."""
    grad_kv = torch.zeros(len(p.keys), WIDTH, dtype=torch.float64, device="cuda")
    for rows in torch.arange(len(p.q), device="cuda").split(CHUNK):
        weights, slopes, _ = slopes_of(p, rows)
        is_key = (p.indices[rows].unsqueeze(-1) == p.keys).double()
        grad_kv += torch.einsum("shk,shd->kd", torch.bmm(slopes, is_key), p.q[rows].double())
        grad_kv[:, :VALUES] += torch.einsum("shk,shd->kd", torch.bmm(weights, is_key), p.grad_out[rows].double())
    _, slopes, k = slopes_of(p, p.queries)
    return {"grad_q": torch.bmm(slopes, k).cpu(), "grad_kv": grad_kv.cpu()}


def likeness(p: Problem, grad_kv: torch.Tensor) -> dict[str, float]:
    """What the data are like: see the module's text. `grad_kv` is the answer's, of the tracked keys."""
    squares = torch.zeros(len(p.keys), dtype=torch.float64, device="cuda")
    off = total = largest = 0.0
    for rows in torch.arange(len(p.q), device="cuda").split(CHUNK):
        weights, slopes, k = slopes_of(p, rows)
        terms = (slopes * p.q[rows].double().norm(dim=-1, keepdim=True)).square()
        terms += (weights * p.grad_out[rows].double().norm(dim=-1, keepdim=True)).square()
        squares += torch.einsum("shj,sjk->k", terms, (p.indices[rows].unsqueeze(-1) == p.keys).double())
        out, grad = torch.bmm(weights, k[..., :VALUES]), p.grad_out[rows].double()
        delta = (out * grad).sum(-1)
        off += ((out.bfloat16().double() * grad).sum(-1) - delta).square().sum().item()
        total += delta.square().sum().item()
        largest += weights.amax(-1).sum().item()
    found = {"delta off by": (off / total) ** 0.5, "largest weight": largest / p.q[..., 0].numel()}
    found["share of the mean"] = (p.kv.double().mean(0).square().sum() / p.kv.double().square().sum(-1).mean()).item()
    for name, part in (("sinks", slice(SINKS)), ("drawn keys", slice(SINKS, None))):
        found[f"kappa of {name}"] = (squares[part].sum().sqrt().cpu() / grad_kv[part].norm()).item()
    return {name: float(f"{value:.3g}") for name, value in found.items()}


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(f"{((got.double() - wanted).norm() / wanted.norm()).item():.3g}")


def row_of(p: Problem, wanted: dict[str, torch.Tensor]) -> dict[str, float]:
    from megatron.core.transformer.experimental_attention_variant.ops.sparse_mla import SparseMLA

    q, kv = p.q.detach().requires_grad_(), p.kv.unsqueeze(1).detach().requires_grad_()
    out, _ = SparseMLA.apply(q, kv, p.indices.unsqueeze(1), p.scale)
    out.backward(p.grad_out)
    got = {"grad_q": q.grad[p.queries].cpu(), "grad_kv": kv.grad.squeeze(1)[p.keys].cpu()}
    parts = {"grad_q": ("grad_q", slice(None)), "grad_kv of the sinks": ("grad_kv", slice(SINKS))}
    parts["grad_kv of drawn keys"] = ("grad_kv", slice(SINKS, None))
    row = {name: relative(got[tensor][part], wanted[tensor][part]) for name, (tensor, part) in parts.items()}
    casts = {f"cast of {name}": relative(wanted[t][part].bfloat16(), wanted[t][part]) for name, (t, part) in parts.items()}
    return row | casts


def problems(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Problem]]]:
    """Each problem that was asked for: its name among the answers, and how it is made."""
    if arguments.captured:
        yield from ((path.stem, functools.partial(captured, path)) for path in arguments.captured)
        return
    heads, topk = arguments.heads, arguments.topk
    for data, context in itertools.product(arguments.data.split(","), map(int, arguments.contexts.split(","))):
        yield f"{data} {context} {heads} {topk}", functools.partial(drawn, data, context, heads, topk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", type=Path, required=True, help="file of the fp64 answers")
    parser.add_argument("--contexts", default="1024,2048,4096,8192,16384,32768,65536")
    parser.add_argument("--data", default=",".join(KINDS))
    parser.add_argument("--heads", type=int, default=128)
    parser.add_argument("--topk", type=int, default=2048)
    parser.add_argument("--captured", type=Path, nargs="+", default=[], metavar="LAYER.pt", help="instead of drawn data")
    arguments = parser.parse_args()
    need_cuda()
    os.environ["MCORE_DSA_TILELANG_SEQ_BUCKET"] = "1"
    answers = torch.load(arguments.oracle) if arguments.oracle.exists() else {}
    rows = []
    for name, make in problems(arguments):
        p = make()
        if name not in answers:
            answers[name] = answer(p)
            answers[name]["likeness"] = likeness(p, answers[name]["grad_kv"])
            torch.save(answers, arguments.oracle)
        rows.append({"data": name.split()[0], "context": len(p.q), **row_of(p, answers[name]), **answers[name]["likeness"], **p.about})
        print(rows[-1], file=sys.stderr, flush=True)
        del p
    shape = {} if arguments.captured else {"heads": arguments.heads, "topk": arguments.topk}
    shape |= {"head_dim_qk": WIDTH, "head_dim_v": VALUES}
    about = {"device": torch.cuda.get_device_name(), "tilelang": importlib.metadata.version("tilelang")}
    print(json.dumps({**about, **shape, "rows": rows}))


if __name__ == "__main__":
    main()
