"""Four stacked layers around one op in bfloat16: is the direction of every gradient as good as with plain torch?

    PATCHBENCH_OPS_LIB=LIB python3 repro/training/model_slice.py [--device cuda:0] [--op NAME]

A layer is x + W_out op(W_in rms_norm(x)); the loss is a fixed inner product with the last x (flce: the op itself, over four blocks
without it). The same weights and inputs go through three stacks: plain torch in float64, plain torch in bfloat16, and the op in
bfloat16. The error of a gradient is 1 - cos(angle to the float64 one), the mean over layers and seeds: one draw of a weight with few
numbers says little. An op passes where each of its errors is at most 2 x the plain bfloat16 one + 2^-18, the square of what one
rounding to bfloat16 turns a gradient by.
Prints one JSON document. Exit: 0 all pass, 1 one does not, 4 no such device.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

NUM_LAYERS, NUM_SEEDS, FACTOR, FLOOR = 4, 4, 2.0, 2.0**-18
Weights = dict[str, torch.Tensor]
#: The op's inputs of one layer, in the dtype of the stack, to what the layer adds before W_out.
Compute = Callable[..., torch.Tensor]


class Sizes(NamedTuple):
    batch: int
    seqlen: int
    hidden: int
    heads: int
    columns: int  # of a key
    values: int  # of a value
    ranks: int
    groups: int
    topk: int
    vocab: int


SMALL = Sizes(2, 48, 64, 4, 64, 32, 4, 2, 16, 96)
FULL = {
    "sparse_mla": Sizes(2, 1024, 2048, 64, 576, 512, 1, 1, 256, 0),
    "flce": Sizes(4, 2048, 4096, 1, 64, 64, 1, 1, 0, 32000),
    "mamba3_siso": Sizes(1, 2048, 2048, 32, 128, 64, 1, 1, 0, 0),
    "mamba3_mimo": Sizes(1, 512, 2048, 32, 128, 64, 4, 8, 0, 0),
    "mamba3_mimo_qk_dot": Sizes(1, 1024, 2048, 32, 128, 64, 4, 8, 0, 0),
}


class Op(NamedTuple):
    shapes: Callable[[Sizes], dict[str, tuple[int, ...]]]  # of one layer's weights, W_out last
    inputs: Callable[[torch.Tensor, Weights, Sizes], dict[str, Any]]
    plain: Compute
    op: Compute


def wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


# ---- sparse attention ----
def sparse_inputs(x: torch.Tensor, w: Weights, sizes: Sizes) -> dict[str, Any]:
    q = (x @ w["q"]).unflatten(-1, (sizes.heads, sizes.columns))
    gen = torch.Generator().manual_seed(3)
    keys = torch.rand(sizes.batch, sizes.seqlen, sizes.seqlen, generator=gen).argsort(-1)[..., : sizes.topk]
    keys[:, ::5, -1] = -1
    return {"q": q, "kv": (x @ w["kv"]).unsqueeze(2), "keys": keys.unsqueeze(2).int().to(x.device), "values": sizes.values}


def sparse_plain(q: torch.Tensor, kv: torch.Tensor, keys: torch.Tensor, values: int) -> torch.Tensor:
    rows = torch.arange(len(q), device=q.device).view(-1, 1, 1)
    taken = kv[rows, keys.squeeze(2).clamp_min(0).long(), 0]
    z = wide(torch.einsum("bshd,bskd->bshk", q, taken)) * q.shape[-1] ** -0.5
    weights = z.masked_fill(keys < 0, -math.inf).softmax(-1).to(q.dtype)
    return torch.einsum("bshk,bskd->bshd", weights, taken[..., :values]).flatten(2)


def sparse_op(q: torch.Tensor, kv: torch.Tensor, keys: torch.Tensor, values: int) -> torch.Tensor:
    scale = q.shape[-1] ** -0.5
    return load_ops().sparse_mla(q, kv, keys, softmax_scale=scale, head_dim_v=values)[0].flatten(2)


# ---- scans ----
def steps_of(x: torch.Tensor, w: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """dt and adt [batch, heads, seqlen]: steps above 0 and their log decays below 0."""
    dt = F.softplus(wide(x @ w["dt"]) - 2).transpose(1, 2)
    return dt, -dt


def decays(adt: torch.Tensor) -> torch.Tensor:
    """exp of the sum of adt from behind j up to i, for i > j; 0 elsewhere."""
    total = adt.cumsum(-1)
    before = torch.ones(adt.shape[-1], adt.shape[-1], dtype=torch.bool, device=adt.device).tril(-1)
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~before, -math.inf).exp()


def siso_inputs(x: torch.Tensor, w: Weights, sizes: Sizes) -> dict[str, Any]:
    def heads(name: str, width: int) -> torch.Tensor:
        return (x @ w[name]).unflatten(-1, (sizes.heads, width))

    dot = wide(x @ w["dot"]).transpose(1, 2)
    one = {"q": heads("q", sizes.columns), "k": heads("k", sizes.columns) * sizes.columns**-0.5, "v": heads("v", sizes.values)}
    return one | {"adt": steps_of(x, w)[1], "qk_dot": dot, "d": wide(w["d"])}


def siso_plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, adt: torch.Tensor, qk_dot: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    mixed = wide(torch.einsum("bthn,bshn->bhts", q, k)) * decays(adt) + torch.diag_embed(qk_dot + d.view(1, -1, 1))
    return torch.einsum("bhts,bshp->bthp", mixed.to(v.dtype), v).flatten(2)


def siso_op(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, adt: torch.Tensor, qk_dot: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return load_ops().mamba3_siso(q, k, v, adt, qk_dot, d, None, 64)[0].flatten(2)


def mimo_inputs(x: torch.Tensor, w: Weights, sizes: Sizes) -> dict[str, Any]:
    groups = (sizes.ranks, sizes.groups, sizes.columns)
    q, k = ((x @ w[name]).unflatten(-1, groups) for name in ("q", "k"))
    v, z = ((x @ w[name]).unflatten(-1, (sizes.heads, sizes.values)) for name in ("v", "z"))
    dt, adt = steps_of(x, w)
    more = {name: wide(w[name]) for name in ("q_bias", "k_bias", "mimo_v", "mimo_z", "mimo_o", "d")}
    turn = wide(x @ w["turn"]).tanh().unflatten(-1, (sizes.heads, -1)) * dt.transpose(1, 2).unsqueeze(-1)
    return {"q": q, "k": k * sizes.columns**-0.5, "v": v, "adt": adt, "dt": dt, "trap": (x @ w["trap"]).transpose(1, 2),
            "angles": turn.cumsum(1), "z": z} | more  # fmt: skip


def to_heads(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """[b, s, r, g, n] and its bias [h, r, n] to [b, s, r, h, n]."""
    return wide(x).repeat_interleave(len(bias) // x.shape[3], 3) + bias.transpose(0, 1)


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Pairs (n, half + n) of [b, s, r, h, n] turned by angles [b, s, h, a]; those beyond a stay."""
    a, b = x.chunk(2, -1)
    turn = F.pad(angles, (0, a.shape[-1] - angles.shape[-1])).unsqueeze(2)
    return torch.cat([a * turn.cos() - b * turn.sin(), a * turn.sin() + b * turn.cos()], -1)


