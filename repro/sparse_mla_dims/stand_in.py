"""Plain computations in the place of the four TileLang kernels of sparse MLA, on a machine that cannot launch them.

The boundary is the builder: `build(widths, scale, ...)` gives a kernel, as TileLang's does. What stands here computes in fp32 with
the kernels' roundings to bf16, takes the widths and the scale that it was built with, and nothing else from anywhere: a width that
the caller got wrong shows in the numbers or in a shape that does not fit. On a GPU the real builders are called. Everything above
the boundary is the release's own; of its settings, rows are padded to a multiple of 32 in place of 256.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from absent import stand_in_for

CHUNK = 32  # query rows at a time: the rows gathered for them are small next to the scores of all
Kernel = Callable[..., Any]


def install() -> None:
    """Makes the release's modules importable without TileLang; idempotent. Call before the package is imported."""
    stand_in_for(("tilelang",))


def need_shape(name: str, tensor: torch.Tensor, *wanted: int | None) -> None:
    """Raises where a compiled kernel would turn the tensor down; None is an extent that is read at the launch."""
    fits = len(wanted) == tensor.dim() and all(w in (None, size) for w, size in zip(wanted, tensor.shape, strict=True))
    if not fits:
        raise ValueError(f"the kernel was built for {name} {list(wanted)} and is given {list(tensor.shape)}")


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """fp32 values that bf16 holds."""
    return tensor.to(torch.bfloat16).float()


