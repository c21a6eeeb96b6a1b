"""Other implementations of sparse MLA for bench_sparse_mla.py: each takes the same operands and gives the same tensors.

`peers()` tries to import each and says of those that are absent why. A peer that cannot take a shape says so by raising.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import pad

VARIANT = "megatron.core.transformer.experimental_attention_variant"
NATIVE = (576, 512)


@dataclasses.dataclass
class Operands:
    """One problem: q [batch, seqlen_q, num_heads, head_dim_qk], kv [batch, seqlen_k, 1, head_dim_qk], topk_indices [batch, seqlen_q,
    1, topk] int32 with -1 for no key, grad_out; then what patchbench's forward gave, which all backwards are given."""

    q: torch.Tensor
    kv: torch.Tensor
    indices: torch.Tensor
    grad_out: torch.Tensor
    scale: float
    is_causal: bool  # query i attends to keys up to i
    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    rest: torch.Tensor | None = None
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)  # what a peer prepares once, outside of the time taken

    @property
    def head_dim_v(self) -> int:
        return self.grad_out.shape[-1]

    @property
    def widths(self) -> tuple[int, int]:
        return self.q.shape[-1], self.head_dim_v

    @property
    def topk_length(self) -> torch.Tensor | None:
        """[seqlen_q] int32, how many keys each query has, where they come first and -1 after them, as of a causal set; else None."""
        if not self.is_causal:
            return None
        return self.prepared("topk_length", lambda: (self.indices[0, :, 0] >= 0).sum(-1, dtype=torch.int32))

    def prepared(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


Call = Callable[[Operands], tuple[torch.Tensor, ...]]
Calls = dict[str, Call]  # "forward" -> out, "backward" -> (grad_q, grad_kv), "step" -> (out, grad_q, grad_kv)


class CannotTake(Exception):
    """This peer has no kernel for the operands."""


def stepped(forward: Call) -> Call:
    """A forward and a backward through autograd."""

    def step(o: Operands) -> tuple[torch.Tensor, ...]:
        q, kv = (t.detach().requires_grad_() for t in (o.q, o.kv))
        (out,) = forward(dataclasses.replace(o, q=q, kv=kv))
        return (out.detach(), *torch.autograd.grad(out, (q, kv), o.grad_out))

    return step


# ---- patchbench ----


def patchbench() -> Calls:
    patchbench_ops, ops = importlib.import_module("patchbench_ops"), torch.ops.patchbench

    def forward(o: Operands) -> tuple[torch.Tensor, ...]:
        """out and lse alone, as of the others; a step's forward writes out_remainder, too."""
        return ops.sparse_mla_forward(o.q, o.kv, o.indices, softmax_scale=o.scale, head_dim_v=o.head_dim_v, delta="rounded")

    def backward(o: Operands) -> tuple[torch.Tensor, ...]:
        return ops.sparse_mla_backward(o.grad_out, o.out, o.rest, o.lse, o.q, o.kv, o.indices, softmax_scale=o.scale)

    def attend(o: Operands) -> tuple[torch.Tensor, ...]:
        return (patchbench_ops.sparse_mla(o.q, o.kv, o.indices, softmax_scale=o.scale, head_dim_v=o.head_dim_v)[0],)

    return {"forward": forward, "backward": backward, "step": stepped(attend)}


# ---- Zeros for peers of fixed sizes ----


def padded(tensor: torch.Tensor, width: int, heads: int = 0) -> torch.Tensor:
    """[..., heads, width], with zeros after what is there; `heads` 0: as many as there are."""
    more = (width - tensor.shape[-1], max(0, heads - tensor.shape[-2]))
    return pad(tensor, (0, more[0], 0, more[1])) if any(more) else tensor


def cut(tensor: torch.Tensor, width: int, heads: int = 0) -> torch.Tensor:
    """The columns, and heads, without what `padded` put after them."""
    heads = heads or tensor.shape[-2]
    return tensor if tensor.shape[-2:] == (heads, width) else tensor[..., :heads, :width].contiguous()


def wide(o: Operands) -> tuple[int, int]:
    """The widths that FlashMLA and cudnn-frontend have kernels for: the least that hold the operands'."""
    if o.q.shape[-1] > NATIVE[0] or o.head_dim_v > NATIVE[1]:
        raise CannotTake(f"takes head_dim_qk up to {NATIVE[0]} and head_dim_v up to {NATIVE[1]}")
    return (NATIVE[1] if o.q.shape[-1] <= NATIVE[1] else NATIVE[0]), NATIVE[1]


# ---- megatron-core ----


def release() -> Calls:
    """The TileLang kernels of the installed megatron-core at 576/512; at less, with zeros to the right and off again."""
    need("tilelang")
    forward_kernel = importlib.import_module(f"{VARIANT}.ops.tilelang_sparse_mla_fwd").sparse_mla_fwd_interface
    backward_kernel = importlib.import_module(f"{VARIANT}.ops.tilelang_sparse_mla_bwd").sparse_mla_bwd
    function = importlib.import_module(f"{VARIANT}.ops.sparse_mla").SparseMLA

    def forward(o: Operands) -> tuple[torch.Tensor, ...]:
        out, lse = forward_kernel(padded(o.q, NATIVE[0]), padded(o.kv, NATIVE[0]), o.indices, sm_scale=o.scale)
        return cut(out, o.head_dim_v), lse

    def backward(o: Operands) -> tuple[torch.Tensor, ...]:
        q, kv = o.prepared("padded", lambda: (padded(o.q, NATIVE[0]), padded(o.kv, NATIVE[0])))  # autograd would have kept them
        wide = o.prepared("padded out", lambda: padded(o.out, NATIVE[1]))
        made = backward_kernel(q, kv, wide, padded(o.grad_out, NATIVE[1]), o.indices, o.lse, sm_scale=o.scale)
        return tuple(cut(grad, o.q.shape[-1]) for grad in made)

    def attend(o: Operands) -> tuple[torch.Tensor, ...]:
        out, _ = function.apply(padded(o.q, NATIVE[0]), padded(o.kv, NATIVE[0]), o.indices, o.scale)
        return (cut(out, o.head_dim_v),)

    return {"forward": forward, "backward": backward, "step": stepped(attend)}


def dense() -> Calls:
    """What megatron-core does at other shapes: the scores in full. The caller's layout is its own: permuted views do."""
    attend_all = importlib.import_module(f"{VARIANT}.dsa")._unfused_absorbed_dsa_fn

    def attend(o: Operands) -> tuple[torch.Tensor, ...]:
        if o.widths == NATIVE:
            raise CannotTake("not taken there: the release has kernels")
        mask = torch.zeros(1, 1, device=o.q.device).expand(o.q.shape[1], o.kv.shape[1])
        named = o.indices.squeeze(2)
        out = attend_all(o.q.transpose(0, 1), o.kv.transpose(0, 1), named, o.scale, o.head_dim_v, mask=mask)
        return (out.transpose(0, 1),)

    def forward(o: Operands) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return attend(o)

    return {"forward": forward, "step": stepped(attend)}


def in_layout_of_megatron() -> dict[str, Calls]:
    """The release's own entry, which permutes [seqlen, batch, ...] to what its kernels take and back, and patchbench on the same."""
    absorbed = importlib.import_module(f"{VARIANT}.ops.tilelang_dsa").fused_sparse_mla_absorbed
    patchbench_ops = importlib.import_module("patchbench_ops")

    def entry(o: Operands) -> tuple[torch.Tensor, ...]:
        out = absorbed(o.q, o.kv, o.indices.squeeze(2), o.scale, o.head_dim_v)
        if out is None:
            raise CannotTake("the release's entry declines the shape")
        return (out,)

    def ours(o: Operands) -> tuple[torch.Tensor, ...]:
        q, kv = (t.transpose(0, 1) for t in (o.q, o.kv))
        out, _ = patchbench_ops.sparse_mla(q, kv, o.indices, softmax_scale=o.scale, head_dim_v=o.head_dim_v)
        return (out.transpose(0, 1).contiguous(),)

    def both(attend: Call) -> Calls:
        turned = {}

        def sbhd(o: Operands) -> Operands:
            if id(o) not in turned:
                flat = {name: getattr(o, name).transpose(0, 1).contiguous() for name in ("q", "kv", "grad_out")}
                turned[id(o)] = dataclasses.replace(o, **flat)
            return turned[id(o)]

        step = stepped(attend)
        return {"forward": lambda o: tuple(t.transpose(0, 1) for t in attend(sbhd(o))),
                "step": lambda o: tuple(t.transpose(0, 1) for t in step(sbhd(o)))}  # fmt: skip

    return {"megatron-core, [s, b, h, d]": both(entry), "patchbench, [s, b, h, d]": both(ours)}


# ---- TileLang's example ----


def example() -> Calls:
    """The example for DeepSeek V3.2: its pipelined forward, its backward of 64 heads and 256 threads a block."""
    need("tilelang")
    try:
        importlib.import_module("deepseek_v32")
    except ImportError:
        raise ImportError("no folder deepseek_v32 of TileLang's examples on PYTHONPATH") from None
    sys.modules.setdefault("utils", ModuleType("utils")).assert_tensors_similar = None  # the example's own comparison
    forward_of = importlib.import_module("deepseek_v32.sparse_mla_fwd_pipelined").sparse_mla_fwd_interface
    backward_of = importlib.import_module("deepseek_v32.sparse_mla_bwd").sparse_mla_bwd

    def late(o: Operands) -> torch.Tensor:
        """No key is a key after the query there, not -1."""
        return o.prepared("late", lambda: o.indices.masked_fill(o.indices < 0, o.kv.shape[1]))

    def forward(o: Operands) -> tuple[torch.Tensor, ...]:
        if o.widths != NATIVE:
            raise CannotTake("asserts head_dim_qk 576")
        first = 0 if o.is_causal else o.kv.shape[1]
        words = {"q_start_index_s": first, "kv_stride": 1, "sm_scale": o.scale}
        make = lambda: forward_of(o.q, o.kv, late(o), return_kernel=True, **words)  # noqa: E731
        kernel = o.prepared("pipelined", make)
        start = o.prepared("start", lambda: torch.tensor([first], dtype=torch.int32, device=o.q.device))
        return tuple(kernel(o.q, o.kv, late(o), start))

    def backward(o: Operands) -> tuple[torch.Tensor, ...]:
        if o.widths != NATIVE:
            raise CannotTake("fixes head_dim_v 512 and multiplies a tail")
        if not o.is_causal:
            raise CannotTake("masks keys after the query's own index: taken where queries and keys are the same positions")
        return backward_of(o.q, o.kv, o.out, o.grad_out, late(o), o.lse, sm_scale=o.scale)

    return {"forward": forward, "backward": backward}


# ---- cudnn-frontend ----


def cudnn_frontend() -> Calls:
    """The backward for sm_90 of its DeepSeek sparse attention, with zeros after smaller widths. Its forward is for sm_100 alone."""
    wrapper = importlib.import_module("cudnn").DSA.sparse_attention_backward_wrapper

    def backward(o: Operands) -> tuple[torch.Tensor, ...]:
        if o.q.shape[0] != 1:
            raise CannotTake("takes one batch of packed rows")
        width, values = wide(o)
        q, kv, out = o.prepared("wide", lambda: (padded(o.q, width), padded(o.kv, width), padded(o.out, values)))  # autograd keeps them
        lse = o.prepared("natural lse", lambda: (o.lse[0] * math.log(2)).contiguous())
        sink = o.prepared("no sink", lambda: torch.full((o.q.shape[2],), -math.inf, device=o.q.device))
        made = wrapper(q[0], kv[0, :, 0], out[0], padded(o.grad_out, values)[0], lse, sink, o.indices[0, :, 0],
                       softmax_scale=o.scale, topk_length=o.topk_length)  # fmt: skip
        return tuple(cut(grad, o.q.shape[-1]) for grad in (made["dq"].unsqueeze(0), made["dkv"].unsqueeze(0).unsqueeze(2)))

    return {"backward": backward}


# ---- FlashMLA ----


def flash_mla() -> Calls:
    """The forward of its sparse prefill, for 64 or 128 heads. Missing heads and columns are filled with zeros."""
    attend = importlib.import_module("flash_mla").flash_mla_sparse_fwd

    def forward(o: Operands) -> tuple[torch.Tensor, ...]:
        heads = o.q.shape[2]
        if o.q.shape[0] != 1 or heads > 128:
            raise CannotTake("takes one batch entry and at most 128 heads")
        width, values = wide(o)
        q, kv = padded(o.q, width, 64 if heads <= 64 else 128), padded(o.kv, width)
        out, _, _ = attend(q[0], kv[0], o.indices[0], o.scale, values, topk_length=o.topk_length)
        return (cut(out.unsqueeze(0), o.head_dim_v, heads),)

    return {"forward": forward}


def need(module: str) -> None:
    importlib.import_module(module)


PEERS: dict[str, Callable[[], Calls]] = {
    "megatron-core": release, "megatron-core, dense": dense, "TileLang example": example, "cudnn-frontend": cudnn_frontend,
    "FlashMLA": flash_mla,
}  # fmt: skip


def peers() -> tuple[dict[str, Calls], dict[str, str]]:
    """What can be imported here by name, patchbench first, and why the others cannot."""
    found, absent = {"patchbench": patchbench()}, {}
    for name, load in PEERS.items():
        try:
            found[name] = load()
        except Exception as error:  # a package that is there may fail in many ways
            absent[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return found, absent
