"""The Mamba-3 SISO scan, and the backward of the steps before and after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .library import fake, has, not_differentiable

_OPS = torch.ops.patchbench


def mamba3_siso(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    adt: Tensor,
    qk_dot: Tensor,
    d: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = e^{adt_t} S_{t-1} + v_t (x) k_t and y_t = e^{adt_t} S_{t-1} q_t + (qk_dot_t + d) v_t, for each batch entry and head; q is
    rotated, k rotated and scaled, as mamba-ssm takes them.

    q, k [batch, seqlen, num_heads, head_dim_qk] and v [batch, seqlen, num_heads, head_dim_v]: one dtype, float32, bfloat16 or float16,
    any strides; adt (negative), qk_dot [batch, num_heads, seqlen], d [num_heads] and initial_state [num_sequences, num_heads,
    head_dim_v, head_dim_qk] float32. cu_seqlens [num_sequences + 1] int32 packs sequences into batch 1. Returns y as v and the final
    states as initial_state.

    Differentiable in all but cu_seqlens. Sums in float32. The forward is plain torch, the backward has kernels for bfloat16 and
    float16 at chunk_size 64 and head dims of 32, 64 or 128. Bitwise deterministic on one path. RuntimeError names a wrong argument.
    Source: derived here by differentiating the scan (packs/mamba3_siso_bwd_cse/op.h).
    """
    return _OPS.mamba3_siso_forward(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, initial_state)[:2]


def mamba3_siso_bwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    adt: Tensor,
    qk_dot: Tensor,
    d: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk_size: int,
    grad_out: Tensor,
    states: Tensor,
    grad_final_state: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, adt, qk_dot, d ([0] without d) and the initial state, from the states at each chunk's start, [batch,
    num_heads, num_chunks, head_dim_v, head_dim_qk] in v's dtype. The rest as in mamba3_siso."""
    return _OPS.mamba3_siso_bwd(q, k, v, adt, qk_dot, d, cu_seqlens, chunk_size, grad_out, states, grad_final_state)


def mamba3_siso_rotary_bwd(
    q: Tensor,
    k: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    angles: Tensor,
    angles_cumsum: Tensor,
    dt: Tensor,
    trap: Tensor,
    grad_q_rotated: Tensor,
    grad_k_scaled: Tensor,
    grad_qk_dot: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, q_bias, k_bias, angles, dt and trap from the gradients of the scan's inputs: bias, rotation, scale, qk_dot.

    q, k [batch, seqlen, num_groups, head_dim_qk] and angles, angles_cumsum [batch, seqlen, num_heads, num_angles] of one dtype, biases
    [num_heads, head_dim_qk], dt, trap and grad_qk_dot [batch, num_heads, seqlen] float32 (float64 with float64), grad_q_rotated and
    grad_k_scaled [batch, seqlen, num_heads, head_dim_qk]. Bitwise deterministic on one path; not differentiable: it is a backward.
    RuntimeError names a wrong argument. Source: derived here (packs/mamba3_siso_bwd_cse/rotary.h).
    """
    return _OPS.mamba3_siso_rotary_bwd(q, k, q_bias, k_bias, angles, angles_cumsum, dt, trap, grad_q_rotated, grad_k_scaled, grad_qk_dot)


def mamba3_siso_gate_bwd(grad_gated: Tensor, z: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of z and out from that of the layer's gated = out silu(z): grad_gated out s (1 + z (1 - s)) and grad_gated z s, where
    s = sigmoid(z).

    Tensors of one shape and dtype, float32, bfloat16, float16 or float64, any strides. Sums in float32 (float64 with float64). Bitwise
    deterministic on one path; not differentiable: it is a backward. RuntimeError names a wrong argument. Source: derived here
    (packs/mamba3_siso_bwd_cse/gate.h).
    """
    return _OPS.mamba3_siso_gate_bwd(grad_gated, z, out)


def _num_sequences(q: Tensor, cu_seqlens: Tensor | None) -> int:
    return q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _final_state(q: Tensor, v: Tensor, adt: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    return adt.new_empty((_num_sequences(q, cu_seqlens), q.shape[2], v.shape[3], q.shape[3]))


@fake("mamba3_siso_forward")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    adt: Tensor,
    qk_dot: Tensor,
    d: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk_size: int,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    seqlen = q.shape[1]
    chunks = (seqlen + chunk_size - 1) // chunk_size if cu_seqlens is None else _num_sequences(q, cu_seqlens) + seqlen // chunk_size
    states = v.new_empty((q.shape[0], q.shape[2], chunks, v.shape[3], q.shape[3]))
    return v.new_empty(v.shape), _final_state(q, v, adt, cu_seqlens), states


@fake("mamba3_siso_bwd")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    adt: Tensor,
    qk_dot: Tensor,
    d: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk_size: int,
    grad_out: Tensor,
    states: Tensor,
    grad_final_state: Tensor | None = None,
) -> tuple[Tensor, ...]:
    grad_d = adt.new_empty(0 if d is None else q.shape[2])
    return *(t.new_empty(t.shape) for t in (q, k, v, adt, qk_dot)), grad_d, _final_state(q, v, adt, cu_seqlens)


@fake("mamba3_siso_rotary_bwd")
def _(
    q: Tensor,
    k: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    angles: Tensor,
    angles_cumsum: Tensor,
    dt: Tensor,
    trap: Tensor,
    grad_q_rotated: Tensor,
    grad_k_scaled: Tensor,
    grad_qk_dot: Tensor,
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (q, k, q_bias, k_bias, angles, dt, trap))


@fake("mamba3_siso_gate_bwd")
def _(grad_gated: Tensor, z: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape), out.new_empty(out.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, adt, qk_dot, d, cu_seqlens, ctx.chunk_size, initial_state = inputs
    ctx.has_initial_state = initial_state is not None
    ctx.save_for_backward(q, k, v, adt, qk_dot, d, cu_seqlens, output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_y: Tensor | None, grad_final: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    q, k, v, adt, qk_dot, d, cu_seqlens, states = ctx.saved_tensors
    grad_y = torch.zeros_like(v) if grad_y is None else grad_y
    *grads, grad_d, grad_initial = mamba3_siso_bwd(q, k, v, adt, qk_dot, d, cu_seqlens, ctx.chunk_size, grad_y, states, grad_final)
    return *grads, None if d is None else grad_d, None, None, grad_initial if ctx.has_initial_state else None


if has("mamba3_siso_forward"):
    torch.library.register_autograd("patchbench::mamba3_siso_forward", _backward, setup_context=_setup)
not_differentiable("mamba3_siso_bwd", "mamba3_siso_rotary_bwd", "mamba3_siso_gate_bwd")
