"""Makes the real Mamba-3 MIMO backward callable without TileLang: real host functions and Triton kernels, two kernels of ours.

* `mamba_ssm`: its `__init__` imports compiled extensions, so the package is entered without it; every module below is real.
* The packages of ABSENT are imported by these modules; tilelang is used for the kernels alone, of einops one function by the
  layer. An installed one is never hidden.
* The two TileLang kernel factories, dense and varlen, return kernels that compute in fp64, token rows against token rows within a
  chunk and a state between chunks, and round each output once, to its buffer's dtype. Where TileLang is installed and a GPU is
  used, the real ones stay.
* Triton's CPU interpreter has no clock to tune by: there each autotuned kernel keeps its first configuration.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from absent import enter_without_init, optional_module, stand_in_for

ABSENT = ("einops", "tilelang")
HOSTS = ("mamba3_mimo_bwd", "mamba3_mimo_bwd_varlen")
HELPERS = "mamba_ssm.ops.triton.mamba3.mamba3_mimo_utils"

Tensors = dict[str, torch.Tensor | None]


@dataclass
class Span:
    """A chunk of one sequence: its tokens, its number among all chunks, and whether it is the sequence's first."""

    tokens: slice
    chunk_idx: int
    sequence_idx: int
    is_first: bool


@dataclass
class Chunk:
    """One chunk in fp64 for all of [b, h]; "rows" are its (token, rank) pairs, flat, "decay" is exp of a sum of adt."""

    q: torch.Tensor  # [token, rank, d], before the rotation, as k
    k: torch.Tensor
    q_rows: torch.Tensor  # [row, d], rotated, as k_rows
    k_rows: torch.Tensor
    x_rows: torch.Tensor  # [row, d_v], v times mimo_v
    grad_rows: torch.Tensor  # [row, d_v], the gradient of the gate's input
    angles: torch.Tensor  # [token, 1, angle]
    own_scale: torch.Tensor  # [token], dt * sigmoid(trap)
    key_scale: torch.Tensor  # [row, 1], own_scale plus what the next token takes of this one
    decay: torch.Tensor  # [row, row], from the column's token to the row's, 0 unless that is a later one
    decay_from_start: torch.Tensor  # [row, 1]
    decay_to_end: torch.Tensor  # [row, 1]
    decay_whole: torch.Tensor  # [1, 1]

    @property
    def qk_dot(self) -> torch.Tensor:
        """[token, rank of q, rank of k]."""
        return self.q @ self.k.transpose(-1, -2)

    def by_token(self, values: torch.Tensor) -> torch.Tensor:
        """[row, d] -> [token, rank, d]."""
        return values.unflatten(2, self.q.shape[2:4])

    def per_token(self, values: torch.Tensor) -> torch.Tensor:
        """[row, d] -> [token], summed over everything else."""
        return self.by_token(values).sum((-1, -2))


def spans(words: Tensors) -> list[Span]:
    """The chunks in order; a packed sequence's first one is numbered start // chunk + the sequence's index."""
    seqlen, chunk = words["Q"].shape[1], words["SEGSUM"].shape[-1]
    cu_seqlens = words.get("CU_SEQLENS")
    bounds = [0, seqlen] if cu_seqlens is None else cu_seqlens.tolist()
    made = []
    for sequence_idx, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        first_idx = start // chunk + sequence_idx
        for number, begin in enumerate(range(start, stop, chunk)):
            made.append(Span(slice(begin, min(begin + chunk, stop)), first_idx + number, sequence_idx, number == 0))
    return made


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turns each pair (x[n], x[n + d / 2]), n < the number of angles, by its angle; the other elements stay."""
    count, half = angles.shape[-1], x.shape[-1] // 2
    low, high = x[..., :count], x[..., half : half + count]
    made = x.clone()
    made[..., :count] = low * angles.cos() - high * angles.sin()
    made[..., half : half + count] = low * angles.sin() + high * angles.cos()
    return made


def grad_angles(turned: torch.Tensor, grad_turned: torch.Tensor, count: int) -> torch.Tensor:
    """The gradient by each pair's angle, from the rotated values: there d low / d angle = -high and d high / d angle = low."""
    half = turned.shape[-1] // 2
    low, high = turned[..., :count], turned[..., half : half + count]
    return low * grad_turned[..., half : half + count] - high * grad_turned[..., :count]