def mimo_plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, adt: torch.Tensor, dt: torch.Tensor, trap: torch.Tensor, q_bias: torch.Tensor,
    k_bias: torch.Tensor, mimo_v: torch.Tensor, mimo_z: torch.Tensor, mimo_o: torch.Tensor, angles: torch.Tensor, d: torch.Tensor,
    z: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The recurrence of packs/mamba3_mimo_gqa_bwd/op.h as one product over all pairs of tokens."""
    low = q.dtype
    q, k = (turned(to_heads(one, bias), angles).to(low) for one, bias in ((q, q_bias), (k, k_bias)))
    x = (wide(v).unsqueeze(2) * mimo_v.transpose(0, 1)).to(low)
    share = wide(trap).sigmoid()
    now, later = dt * share, F.pad((dt * (1 - share))[..., 1:], (0, 1))
    scale = decays(adt) * (now + later).unsqueeze(-2) + torch.diag_embed(now)
    mixed = wide(torch.einsum("btrhn,bsuhn->bhtrsu", q, k)) * scale[:, :, :, None, :, None]
    y = wide(torch.einsum("bhtrsu,bsuhp->btrhp", mixed.to(low), x)) + d.unsqueeze(-1) * wide(x)
    gate = F.silu(wide(z).unsqueeze(2) * mimo_z.transpose(0, 1))
    return (y * gate * mimo_o.transpose(0, 1)).sum(2).to(low)


class MimoOp(torch.autograd.Function):
    """The plain forward; the op is its backward."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return mimo_plain(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z = ctx.saved_tensors
        return torch.ops.patchbench.mamba3_mimo_bwd(
            q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z, None, grad
        )


