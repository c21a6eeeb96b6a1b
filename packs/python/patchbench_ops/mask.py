"""Top-k indices to the additive index mask of sparse attention."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import fake

_OPS = torch.ops.patchbench


def topk_to_index_mask(
    topk_indices: Tensor, seqlen_k: int, *, dtype: torch.dtype | None = None, out_of_range: Tensor | None = None
) -> Tensor:
    """mask[b, s, t] = 0 if some k has topk_indices[b, s, k] = t, else -inf.

    topk_indices [batch, seqlen_q, topk] int32 or int64, any strides. The result is [batch, seqlen_q, seqlen_k], contiguous, of
    `dtype`: float32 (None) or bfloat16. A negative index is skipped, a duplicate counts once. An index >= seqlen_k sets
    `out_of_range`, an int32 tensor [1] of the same device that the caller clears and reads; without one it raises IndexError on a
    CPU and is skipped on CUDA.

    RuntimeError names a wrong argument. Bitwise deterministic. One launch on the current stream, capturable in a CUDA graph. Not
    differentiable: a mask has no gradient. Source: derived here; the semantics are those of Megatron-LM's dsa_masking.py at 0.19.2.
    """
    if out_of_range is None:
        return _OPS.topk_to_index_mask(topk_indices, seqlen_k, dtype=dtype)
    return _OPS.topk_to_index_mask(topk_indices, seqlen_k, dtype=dtype, out_of_range=out_of_range)


def topk_to_index_mask_(index_mask: Tensor, topk_indices: Tensor, *, out_of_range: Tensor | None = None) -> Tensor:
    """index_mask[b, s, topk_indices[b, s, k]] = 0, in place; all else stays as it was.

    index_mask [batch, seqlen_q, seqlen_k] float32 or bfloat16, contiguous; the rest as in topk_to_index_mask. Returns index_mask.
    """
    _OPS.topk_to_index_mask_(index_mask, topk_indices, out_of_range=out_of_range)
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(index_mask)  # the stable ABI has no key that would
    return index_mask


def topk_to_index_mask_path(topk_indices: Tensor) -> str:
    """Who would do it for indices like these: "cpu", "cuda" or "plain" (a scatter in torch)."""
    return _OPS.topk_to_index_mask_path(topk_indices)


@fake("topk_to_index_mask")
@fake("topk_to_index_mask.out_of_range")
def _(topk_indices: Tensor, seqlen_k: int, *, dtype: torch.dtype | None = None, out_of_range: Tensor | None = None) -> Tensor:
    return topk_indices.new_empty((*topk_indices.shape[:2], seqlen_k), dtype=dtype or torch.float32)


@fake("topk_to_index_mask_")
def _(index_mask: Tensor, topk_indices: Tensor, *, out_of_range: Tensor | None = None) -> None:
    return None
