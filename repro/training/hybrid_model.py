"""A small language model of Mamba-3 blocks, absorbed sparse-attention blocks and a fused head, in which each kernel is a choice.

Axes: b sequences, s positions, h heads, d columns of a key, d_v of them its value, n columns of a state, t = b * s tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Siso = Callable[..., torch.Tensor]
#: q [t, h, d], kv [t, 1, d], indices [t, 1, topk] int32 (-1: no key), scale -> out [t, h, d_v], lse [t, h]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]


class Sizes(NamedTuple):
    vocab: int
    hidden: int
    pairs: int  # of a Mamba-3 block and an attention block
    state: int
    state_head: int  # columns of a value in a Mamba-3 head
    heads: int
    head_dim: int  # of a query without its rope part, before it is absorbed
    latent: int
    rope: int
    topk: int
    sequences: int
    seqlen: int

    def text(self) -> str:
        return "hybrid of Mamba-3 and sparse attention: " + ", ".join(f"{k} {v}" for k, v in self._asdict().items())


#: 576 columns and 512 values are what megatron-core's kernels take.
FULL = Sizes(256, 512, 2, 128, 64, 64, 64, 512, 64, 256, 2, 1024)
SMALL = Sizes(32, 32, 1, 16, 16, 2, 16, 32, 16, 8, 1, 16)


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """x [..., columns] with neighbouring columns turned by `turn` [..., angles]; columns beyond 2 * angles stay."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    turn = F.pad(turn, (0, a.shape[-1] - turn.shape[-1]))
    return torch.stack([a * turn.cos() - b * turn.sin(), a * turn.sin() + b * turn.cos()], -1).flatten(-2)


def siso_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    adt: torch.Tensor,
    dt: torch.Tensor,
    trap: torch.Tensor,
    q_bias: torch.Tensor,
    k_bias: torch.Tensor,
    angles: torch.Tensor,
    d: torch.Tensor,
    z: torch.Tensor,
) -> torch.Tensor:
    """Mamba-3's SISO recurrence with its trapezoidal rule as one product over all pairs of positions, in float32:

        y_t = (sum_{r<t} exp(sum_{r<i<=t} adt_i) (g_r + dt_{r+1} (1 - m_{r+1})) <q_t, k_r> v_r + g_t <q_t, k_t> v_t + d v_t) silu(z_t)

    with m = sigmoid(trap), g = dt m, and q and k turned by the running sum of pi tanh(angles) dt.
    q, k [b, s, 1, n]; v, z [b, s, h, p]; adt, dt, trap [b, h, s]; biases [h, n]; angles [b, s, h, a]; d [h]. Differentiable.
    Source: derived here; the arguments and what they mean are those of mamba-ssm 2.3.2.post1's `mamba3_siso_combined`.
    """
    q, k, v, adt, dt, trap, angles, z = (x.float() for x in (q, k, v, adt, dt, trap, angles, z))
    turn = (math.pi * angles.tanh() * dt.transpose(1, 2).unsqueeze(-1)).cumsum(1)
    q, k = rotated(q + q_bias, turn), rotated(k + k_bias, turn)
    share = trap.sigmoid()
    now, later = dt * share, F.pad((dt * (1 - share))[..., 1:], (0, 1))
    total = adt.cumsum(-1)
    is_before = torch.ones(dt.shape[-1], dt.shape[-1], dtype=torch.bool, device=q.device).tril(-1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~is_before, -math.inf).exp()
    mixed = torch.einsum("bthn,bshn->bhts", q, k) * (decay * (now + later).unsqueeze(-2) + torch.diag_embed(now))
    return (torch.einsum("bhts,bshp->bthp", mixed, v) + d.unsqueeze(-1) * v) * F.silu(z)