MIMO_ORDER = ("q", "k", "v", "adt", "dt", "trap", "q_bias", "k_bias", "mimo_v", "mimo_z", "mimo_o", "angles", "d", "z")


# ---- products within a token ----
def dot_inputs(x: torch.Tensor, w: Weights, sizes: Sizes) -> dict[str, Any]:
    groups = (sizes.ranks, sizes.groups, sizes.columns)
    q, k = ((x @ w[name]).unflatten(-1, groups) for name in ("q", "k"))
    return {"q": q, "k": k * sizes.columns**-0.5, "q_bias": wide(w["q_bias"]), "k_bias": wide(w["k_bias"])}


def by_token(dot: torch.Tensor) -> torch.Tensor:
    return dot.permute(0, 2, 1, 3, 4).flatten(2)


def dot_plain(q: torch.Tensor, k: torch.Tensor, q_bias: torch.Tensor, k_bias: torch.Tensor) -> torch.Tensor:
    low = q.dtype
    return by_token(torch.einsum("bsrhn,bsuhn->bhsru", to_heads(q, q_bias).to(low), to_heads(k, k_bias).to(low)))


def dot_op(q: torch.Tensor, k: torch.Tensor, q_bias: torch.Tensor, k_bias: torch.Tensor) -> torch.Tensor:
    return by_token(load_ops().mamba3_mimo_qk_dot(q, k, q_bias, k_bias))


# ---- the loss head ----
def head_plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(wide(hidden @ weight.T), target, reduction="none")


