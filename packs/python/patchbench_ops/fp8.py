"""Sparse multi-head latent attention over FP8 storage."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .library import fake, has, not_differentiable, refuse_atomic_adds

_OPS = torch.ops.patchbench
_HEAD_DIM, _HEAD_DIM_V, _BLOCK_ROW_BYTES = 576, 512, 656


def quantize_mla(x: Tensor, layout: str) -> tuple[Tensor, Tensor | None]:
    """The FP8 storage of x [..., 576] float32, bfloat16 or float64: (payload, scale).

    "tensor": payload float8_e4m3fn [..., 576], scale float32 [1] · "token": the same, scale [...] · "block": payload uint8
    [..., 656] of 512 e4m3, 4 float32 scales that are powers of two, 64 bfloat16; no scale. scale = max(amax, 2^-14) / 448 over what
    it serves; a byte is e4m3(x / scale), rounded to nearest even. Bitwise deterministic, not differentiable.
    Source: derived here; the layout of 656 bytes is that of DeepSeek V3.2's cache (FlashMLA).
    """
    return _OPS.quantize_mla(x, layout)


def dequantize_mla(payload: Tensor, scale: Tensor | None = None) -> Tensor:
    """The stored values, float32 [..., 576]."""
    return _OPS.dequantize_mla(payload, scale)


def sparse_mla_fp8_forward(
    q: Tensor, q_scale: Tensor | None, kv: Tensor, kv_scale: Tensor | None, topk_indices: Tensor, *, softmax_scale: float
) -> tuple[Tensor, Tensor]:
    """out [batch, seqlen_q, num_heads, 512] bfloat16 and lse [batch, seqlen_q, num_heads] float32 of stored operands:
    l = softmax_scale <q, k_j>, out = sum_j softmax_j(l) k_j[:512], lse = log2 sum_j exp(l), j over the valid topk_indices.

    q [batch, seqlen_q, num_heads, 576] as "tensor" or "token", or bfloat16 beside a "block" kv; kv [batch, seqlen_k, 1, 576 or 656];
    topk_indices [batch, seqlen_q, 1, topk] int32; all contiguous, q and kv at a multiple of 16 bytes. RuntimeError names a wrong
    argument. Bitwise deterministic. Not differentiable: sparse_mla_fp8 is. On CUDA "block" keys are dequantised once, in
    1152 bytes a key, where seqlen_q * topk >= 8 * seqlen_k. Source: derived here (packs/fp8_storage_dispatch/op.h).
    """
    return _OPS.sparse_mla_fp8_forward(q, q_scale, kv, kv_scale, topk_indices, softmax_scale=softmax_scale)


def sparse_mla_fp8_backward(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    q_scale: Tensor | None,
    kv: Tensor,
    kv_scale: Tensor | None,
    topk_indices: Tensor,
    *,
    softmax_scale: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of the dequantised operands, bfloat16: grad_q [batch, seqlen_q, num_heads, 576], grad_kv [batch, seqlen_k, 1, 576].

    grad_kv is summed in float32; the kernel adds it atomically, so that it is not deterministic there and torch's deterministic
    mode raises. grad_q is bitwise deterministic. The kernel holds the keys in bfloat16 while it runs, 1152 bytes each. Arguments as in
    the forward, which gave out and lse; grad_out as out.
    """
    refuse_atomic_adds("sparse_mla_fp8_backward", lambda: kv.is_cuda and sparse_mla_fp8_path(kv) == "cuda")
    return _OPS.sparse_mla_fp8_backward(grad_out, out, lse, q, q_scale, kv, kv_scale, topk_indices, softmax_scale=softmax_scale)


