"""Sparse MLA and its gradients in float64 on the device, some queries at a time, and how far results are from them."""

from __future__ import annotations

import math

import torch

QUERIES = 32  # at once: 32 x 2048 keys of 576 columns are 302 MB


def attention(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, grad_out: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    """out, grad_q, grad_kv float64 of q [b, s, h, d], kv [b, s_k, 1, d], indices [b, s, 1, k] and grad_out [b, s, h, d_v]; an index
    outside [0, s_k) is not a key. Each query has one."""
    out, grad_q, grad_kv = (torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in (grad_out, q, kv))
    for b in range(q.shape[0]):
        keys_of = kv[b, :, 0].double()
        for rows in torch.arange(q.shape[1], device=q.device).split(QUERIES):
            named = indices[b, rows, 0].long()
            is_key = (named >= 0) & (named < kv.shape[1])
            named = named.where(is_key, 0)
            keys, query, grad = keys_of[named], q[b, rows].double(), grad_out[b, rows].double()
            values = keys[..., : grad.shape[-1]]
            scores = scale * query @ keys.mT
            weights = scores.masked_fill(~is_key.unsqueeze(1), float("-inf")).softmax(-1)
            of_weights = grad @ values.mT
            of_scores = scale * weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
            out[b, rows], grad_q[b, rows] = weights @ values, of_scores @ keys
            of_keys = of_scores.mT @ query
            of_keys[..., : grad.shape[-1]] += weights.mT @ grad
            grad_kv[b, :, 0].index_add_(0, named.flatten(), of_keys.flatten(0, 1))
    return {"out": out, "grad_q": grad_q, "grad_kv": grad_kv}


def error(got: torch.Tensor, want: torch.Tensor) -> list[float | str | int]:
    """[of the whole, of the worst row]: the norm of the difference over the norm of `want`; over the rows' root mean square. What is
    no number is a string, and the count of rows that hold one follows."""
    difference = (got.double() - want).flatten(0, -2).norm(dim=-1)
    rows = want.flatten(0, -2).norm(dim=-1)
    numbers = (difference.norm() / rows.norm()).item(), (difference.max() / rows.square().mean().sqrt()).item()
    if not all(map(math.isfinite, numbers)):
        return [*map(str, numbers), int((~difference.isfinite()).sum())]
    return [float(f"{number:.3e}") for number in numbers]