def head_op(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.ops.patchbench.flce(hidden, weight, target, reduction="none")


def scan_shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    q, v = (s.hidden, s.heads * s.columns), (s.hidden, s.heads * s.values)
    return {"q": q, "k": q, "v": v, "dt": (s.hidden, s.heads), "dot": (s.hidden, s.heads), "d": (s.heads,), "out": v[::-1]}


def mimo_shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    q, v = (s.hidden, s.ranks * s.groups * s.columns), (s.hidden, s.heads * s.values)
    bias, mix, one = (s.heads, s.ranks, s.columns), (s.heads, s.ranks, s.values), (s.hidden, s.heads)
    return {"q": q, "k": q, "v": v, "z": v, "dt": one, "trap": one, "turn": (s.hidden, s.heads * s.columns // 4), "q_bias": bias,
            "k_bias": bias, "mimo_v": mix, "mimo_z": mix, "mimo_o": mix, "d": (s.heads,), "out": v[::-1]}  # fmt: skip


def dot_shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    q, bias = (s.hidden, s.ranks * s.groups * s.columns), (s.heads, s.ranks, s.columns)
    return {"q": q, "k": q, "q_bias": bias, "k_bias": bias, "out": (s.heads * s.ranks**2, s.hidden)}


def sparse_shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    return {"q": (s.hidden, s.heads * s.columns), "kv": (s.hidden, s.columns), "out": (s.heads * s.values, s.hidden)}


def block_shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    return {"in": (s.hidden, s.hidden), "out": (s.hidden, s.hidden)}


def block(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)


OPS = {
    "sparse_mla": Op(sparse_shapes, sparse_inputs, sparse_plain, sparse_op),
    "flce": Op(block_shapes, lambda x, w, _: {"x": x @ w["in"]}, block, block),
    "mamba3_siso": Op(scan_shapes, siso_inputs, siso_plain, siso_op),
    "mamba3_mimo": Op(
        mimo_shapes, mimo_inputs, lambda **i: mimo_plain(**i).flatten(2),
        lambda **i: MimoOp.apply(*(i[name] for name in MIMO_ORDER)).flatten(2),
    ),
    "mamba3_mimo_qk_dot": Op(dot_shapes, dot_inputs, dot_plain, dot_op),
}  # fmt: skip


def weights_of(name: str, sizes: Sizes, device: str, seed: int) -> Weights:
    """Every weight of the stack: values of bfloat16, in float64. Matrices have 1 / (number of rows) as their variance."""
    gen = torch.Generator().manual_seed(seed)
    made: Weights = {}
    for layer in range(NUM_LAYERS):
        for key, shape in OPS[name].shapes(sizes).items():
            scale = shape[0] ** -0.5 if len(shape) == 2 else 0.5
            made[f"{layer}.{key}"] = (scale * torch.randn(shape, generator=gen)).bfloat16().double().to(device)
    made["x"] = torch.randn(sizes.batch, sizes.seqlen, sizes.hidden, generator=gen).bfloat16().double().to(device)
    if name == "flce":
        made["head"] = (sizes.hidden**-0.5 * torch.randn(sizes.vocab, sizes.hidden, generator=gen)).bfloat16().double().to(device)
    return made


def gradients(name: str, sizes: Sizes, weights: Weights, dtype: torch.dtype, is_op: bool) -> Weights:
    """The gradient of the loss by every weight and by the first x."""
    op = OPS[name]
    leaves = {key: one.to(dtype).requires_grad_() for key, one in weights.items()}
    x = leaves["x"]
    for layer in range(NUM_LAYERS):
        w = {key.split(".")[1]: one for key, one in leaves.items() if key.startswith(f"{layer}.")}
        inputs = op.inputs(F.rms_norm(x, x.shape[-1:]), w, sizes)
        x = x + (op.op if is_op else op.plain)(**inputs) @ w["out"]
    gen = torch.Generator().manual_seed(11)
    if name == "flce":
        target = torch.randint(sizes.vocab, (sizes.batch * sizes.seqlen,), generator=gen).to(x.device)
        losses = (head_op if is_op else head_plain)(F.rms_norm(x, x.shape[-1:]).flatten(0, 1), leaves["head"], target)
        given = torch.rand(losses.shape, generator=gen).to(x.device)
    else:
        losses, given = x, torch.randn(x.shape, generator=gen).bfloat16().to(x.device)
    found = torch.autograd.grad((wide(losses) * given.to(wide(losses).dtype)).sum(), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def turned_away(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """1 - cosine; 2 where either is not a number or one alone is 0."""
    a, b = got.double().flatten(), wanted.flatten()
    size = (a.norm() * b.norm()).item()
    if size == 0 or not math.isfinite(size):
        return 0.0 if bool((a == b).all()) else 2.0
    return max(0.0, 1 - (a @ b).item() / size)


def measured(name: str, sizes: Sizes, device: str) -> dict[str, Any]:
    seen: dict[str, list[tuple[float, float]]] = {}  # weight -> (of the op, of plain bfloat16)
    for seed in range(NUM_SEEDS):
        weights = weights_of(name, sizes, device, seed)
        wanted = gradients(name, sizes, weights, torch.float64, False)
        plain, ours = (gradients(name, sizes, weights, torch.bfloat16, is_op) for is_op in (False, True))
        for key, one in wanted.items():
            seen.setdefault(key.split(".")[-1], []).append((turned_away(ours[key], one), turned_away(plain[key], one)))
    errors = {key: [float(f"{statistics.mean(column):.3g}") for column in zip(*pairs, strict=True)] for key, pairs in seen.items()}
    passes = all(ours <= FACTOR * plain + FLOOR for ours, plain in errors.values())
    return {"op": name, "sizes": sizes._asdict(), "passes": passes, "errors [op, plain]": errors}


def load_ops() -> ModuleType:
    """patchbench_ops over the library that PATCHBENCH_OPS_LIB names."""
    folder = str(Path(__file__).resolve().parents[2] / "packs" / "python")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("patchbench_ops")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--op", action="append", choices=OPS)
    options = parser.parse_args(words)
    is_cuda = options.device.startswith("cuda")
    if is_cuda and not torch.cuda.is_available():
        print("model_slice.py: no CUDA device on this machine; --device cpu takes smaller layers", file=sys.stderr)
        return 4
    load_ops()
    rows = [measured(name, FULL[name] if is_cuda else SMALL, options.device) for name in options.op or OPS]
    device = torch.cuda.get_device_name() if is_cuda else "cpu"
    about = {"layers": NUM_LAYERS, "seeds": NUM_SEEDS, "error": "1 - cosine", "limit": f"{FACTOR:g} x plain + 2^-18", "device": device}
    print(json.dumps(about | {"torch": torch.__version__, "ops": rows}, indent=1))
    return 0 if all(row["passes"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
