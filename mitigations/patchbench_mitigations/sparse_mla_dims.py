"""Megatron-LM's fused sparse attention for other head dimensions than 576 and 512: zeros to the right, and off again.

The fused kernels take keys of 576 columns of which the first 512 are values, and decline all else without a word: the
release then builds float32 scores [batch, heads, seqlen_q, seqlen_k]. `dsa_kernels.run_fused_absorbed_sparse_attention` is
replaced, whatever the backend:

  head_dim_qk <= 576, head_dim_v <= 512   query and key get zeros up to 576 columns, 512 values are asked for, with the scale of
                                          the true dimensions, and the first head_dim_v are kept
  all else                                the original as it came: 576/512, larger dimensions, quantised operands

Exact: appended columns add 0 to each score, a value column is a column of the same row, and the gradient of what is cut off
is 0. What the release still declines (heads, slots or dtypes that its kernels do not take) is declined as before, and a
WARNING names the bytes of the scores, once for each shape. One mode, "pad" ("auto" is the same).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch

from patchbench_mitigations.fingerprint import own_function
from patchbench_mitigations.megatron import VARIANT, Modules, detached, is_wrapped_storage, modules_for, version_for
from patchbench_mitigations.switch import Arguments, Finding, Hook, Mitigation, Placement

SLUG = "sparse_mla_dims"
UPSTREAM = "megatron-core"
NAME = "run_fused_absorbed_sparse_attention"
KEYS = (f"{VARIANT}.dsa_kernels:{NAME}", f"{VARIANT}.ops.tilelang_dsa:fused_sparse_mla_absorbed")
TAKES = "config query key topk_indices softmax_scale v_channels topk_length".split()
HEAD_DIM_QK, HEAD_DIM_V = 576, 512
Function = Callable[..., Any]
_said: set[tuple[int, ...]] = set()
_saying = threading.Lock()


def is_padded(query: Any, key: Any, v_channels: int) -> bool:
    """Whether zeros make the operands what the kernels take; to pad a quantised one would make it dense."""
    if is_wrapped_storage(query) or is_wrapped_storage(key):
        return False
    head_dim = query.shape[-1]
    is_other = (head_dim, v_channels) != (HEAD_DIM_QK, HEAD_DIM_V)
    return is_other and key.shape[-1] == head_dim <= HEAD_DIM_QK and 0 < v_channels <= min(HEAD_DIM_V, head_dim)


def _say_declined(query: torch.Tensor, key: torch.Tensor, v_channels: int) -> None:
    if torch.compiler.is_compiling() or query.dim() != 4:
        return
    seqlen_q, batch, num_heads, head_dim = query.shape
    shape = (*query.shape, key.shape[0], v_channels)
    with _saying:
        is_first = shape not in _said
        _said.add(shape)
    if is_first:
        text = ("no fused kernel takes %d heads of %d columns, %d of them values, in %s: the release builds float32 scores "
                "[%d, %d, %d, %d], %d bytes for each copy that it holds; said once for this shape")  # fmt: skip
        num_bytes = 4 * batch * num_heads * seqlen_q * key.shape[0]
        _own.say(text, num_heads, head_dim, v_channels, query.dtype, batch, num_heads, seqlen_q, key.shape[0], num_bytes)


def padding(original: Function, hook: Hook) -> Function:
    """The original on padded operands where that serves, with a word where nothing does."""
    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        given = arguments.of(args, words)
        query, key, v_channels = given["query"], given["key"], given["v_channels"]
        if not is_padded(query, key, v_channels):
            out = original(*args, **words)
            if out is None:
                hook.serve(declined=1)
                _say_declined(query, key, v_channels)
            return out
        if given["softmax_scale"] is None:
            given["softmax_scale"] = query.shape[-1] ** -0.5
        room = (0, HEAD_DIM_QK - query.shape[-1])
        given["query"], given["key"] = (torch.nn.functional.pad(operand, room) for operand in (query, key))
        given["v_channels"] = HEAD_DIM_V
        out = arguments.call(original, given)
        if out is None:
            hook.serve(declined=1)
            _say_declined(query, key, v_channels)
            return None
        hook.serve(padded=1)
        return out[..., :v_channels].contiguous()

    return replacement


# ---- probe ----


class _Kernel:
    """Takes the place of SparseMLA: the attention of its arguments in float64, at the dimensions that the kernels have.
    out[b,s,h] = softmax(scaling q k) v over the slots that are not -1; counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def apply(self, query: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, scaling: float) -> Any:
        self.num_calls += 1
        return attention(query, kv, indices.squeeze(2), scaling, min(HEAD_DIM_V, kv.shape[-1])).to(query.dtype), None


def attention(query: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, scaling: float, head_dim_v: int) -> torch.Tensor:
    """[batch, seqlen_q, num_heads, head_dim_v] float64 of query [b, s, h, d], kv [b, s_k, 1, d] and indices [b, s, k], -1 for
    no key; every row has one."""
    rows = torch.arange(kv.shape[0]).view(-1, 1, 1)
    keys = kv.double().squeeze(2)[rows, indices.clamp_min(0).long()]
    scores = scaling * torch.einsum("bshd,bskd->bshk", query.double(), keys)
    weights = scores.masked_fill(indices.unsqueeze(2) < 0, float("-inf")).softmax(-1)
    return torch.einsum("bshk,bskd->bshd", weights, keys[..., :head_dim_v])


