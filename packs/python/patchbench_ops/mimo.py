"""The backward of the Mamba-3 MIMO layer, its reduction to groups, and the products of q and k within a token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .library import fake, has, not_differentiable

_OPS = torch.ops.patchbench


def group_reduce_bwd(dq: Tensor, dk: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """grad_q[b,s,r,g,n] = the sum of dq[b,s,r,h,n] over the heads h of group g, and grad_q_bias[h,r,n] = sum_{b,s} dq[b,s,r,h,n];
    the same for k. Returns grad_q, grad_k, grad_q_bias, grad_k_bias.

    dq, dk [batch, seqlen, num_ranks, num_heads, head_dim] float32, bfloat16 or float16, any strides; num_groups divides num_heads.
    Gradients of groups in that dtype, of biases in float32. Sums in float32, rounded once. RuntimeError names a wrong argument.
    Bitwise deterministic on one path; not differentiable: it is a backward. Source: derived here (packs/mamba3_mimo_gqa_bwd/op.h).
    """
    return _OPS.group_reduce_bwd(dq, dk, num_groups)


def mamba3_mimo_bwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    adt: Tensor,
    dt: Tensor,
    trap: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    mimo_v: Tensor,
    mimo_z: Tensor | None,
    mimo_o: Tensor | None,
    angles: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    cu_seqlens: Tensor | None,
    grad_out: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of all inputs but cu_seqlens, in their order, [0] where an input is absent, for grad_out, the gradient of
    out_t = sum_r mimo_o_r y_tr silu(z_t mimo_z_r). The layer's formulas, shapes and dtypes: packs/mamba3_mimo_gqa_bwd/op.h.

    Nothing is saved by a forward: states are computed again. RuntimeError names a wrong argument. Bitwise deterministic on one path;
    not differentiable: it is a backward. Source: derived here by differentiating the recurrence.
    """
    return _OPS.mamba3_mimo_bwd(q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z, cu_seqlens, grad_out)


def mamba3_mimo_qk_dot(q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, layout: str = "flat", copy: str = "tma") -> Tensor:
    """qk_dot[b,h,s,r,u] = sum_n (q[b,s,r,g,n] + q_bias[h,r,n]) (k[b,s,u,g,n] + k_bias[h,u,n]), g the group of head h.

    q, k [batch, seqlen, num_ranks, num_groups, head_dim] of one dtype, float32, bfloat16, float16 or float64, any strides; q_bias, k_bias
    [num_heads, num_ranks, head_dim] float32, float64 with float64. Returns [batch, num_heads, seqlen, num_ranks, num_ranks] in q's
    dtype. layout ("flat", "rank3") and copy ("tma", "cp_async") choose how the kernel stages its tiles, and change no bit.

    Sums in float32 (float64), rounded once. Differentiable once in the four tensors. Bitwise deterministic on one path. RuntimeError
    names a wrong argument. Source: derived here (packs/mamba3_mimo_smem_2d/op.h).
    """
    return _OPS.mamba3_mimo_qk_dot(q, k, q_bias, k_bias, layout, copy)


@fake("group_reduce_bwd")
def _(dq: Tensor, dk: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, seqlen, ranks, heads, head_dim = dq.shape
    grads = [x.new_empty((batch, seqlen, ranks, num_groups, head_dim)) for x in (dq, dk)]
    biases = [dq.new_empty((heads, ranks, head_dim), dtype=torch.float32) for _ in range(2)]
    return grads[0], grads[1], biases[0], biases[1]


@fake("mamba3_mimo_bwd")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    adt: Tensor,
    dt: Tensor,
    trap: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    mimo_v: Tensor,
    mimo_z: Tensor | None,
    mimo_o: Tensor | None,
    angles: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    cu_seqlens: Tensor | None,
    grad_out: Tensor,
) -> tuple[Tensor, ...]:
    inputs = (q, k, v, adt, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, d, z)
    return tuple(adt.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs)


@fake("mamba3_mimo_qk_dot")
def _(q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, layout: str = "flat", copy: str = "tma") -> Tensor:
    return q.new_empty((q.shape[0], q_bias.shape[0], q.shape[1], q.shape[2], q.shape[2]))


@fake("mamba3_mimo_qk_dot_bwd")
def _(
    grad_qk_dot: Tensor, q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, layout: str = "flat", copy: str = "tma"
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (q, k, q_bias, k_bias))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.staging = inputs[4:]


def _backward(ctx: Any, grad_qk_dot: Tensor) -> tuple[Tensor | None, ...]:
    return *_OPS.mamba3_mimo_qk_dot_bwd(grad_qk_dot, *ctx.saved_tensors, *ctx.staging), None, None


if has("mamba3_mimo_qk_dot"):
    torch.library.register_autograd("patchbench::mamba3_mimo_qk_dot", _backward, setup_context=_setup)
not_differentiable("group_reduce_bwd", "mamba3_mimo_bwd", "mamba3_mimo_qk_dot_bwd")