def token_scales(words: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """[b, h, s]: what token t takes of its own input, and that plus what token t + 1 of the same sequence takes of it."""
    dt, weight = words["DT"].double(), torch.sigmoid(words["TRAP"].double())
    taken_later = torch.zeros_like(dt)
    taken_later[..., :-1] = (dt * (1 - weight))[..., 1:]
    for span in spans(words):
        if span.is_first and span.tokens.start > 0:
            taken_later[..., span.tokens.start - 1] = 0
    return dt * weight, dt * weight + taken_later


def per_head(words: Tensors, name: str, tokens: slice) -> torch.Tensor:
    """q or k of the tokens with its bias, [b, h, token, rank, d]: head h reads group h // (heads per group)."""
    grouped, num_heads = words[name][:, tokens].double(), words["V"].shape[2]
    num_groups = grouped.shape[3]
    group = torch.arange(num_heads, device=grouped.device) // max(num_heads // num_groups, 1)
    # Where num_groups does not divide, the compiled kernel reads past the end; here the last group is read. Both are wrong.
    heads = grouped[:, :, :, group.clamp(max=num_groups - 1)].permute(0, 3, 1, 2, 4)
    return heads + words[f"{name}_BIAS"].double()[:, None]


def per_rank(words: Tensors, name: str, factor: str, tokens: slice) -> torch.Tensor:
    """[b, s, h, d_v] times a factor [h, rank, d_v], as [b, h, token, rank, d_v]."""
    return words[name][:, tokens].double().permute(0, 2, 1, 3)[:, :, :, None] * words[factor].double()[:, None]


def gate_and_grad(words: Tensors, tokens: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """silu of z times mimo_z, and the gradient of the gated output, [b, h, token, rank, d_v]."""
    if words["MIMO_O"] is not None:
        grad = per_rank(words, "DOUT", "MIMO_O", tokens)
    else:
        grad = words["DOUT"][:, tokens].double().permute(0, 3, 1, 2, 4)
    if words["Z"] is None:
        return torch.ones_like(grad), grad
    return torch.nn.functional.silu(per_rank(words, "Z", "MIMO_Z", tokens)), grad


def chunk_of(words: Tensors, span: Span, scales: tuple[torch.Tensor, torch.Tensor]) -> Chunk:
    """The chunk's operands; the decays come from the sums that the real Triton helper made."""
    tokens, num_ranks = span.tokens, words["Q"].shape[2]
    length = tokens.stop - tokens.start

    def per_row(values: torch.Tensor) -> torch.Tensor:
        return values[:, :, tokens].double().repeat_interleave(num_ranks, 2)[..., None]

    q, k = per_head(words, "Q", tokens), per_head(words, "K", tokens)
    angles = words["ANGLES"][:, tokens].double().permute(0, 2, 1, 3)[:, :, :, None]
    gate, grad = gate_and_grad(words, tokens)
    pairwise = words["SEGSUM"][:, :, span.chunk_idx, :length, :length].double().exp().tril(-1)
    own_scale, key_scale = scales
    return Chunk(
        q=q, k=k,
        q_rows=rotated(q, angles).flatten(2, 3), k_rows=rotated(k, angles).flatten(2, 3),
        x_rows=per_rank(words, "V", "MIMO_V", tokens).flatten(2, 3), grad_rows=(gate * grad).flatten(2, 3),
        angles=angles, own_scale=own_scale[:, :, tokens], key_scale=per_row(key_scale),
        decay=pairwise.repeat_interleave(num_ranks, 2).repeat_interleave(num_ranks, 3),
        decay_from_start=per_row(words["DA_CS"]).exp(), decay_to_end=per_row(words["DA_CS_REV"]).exp(),
        decay_whole=words["DA_CS"][:, :, tokens.stop - 1].double().exp()[..., None, None],
    )  # fmt: skip


def scan(words: Tensors) -> Iterator[tuple[Span, Chunk, torch.Tensor]]:
    """Each chunk with the state [b, h, d, d_v] that it begins with."""
    batch, _, num_heads, head_dim_v = words["V"].shape
    scales = token_scales(words)
    zero = words["V"].new_zeros((batch, num_heads, words["Q"].shape[-1], head_dim_v), dtype=torch.float64)
    state = zero
    for span in spans(words):
        state = zero if span.is_first else state
        chunk = chunk_of(words, span, scales)
        yield span, chunk, state
        scaled = chunk.key_scale * chunk.decay_to_end * chunk.k_rows
        state = chunk.decay_whole * state + scaled.transpose(-1, -2) @ chunk.x_rows


class SequenceSums:
    """Sums over the tokens of each sequence, fp64, into buffers [b, h, ...] or, packed, [b, h, sequence, ...]."""

    def __init__(self, words: Tensors) -> None:
        self.words, self.sums = words, {}

    def add(self, name: str, span: Span, value: torch.Tensor) -> None:
        key = (name, span.sequence_idx)
        self.sums[key] = self.sums.get(key, 0) + value

    def store(self, *names: str) -> None:
        """Writes every sum; a sequence without tokens has zero."""
        for name in names:
            out = self.words[name]
            if out is None:
                continue
            out.zero_()
            is_packed = self.words.get("CU_SEQLENS") is not None
            for (summed, sequence_idx), value in self.sums.items():
                if summed == name:
                    (out[:, :, sequence_idx] if is_packed else out).copy_(value)


def forward_kernel(words: Tensors) -> None:
    """Writes STATES, QK_DOT, DZ, DMIMO_Z and DMIMO_O, the last three where the call has z and mimo_o."""
    sums = SequenceSums(words)
    skip = 0 if words["D"] is None else words["D"].double()[:, None, None]
    for span, chunk, state in scan(words):
        words["STATES"][:, :, span.chunk_idx] = state.to(words["STATES"].dtype)
        words["QK_DOT"][:, :, span.tokens] = chunk.qk_dot.to(words["QK_DOT"].dtype)
        scores = chunk.decay * (chunk.q_rows @ (chunk.key_scale * chunk.k_rows).transpose(-1, -2))
        rows = chunk.decay_from_start * (chunk.q_rows @ state) + scores @ chunk.x_rows + skip * chunk.x_rows
        own = chunk.own_scale[..., None, None] * (chunk.qk_dot @ chunk.by_token(chunk.x_rows))
        ungated = chunk.by_token(rows) + own
        gate, grad = gate_and_grad(words, span.tokens)
        if words["MIMO_O"] is not None:
            dout = words["DOUT"][:, span.tokens].double().permute(0, 2, 1, 3)[:, :, :, None]
            sums.add("DMIMO_O", span, (dout * gate * ungated).sum(2))
        if words["Z"] is not None:
            before = per_rank(words, "Z", "MIMO_Z", span.tokens)
            sigmoid = torch.sigmoid(before)
            grad_before = grad * ungated * sigmoid * (1 + before * (1 - sigmoid))
            z = words["Z"][:, span.tokens].double().permute(0, 2, 1, 3)[:, :, :, None]
            sums.add("DMIMO_Z", span, (grad_before * z).sum(2))
            grad_z = (grad_before * words["MIMO_Z"].double()[:, None]).sum(3)
            words["DZ"][:, span.tokens] = grad_z.permute(0, 2, 1, 3).to(words["DZ"].dtype)
    sums.store("DMIMO_O", "DMIMO_Z")


def backward_kernel(words: Tensors) -> None:
    """Writes the other gradients, chunk by chunk from the last; q and k per head, the decay in its raw pieces.

    STATES and QK_DOT are computed again, not read: they may be of a low precision, and each output shall be rounded once.
    """
    sums = SequenceSums(words)
    grad_state: torch.Tensor | None = None
    for span, chunk, state in reversed(list(scan(words))):
        grad_state = torch.zeros_like(state) if grad_state is None else grad_state
        store_chunk(words, sums, span, chunk, (state, grad_state))
        decayed = chunk.decay_from_start * chunk.q_rows
        earlier = chunk.decay_whole * grad_state + decayed.transpose(-1, -2) @ chunk.grad_rows
        grad_state = None if span.is_first else earlier
    sums.store("DMIMO_V", "DD")


def store_chunk(words: Tensors, sums: SequenceSums, span: Span, chunk: Chunk, states: tuple[torch.Tensor, torch.Tensor]) -> None:
    """One chunk's gradients, given the state that it begins with and the gradient of the one that it leaves."""
    state, grad_state = states
    keys, own_scale = chunk.key_scale * chunk.k_rows, chunk.own_scale[..., None, None]
    scores, grad_scores = chunk.q_rows @ keys.transpose(-1, -2), chunk.grad_rows @ chunk.x_rows.transpose(-1, -2)
    masked, grad_masked = chunk.decay * scores, chunk.decay * grad_scores
    x, grad_y = chunk.by_token(chunk.x_rows), chunk.by_token(chunk.grad_rows)
    grad_own = grad_y @ x.transpose(-1, -2)
    from_state, into_state = chunk.grad_rows @ state.transpose(-1, -2), chunk.x_rows @ grad_state.transpose(-1, -2)

    grad_q_rows = chunk.decay_from_start * from_state + grad_masked @ keys
    grad_keys = chunk.decay_to_end * into_state + grad_masked.transpose(-1, -2) @ chunk.q_rows
    grad_k_rows = chunk.key_scale * grad_keys
    grad_x = chunk.decay_to_end * (keys @ grad_state) + masked.transpose(-1, -2) @ chunk.grad_rows
    grad_x = chunk.by_token(grad_x) + own_scale * (chunk.qk_dot.transpose(-1, -2) @ grad_y)
    if words["D"] is not None:
        grad_x = grad_x + words["D"].double()[:, None, None, None] * grad_y
        sums.add("DD", span, (grad_y * x).sum((2, 3, 4)))
    v = words["V"][:, span.tokens].double().permute(0, 2, 1, 3)[:, :, :, None]
    sums.add("DMIMO_V", span, (grad_x * v).sum(2))

    grad_q = rotated(chunk.by_token(grad_q_rows), -chunk.angles) + own_scale * (grad_own @ chunk.k)
    grad_k = rotated(chunk.by_token(grad_k_rows), -chunk.angles) + own_scale * (grad_own.transpose(-1, -2) @ chunk.q)
    count = chunk.angles.shape[-1]
    turning = grad_angles(chunk.q_rows, grad_q_rows, count) + grad_angles(chunk.k_rows, grad_k_rows, count)
    for name, value in (("DQ", grad_q), ("DK", grad_k)):
        out = words[name].unflatten(1, words["Q"].shape[1:3])[:, span.tokens]
        out.copy_(value.permute(0, 2, 3, 1, 4))
    words["DV"][:, span.tokens].copy_((grad_x * words["MIMO_V"].double()[:, None]).sum(3).permute(0, 2, 1, 3))
    words["DANGLES"][:, span.tokens].copy_(chunk.by_token(turning).sum(3).permute(0, 2, 1, 3))

    words["DFACTOR"][:, :, span.tokens].copy_(chunk.per_token(chunk.k_rows * grad_keys))
    words["DGAMMA_DIAG"][:, :, span.tokens].copy_((chunk.qk_dot * grad_own).sum((-1, -2)))
    passed_on = (chunk.decay_whole * state * grad_state).sum((-1, -2))
    words["DDA"][:, :, span.tokens].copy_(passed_on[..., None].expand_as(chunk.own_scale))
    words["DDA_CS"][:, :, span.tokens].copy_(chunk.per_token(chunk.q_rows * from_state))
    words["DDA_CS_REV"][:, :, span.tokens].copy_(chunk.per_token(keys * into_state))
    length, num_ranks = chunk.q.shape[2:4]
    by_pair = (scores * grad_scores).unflatten(3, (length, num_ranks)).unflatten(2, (length, num_ranks)).sum((3, 5))
    words["DSSDA"][:, :, span.chunk_idx, :length, :length].copy_(by_pair.transpose(-1, -2))


KERNELS: dict[str, Callable[[Tensors], None]] = {"mamba_mimo_bwd_fwd": forward_kernel, "mamba_mimo_bwd_bwd": backward_kernel}


def tensor_names(module: types.ModuleType, factory: str) -> list[str]:
    """What the factory's own kernel calls its tensors, in order; releases differ in which there are."""
    tree = ast.parse(inspect.getsource(module))
    outer = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == factory)
    kernel = next(node for node in ast.walk(outer) if isinstance(node, ast.FunctionDef) and node is not outer)
    return [argument.arg for argument in kernel.args.args]


def with_ranks(words: Tensors) -> Tensors:
    """The tensors with axes of their own for ranks: a kernel whose tiles are flat takes q and k as [b, s * rank, g, d] and the
    products as [b, h, s, rank * rank]. Views, so that what is written arrives."""
    num_ranks = words["MIMO_V"].shape[1]
    folded = {"Q": (1, (-1, num_ranks)), "K": (1, (-1, num_ranks)), "QK_DOT": (3, (num_ranks, num_ranks))}
    for name, (axis, sizes) in folded.items():
        if words[name].dim() == 4:
            words[name] = words[name].unflatten(axis, sizes)
    return words


def replace_factory(module: types.ModuleType, factory: str, compute: Callable[[Tensors], None]) -> None:
    """From then on the module's factory returns `compute`, called with the tensors by name."""
    names = tensor_names(module, factory)

    def kernel(*tensors: torch.Tensor | None) -> None:
        compute(with_ranks(dict(zip(names, tensors, strict=True))))

    setattr(module, factory, lambda *_, **__: kernel)


def untune(module: types.ModuleType) -> None:
    """Leaves each autotuned kernel of the module its first configuration, which is then run without being timed."""
    from triton.runtime.autotuner import Autotuner

    for kernel in vars(module).values():
        if isinstance(kernel, Autotuner):
            kernel.configs = kernel.configs[:1]


def rearranged(x: torch.Tensor, pattern: str, **sizes: int) -> torch.Tensor:
    """einops.rearrange for named axes and groups of them in parentheses, at most one axis of a group without a size."""
    left, right = ([group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w+", side)] for side in pattern.split("->"))
    for place in reversed(range(len(left))):
        if len(left[place]) > 1:
            x = x.unflatten(place, [sizes.get(axis, -1) for axis in left[place]])
    names = [axis for group in left for axis in group]
    x = x.permute([names.index(axis) for group in right for axis in group])
    for place, group in enumerate(right):
        x = x.flatten(place, place + len(group) - 1)
    return x


def install() -> None:
    """Makes the host functions importable and their TileLang kernels ours; idempotent. Call before the package is imported."""
    has_kernels = torch.cuda.is_available() and importlib.util.find_spec("tilelang") is not None
    if not stand_in_for(ABSENT, {"einops": {"rearrange": rearranged}}):
        return
    enter_without_init("mamba_ssm")
    for name in HOSTS:
        module = optional_module(f"mamba_ssm.ops.tilelang.mamba3.{name}")
        for factory, compute in KERNELS.items() if module and not has_kernels else ():
            replace_factory(module, factory, compute)
    helpers = optional_module(HELPERS)
    if helpers and os.environ.get("TRITON_INTERPRET") == "1":
        untune(helpers)