def _problem(head_dim: int, head_dim_v: int) -> dict[str, Any]:
    """Two queries of 16 heads on 64 keys, the last slot of each query no key."""
    generator = torch.Generator().manual_seed(2)
    query, key = (torch.randn(*shape, head_dim, generator=generator).to(torch.bfloat16) for shape in ((2, 1, 16), (64, 1, 1)))
    indices = torch.arange(64).expand(1, 2, 64).clone()
    indices[..., -1] = -1
    return {"query": query.requires_grad_(), "key": key.requires_grad_(), "topk_indices": indices, "softmax_scale": 0.3,
            "v_channels": head_dim_v}  # fmt: skip


def _reaches(absorbed: Function, head_dim: int, head_dim_v: int) -> bool:
    """Whether the release's own dispatcher hands these dimensions to a kernel."""
    kernel = _Kernel()
    detached(absorbed, SparseMLA=kernel)(**_problem(head_dim, head_dim_v))
    return kernel.num_calls > 0


# ---- switch ----


class _Dims(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "the release's kernels", KEYS
    counted = ("padded", "declined")

    def meaning(self, mode: str) -> str:
        return "pad"

    def op_note(self, mode: str) -> str:
        return ""

    def release(self) -> tuple[Modules, str]:
        version, modules = version_for(self), modules_for(self, ("dsa_kernels", "ops.tilelang_dsa"))
        function = getattr(modules.get("dsa_kernels"), NAME, None)
        absorbed = getattr(modules.get("ops.tilelang_dsa"), "fused_sparse_mla_absorbed", None)
        if function is None or absorbed is None:
            why = "it has no fused sparse-MLA dispatcher; 0.19.0 is the first that has"
            raise self.refusal(f"megatron-core {version}: {why}")
        if not own_function(function, modules["dsa_kernels"]) or not own_function(absorbed, modules["ops.tilelang_dsa"]):
            raise self.refusal(f"dsa_kernels.{NAME} or what it calls is wrapped already; undo that first")
        if list(inspect.signature(function).parameters) != TAKES:
            raise self.refusal(f"{NAME} takes other arguments than were measured: {inspect.signature(function)}")
        return modules, version

    def look(self, release: Modules, version: str) -> Finding:
        absorbed = release["ops.tilelang_dsa"].fused_sparse_mla_absorbed
        try:
            reached = [_reaches(absorbed, *dims) for dims in ((HEAD_DIM_QK, HEAD_DIM_V), (192, 128), (512, 512))]
        except Exception as e:
            return Finding("unknown", version, f"the dispatcher raised {type(e).__name__}: {(str(e).splitlines() or [''])[0]}")
        if not reached[0]:
            return Finding("unknown", version, "the dispatcher hands 576/512 to no kernel either")
        if all(reached):
            return Finding("right", version, "192/128 and 512/512 come to a kernel")
        return Finding("needed", version, "192/128 or 512/512 come to no kernel")

    def objection(self, release: Modules, finding: Finding) -> str:
        return f"megatron-core {finding.version}: {finding.reason}" if finding.state == "unknown" else ""

    def placements(self, release: Modules, hook: Hook) -> list[Placement]:
        original = getattr(release["dsa_kernels"], NAME)
        return [Placement(release["dsa_kernels"], NAME, original, padding(original, hook), f"dsa_kernels.{NAME}")]

    def left(self, release: Modules, hook: Hook) -> str:
        """Through the release's own dispatcher to a kernel that takes 576/512 alone: values and gradients of 192/128."""
        kernel, given = _Kernel(), _problem(192, 128)
        absorbed = detached(release["ops.tilelang_dsa"].fused_sparse_mla_absorbed, SparseMLA=kernel)
        backend = detached(hook.placements[0].original, _resolve_fused_hook=lambda *_: lambda *five_of: absorbed(*five_of[:5]))
        out = padding(backend, hook)(None, **given)
        if out is None or kernel.num_calls != 1:
            return "192/128 still come to no kernel"
        query, key = (given[name].transpose(0, 1) for name in ("query", "key"))
        wanted = attention(query, key, given["topk_indices"], given["softmax_scale"], 128).transpose(0, 1)
        leaves = (given["query"], given["key"])
        pairs = zip((out, *torch.autograd.grad(out.sum(), leaves)), (wanted, *torch.autograd.grad(wanted.sum(), leaves)),
                    strict=True)  # fmt: skip
        worst = max(((got.double() - ref).norm() / ref.double().norm()).item() for got, ref in pairs)
        # bf16 rounds each number once, by 2^-9 of it at most.
        return "" if worst < 2**-8 else f"192/128 are wrong by {worst:.1e}"


_own = _Dims()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