class MambaBlock(nn.Module):
    """A Mamba-3 block around `siso`, one group of q and k for all heads."""

    def __init__(self, sizes: Sizes, siso: Siso) -> None:
        super().__init__()
        inner = 2 * sizes.hidden
        heads = inner // sizes.state_head
        self.siso, self.state_head, self.state = siso, sizes.state_head, sizes.state
        self.widths = (inner, inner, sizes.state, sizes.state, heads, heads, heads, sizes.state // 4)
        self.project = nn.Linear(sizes.hidden, sum(self.widths), bias=False)
        self.out = nn.Linear(inner, sizes.hidden, bias=False)
        step = torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
        self.q_bias, self.k_bias = (nn.Parameter(torch.ones(heads, sizes.state)) for _ in range(2))
        self.d = nn.Parameter(torch.ones(heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, v, k, q, dt, a, trap, angles = self.project(x).split(self.widths, -1)
        v, z = (one.unflatten(-1, (-1, self.state_head)) for one in (v, z))
        q, k = (F.rms_norm(one, (self.state,)).unsqueeze(2) for one in (q, k))
        dt = F.softplus(dt.float() + self.dt_bias).transpose(1, 2)
        adt = -F.softplus(a.float()).clamp_min(1e-4).transpose(1, 2) * dt
        angles = angles.float().unsqueeze(2).expand(-1, -1, v.shape[2], -1)
        y = self.siso(q, k, v, adt, dt, trap.transpose(1, 2), self.q_bias, self.k_bias, angles, self.d, z)
        return self.out(y.flatten(2).to(x.dtype))


class SparseAttention(nn.Module):
    """Multi-head latent attention, absorbed, over the topk keys of each query by the mean of its heads' scores (no gradient).

    `captured`, where it is a dict, takes the next call's q, kv, indices, out and lse, and grad_out when backward reaches it.
    """

    def __init__(self, sizes: Sizes, attend: Attention) -> None:
        super().__init__()
        self.attend, self.sizes, self.captured = attend, sizes, None
        self.scale = (sizes.head_dim + sizes.rope) ** -0.5
        self.q = nn.Linear(sizes.hidden, sizes.heads * (sizes.head_dim + sizes.rope), bias=False)
        self.kv = nn.Linear(sizes.hidden, sizes.latent + sizes.rope, bias=False)
        shape = (sizes.heads, sizes.head_dim, sizes.latent)
        self.key_up, self.value_up = (nn.Parameter(torch.randn(shape) / sizes.latent**0.5) for _ in range(2))
        self.out = nn.Linear(sizes.heads * sizes.head_dim, sizes.hidden, bias=False)

    def operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q [b, s, h, d] and kv [b, s, d], the latent columns first."""
        sizes = self.sizes
        rates = 10000.0 ** (-torch.arange(0, sizes.rope, 2, device=x.device) / sizes.rope)
        turn = torch.arange(x.shape[1], device=x.device).unsqueeze(-1) * rates
        q, q_rope = self.q(x).unflatten(-1, (sizes.heads, -1)).split((sizes.head_dim, sizes.rope), -1)
        latent, k_rope = self.kv(x).split((sizes.latent, sizes.rope), -1)
        q = torch.cat([torch.einsum("bshe,hel->bshl", q, self.key_up), rotated(q_rope, turn.unsqueeze(1))], -1)
        return q, torch.cat([F.rms_norm(latent, (sizes.latent,)), rotated(k_rope, turn)], -1)

    @torch.no_grad()
    def select(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Indices of keys among all tokens [b, s, topk], -1 where a query has fewer before it."""
        scores = torch.einsum("bsd,bkd->bsk", q.float().mean(2), kv.float())
        position = torch.arange(scores.shape[1], device=scores.device)
        best = scores.masked_fill(position > position.unsqueeze(-1), -math.inf).topk(self.sizes.topk)
        first = (torch.arange(len(q), device=q.device) * q.shape[1]).view(-1, 1, 1)
        return (best.indices + first).masked_fill(best.values == -math.inf, -1).int()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, kv = self.operands(x)
        low = torch.bfloat16 if x.is_cuda else x.dtype
        q, kv = q.to(low), kv.to(low)
        q, kv, indices = q.flatten(0, 1), kv.flatten(0, 1).unsqueeze(1), self.select(q, kv).flatten(0, 1).unsqueeze(1)
        out, lse = self.attend(q, kv, indices, self.scale)
        if self.captured is not None:
            self.capture(q=q, kv=kv, indices=indices, out=out, lse=lse)
        values = torch.einsum("thl,hel->the", out, self.value_up)
        return self.out(values.flatten(1).unflatten(0, x.shape[:2]))

    def capture(self, out: torch.Tensor, **tensors: torch.Tensor) -> None:
        self.captured |= {name: one.detach().clone() for name, one in {"out": out, **tensors}.items()}
        out.register_hook(lambda grad: self.captured.update(grad_out=grad.detach().clone()))


class Hybrid(nn.Module):
    """Token ids [b, s] to what the head takes [t, hidden]; `weight` [vocab, hidden] is the head's."""

    def __init__(self, sizes: Sizes, siso: Siso, attend: Attention) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocab, sizes.hidden)
        self.mambas = nn.ModuleList(MambaBlock(sizes, siso) for _ in range(sizes.pairs))
        self.attentions = nn.ModuleList(SparseAttention(sizes, attend) for _ in range(sizes.pairs))
        self.weight = nn.Parameter(torch.randn(sizes.vocab, sizes.hidden) / sizes.hidden**0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        width = x.shape[-1:]
        for mamba, attention in zip(self.mambas, self.attentions, strict=True):
            x = x + mamba(F.rms_norm(x, width))
            x = x + attention(F.rms_norm(x, width))
        return F.rms_norm(x, width).flatten(0, 1)