def gathered(kv: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Key rows [batch, rows, topk, head_dim] of one KV head, and where an index names a key."""
    rows = torch.stack([one[index.clamp_min(0).long()] for one, index in zip(kv[:, :, 0], indices[:, :, 0], strict=True)])
    return rows.float(), indices[:, :, 0] != -1


def build_forward(heads: int, dim: int, tail_dim: int, topk: int, kv_group: int, sm_scale: float | None, *_: Any, **__: Any) -> Kernel:
    """(q, kv, indices) -> out of `dim` columns in bf16, log2-sum-exp2 in fp32; a row without a key gives zeros."""
    width = dim + tail_dim
    scale = (width**-0.5 if sm_scale is None else sm_scale) * math.log2(math.e)

    def kernel(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        need_shape("q", q, None, None, heads, width)
        need_shape("kv", kv, None, None, kv_group, width)
        need_shape("indices", indices, None, None, kv_group, topk)
        outs, lses = [], []
        for part, index in zip(q.split(CHUNK, 1), indices.split(CHUNK, 1), strict=True):
            keys, is_key = gathered(kv, index)
            scores = torch.einsum("bshd,bskd->bshk", part.float(), keys) * scale
            scores.masked_fill_(~is_key.unsqueeze(2), -math.inf)
            top = scores.amax(-1, keepdim=True).clamp_min(-(2.0**30))
            weights = torch.exp2(scores - top)
            total = weights.sum(-1, keepdim=True)
            value = torch.einsum("bshk,bskd->bshd", rounded(weights), keys[..., :dim])
            outs.append(torch.where(total > 0, value / total, 0).to(torch.bfloat16))
            lses.append(torch.where(total > 0, total.log2() + top, 0).squeeze(-1))
        return torch.cat(outs, 1), torch.cat(lses, 1)

    return kernel


def build_delta(H: int, D: int, **_: Any) -> Kernel:
    """(out, grad_out) -> the rows' inner products in fp32."""

    def kernel(out: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
        for name, tensor in (("out", out), ("grad_out", grad_out)):
            need_shape(name, tensor, None, None, H, D)
        return (out.float() * grad_out.float()).sum(-1)

    return kernel


def build_backward(H: int, D: int, D_tail: int, topk: int, kv_group: int, sm_scale: float | None, max_block_h: int, **_: Any) -> Kernel:
    """(q, kv, grad_out, indices, lse, delta, grad_kv) -> grad_q in bf16; adds into grad_kv, in fp32."""
    width = D + D_tail
    scale = width**-0.5 if sm_scale is None else sm_scale

    def kernel(q, kv, grad_out, indices, lse, delta, grad_kv):  # noqa: ANN001, ANN202: seven tensors, as the real one
        for name, tensor, last in (("q", q, width), ("grad_out", grad_out, D)):
            need_shape(name, tensor, None, None, H, last)
        need_shape("kv", kv, None, None, kv_group, width)
        need_shape("grad_kv", grad_kv, None, None, kv_group, width)
        need_shape("indices", indices, None, None, kv_group, topk)
        parts = (q, grad_out, indices, lse, delta)
        return torch.cat([rows(kv, grad_kv, *chunk) for chunk in zip(*(t.split(CHUNK, 1) for t in parts), strict=True)], 1)

    def rows(kv, grad_kv, q, grad_out, indices, lse, delta):  # noqa: ANN001, ANN202: the same, of a few query rows
        keys, is_key = gathered(kv, indices)
        q, grad_out = q.float(), grad_out.float()
        scores = torch.einsum("bshd,bskd->bshk", q, keys) * (scale * math.log2(math.e))
        weights = torch.exp2(scores - lse.unsqueeze(-1)).masked_fill(~is_key.unsqueeze(2), 0)
        slopes = torch.einsum("bshd,bskd->bshk", grad_out, keys[..., :D]) - delta.unsqueeze(-1)
        slopes = rounded(weights * slopes * scale)
        found = torch.einsum("bshk,bshd->bskd", slopes, q)
        found[..., :D] += torch.einsum("bshk,bshd->bskd", rounded(weights), grad_out)
        for total, part, index, valid in zip(grad_kv, found, indices[:, :, 0], is_key, strict=True):
            total[:, 0].index_add_(0, index[valid].long(), part[valid])
        return torch.einsum("bshk,bskd->bshd", slopes, keys).to(torch.bfloat16)

    return kernel


def build_export(D: int, D_tail: int, kv_group: int, **_: Any) -> Kernel:
    """grad_kv in fp32 -> in bf16."""

    def kernel(grad_kv: torch.Tensor) -> torch.Tensor:
        need_shape("grad_kv", grad_kv, None, None, kv_group, D + D_tail)
        return grad_kv.to(torch.bfloat16)

    return kernel


def example_builders() -> dict[str, Callable[..., Kernel]]:
    """The BUILDERS whose arguments TileLang's example passes in an order of its own, with the extents."""
    return {
        "preprocess": lambda B, S, H, D: build_delta(H, D),
        "bwd": lambda B, S, S_kv, H, D, D_tail, topk, kv_group, sm_scale, *_: build_backward(
            H, D, D_tail, topk, kv_group, sm_scale, max_block_h=64
        ),
        "postprocess": lambda B, S_kv, D, D_tail, kv_group: build_export(D, D_tail, kv_group),
    }


BUILDERS = {"sparse_mla_fwd": build_forward, "bwd": build_backward, "preprocess": build_delta, "postprocess": build_export}


def builder_of(held: Any) -> Any:
    """Returns the release's builder, which `serving` has replaced."""
    while hasattr(held, "in_place_of"):
        held = held.in_place_of
    return held


@contextlib.contextmanager
def serving(device: str, *modules: ModuleType) -> Iterator[Counter[str]]:
    """How often each kernel was launched while open, by whomever. On a CPU the kernels of BUILDERS are launched, elsewhere the
    release's own."""
    launches: Counter[str] = Counter()

    def counted(name: str, build: Callable[..., Kernel], held: Any) -> Callable[..., Kernel]:
        def build_counted(*args: Any, **words: Any) -> Kernel:
            kernel = build(*args, **words)

            def launch(*tensors: torch.Tensor) -> Any:
                launches[name] += 1
                return kernel(*tensors)

            return launch

        build_counted.in_place_of = held
        return build_counted

    with contextlib.ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(mock.patch.dict(os.environ, {"MCORE_DSA_TILELANG_SEQ_BUCKET": "32"}))
        for module in modules:
            plain = BUILDERS | (example_builders() if module.__name__.startswith("deepseek_v32.") else {})
            for name, held in list(vars(module).items()):
                if name in BUILDERS:
                    is_served = builder_of(held) is not held  # by one that is open already, and counts, too
                    build = plain[name] if device == "cpu" and not is_served else held
                    stack.enter_context(mock.patch.object(module, name, counted(name, build, held)))
                elif name.endswith("_kernel_cache"):
                    stack.enter_context(mock.patch.dict(held, clear=True))
        yield launches
