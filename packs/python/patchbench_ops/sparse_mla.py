"""Sparse multi-head latent attention of any head dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .library import fake, has, not_differentiable, refuse_atomic_adds

_OPS = torch.ops.patchbench


def sparse_mla(
    q: Tensor,
    kv: Tensor,
    topk_indices: Tensor,
    *,
    softmax_scale: float,
    head_dim_v: int,
    delta: str = "exact",
    staging: str = "bf16",
) -> tuple[Tensor, Tensor]:
    """out[b,s,h,:] = sum_j softmax_j(z) kv[b,t_j,0,:head_dim_v] with z[b,s,h,j] = softmax_scale <q[b,s,h,:], kv[b,t_j,0,:]>, and
    lse[b,s,h] = log2 sum_j exp(z), t_j = topk_indices[b,s,0,j].

    q [batch, seqlen_q, num_heads, head_dim_qk] and kv [batch, seqlen_k, 1, head_dim_qk]: both bfloat16, float16, float32 or float64,
    any strides; topk_indices [batch, seqlen_q, 1, topk] int32. head_dim_qk at most 576, head_dim_v at most 512 and head_dim_qk, both
    multiples of 16. An index outside of [0, seqlen_k) is skipped, a repeated one counts twice, a query without a key gives 0.

    Returns out in q's dtype and lse in float32 (float64 for float64). Differentiable in q and kv through out, not through lse; a
    gradient that nobody wants is not returned. delta "exact" keeps what rounding took from out for the backward, "rounded" does
    not; staging is what P and dS are rounded to before they are multiplied: "bf16" or "split". Packs 02 and 04 say what they cost.

    RuntimeError names a wrong argument. Forward and grad_q are bitwise deterministic; grad_kv is not on the kernel path, which
    raises in torch's deterministic mode. Kernels serve bfloat16 on compute capability 9.x, plain torch the rest, with one warning
    on a GPU. Source: derived here (packs/sparse_mla_dims/op.h).
    """
    is_saved = torch.is_grad_enabled() and (q.requires_grad or kv.requires_grad)
    if delta == "exact" and not is_saved:
        delta = "rounded"  # no backward will read out_remainder
    out, lse, _ = _OPS.sparse_mla_forward(
        q, kv, topk_indices, softmax_scale=softmax_scale, head_dim_v=head_dim_v, delta=delta, staging=staging
    )
    return out, lse


def sparse_mla_path(q: Tensor, head_dim_v: int, staging: str = "bf16") -> str:
    """Who would do it for a query like this one: "cuda" (the kernels) or "plain" (torch). The forward's is that of "bf16"."""
    return _OPS.sparse_mla_path(q, head_dim_v, staging)


def _sum_dtype(q: Tensor) -> torch.dtype:
    return q.dtype if q.dtype == torch.float64 else torch.float32


@fake("sparse_mla_forward")
def _(
    q: Tensor, kv: Tensor, topk_indices: Tensor, *, softmax_scale: float, head_dim_v: int, delta: str = "exact", staging: str = "bf16"
) -> tuple[Tensor, Tensor, Tensor]:
    out = q.new_empty((*q.shape[:3], head_dim_v))
    remainder = torch.empty_like(out) if q.dtype.itemsize == 2 and delta == "exact" else q.new_empty(0)
    return out, q.new_empty(q.shape[:3], dtype=_sum_dtype(q)), remainder


@fake("sparse_mla_backward")
def _(
    grad_out: Tensor,
    out: Tensor,
    out_remainder: Tensor,
    lse: Tensor,
    q: Tensor,
    kv: Tensor,
    topk_indices: Tensor,
    *,
    softmax_scale: float,
    delta: str = "exact",
    staging: str = "bf16",
    output_mask: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    return q.new_empty(q.shape) if output_mask[0] else None, kv.new_empty(kv.shape) if output_mask[1] else None


def _setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, ...]) -> None:
    q, kv, topk_indices = inputs
    out, lse, remainder = output
    ctx.scale = keyword_only_inputs["softmax_scale"]
    ctx.modes = {name: keyword_only_inputs[name] for name in ("delta", "staging")}
    ctx.save_for_backward(out, remainder, lse, q, kv, topk_indices)
    ctx.mark_non_differentiable(lse, remainder)


def _backward(ctx: Any, grad_out: Tensor, *unused: Any) -> tuple[Tensor | None, Tensor | None, None]:
    out, remainder, lse, q, kv, topk_indices = ctx.saved_tensors

    def is_atomic() -> bool:
        return ctx.needs_input_grad[1] and q.is_cuda and sparse_mla_path(q, out.shape[3], ctx.modes["staging"]) == "cuda"

    refuse_atomic_adds("sparse_mla_backward", is_atomic)
    wanted = list(ctx.needs_input_grad[:2])
    grads = _OPS.sparse_mla_backward(
        grad_out, out, remainder, lse, q, kv, topk_indices, softmax_scale=ctx.scale, **ctx.modes, output_mask=wanted
    )
    return (*(grad if is_wanted else None for grad, is_wanted in zip(grads, wanted, strict=True)), None)


if has("sparse_mla_forward"):
    torch.library.register_autograd("patchbench::sparse_mla_forward", _backward, setup_context=_setup)
not_differentiable("sparse_mla_backward")