def sparse_mla_fp8(query: Tensor, kv: Tensor, topk_indices: Tensor, *, layout: str, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """The same of dense query and kv, which are stored by `layout` ("block" leaves the query in bfloat16) and kept for the backward
    in that form alone. Differentiable in query and kv through out: the gradients pass straight through the rounding."""
    return _OPS.sparse_mla_fp8(query, kv, topk_indices, layout=layout, softmax_scale=softmax_scale)[:2]


def sparse_mla_fp8_path(kv: Tensor) -> str:
    """Who would do it for keys like these: "cuda" (the kernels) or "plain" (torch, on the dequantised rows)."""
    return _OPS.sparse_mla_fp8_path(kv)


def _results(q: Tensor) -> tuple[Tensor, Tensor]:
    rows = q.shape[:3]
    return q.new_empty((*rows, _HEAD_DIM_V), dtype=torch.bfloat16), q.new_empty(rows, dtype=torch.float32)


def _stored(x: Tensor, layout: str) -> tuple[Tensor, Tensor | None]:
    if layout == "block":
        return x.new_empty((*x.shape[:-1], _BLOCK_ROW_BYTES), dtype=torch.uint8), None
    scale = x.new_empty(x.shape[:-1] if layout == "token" else (1,), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), scale


def _bytes(payload: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return payload.new_empty(payload.shape, dtype=torch.uint8), scale


def _is_kept(query: Tensor, layout: str) -> bool:
    """Whether the query itself is what is stored."""
    return layout == "block" and query.dtype == torch.bfloat16 and query.is_contiguous()


@fake("quantize_mla")
def _(x: Tensor, layout: str) -> tuple[Tensor, Tensor | None]:
    return _stored(x, layout)


@fake("dequantize_mla")
def _(payload: Tensor, scale: Tensor | None = None) -> Tensor:
    return payload.new_empty((*payload.shape[:-1], _HEAD_DIM), dtype=torch.float32)


@fake("sparse_mla_fp8_forward")
def _(
    q: Tensor, q_scale: Tensor | None, kv: Tensor, kv_scale: Tensor | None, topk_indices: Tensor, *, softmax_scale: float
) -> tuple[Tensor, Tensor]:
    return _results(q)


@fake("sparse_mla_fp8_backward")
def _(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    q_scale: Tensor | None,
    kv: Tensor,
    kv_scale: Tensor | None,
    topk_indices: Tensor,
    *,
    softmax_scale: float,
) -> tuple[Tensor, Tensor]:
    grad_kv = kv.new_empty((*kv.shape[:2], 1, _HEAD_DIM), dtype=torch.bfloat16)
    return q.new_empty(q.shape, dtype=torch.bfloat16), grad_kv


@fake("sparse_mla_fp8")
def _(query: Tensor, kv: Tensor, topk_indices: Tensor, *, layout: str, softmax_scale: float) -> tuple[Tensor, ...]:
    none = query.new_empty(0, dtype=torch.float32)
    kv_stored, kv_scale = _bytes(*_stored(kv, layout))
    if layout == "block":
        q = query.new_empty(0 if _is_kept(query, layout) else query.shape, dtype=torch.bfloat16)
        return (*_results(query), q, none, kv_stored, none.clone())
    q, q_scale = _bytes(*_stored(query, layout))
    return (*_results(query), q, q_scale, kv_stored, kv_scale)


def _setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, ...]) -> None:
    query, kv, topk_indices = inputs
    out, lse, q, q_scale, kv_stored, kv_scale = output
    ctx.scale, ctx.is_block = keyword_only_inputs["softmax_scale"], keyword_only_inputs["layout"] == "block"
    ctx.dtypes = query.dtype, kv.dtype
    kept = query if _is_kept(query, keyword_only_inputs["layout"]) else q
    ctx.save_for_backward(out, lse, kept, q_scale, kv_stored, kv_scale, topk_indices)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad_out: Tensor, *unused: Any) -> tuple[Tensor, Tensor, None]:
    out, lse, q, q_scale, kv, kv_scale, topk_indices = ctx.saved_tensors
    if ctx.is_block:
        q_scale = kv_scale = None
    else:
        q, kv = q.view(torch.float8_e4m3fn), kv.view(torch.float8_e4m3fn)
    grads = sparse_mla_fp8_backward(grad_out.to(torch.bfloat16), out, lse, q, q_scale, kv, kv_scale, topk_indices, softmax_scale=ctx.scale)
    return grads[0].to(ctx.dtypes[0]), grads[1].to(ctx.dtypes[1]), None


if has("sparse_mla_fp8"):
    torch.library.register_autograd("patchbench::sparse_mla_fp8", _backward, setup_context=_setup)
not_differentiable("sparse_mla_fp8_forward", "sparse_mla_fp8_backward", "quantize_mla", "dequantize_mla")
