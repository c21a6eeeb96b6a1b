"""Wrong and unusual arguments to every op of patchbench_ops on a CPU: an answer, or an exception that names the argument, never a
crash. Each case changes one tensor of a call that is right; seeds are fixed and PATCHBENCH_FUZZ_ROUNDS adds more of them."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from ops_package import OPS, patchbench_ops
from torch import Tensor

ROUNDS = int(os.environ.get("PATCHBENCH_FUZZ_ROUNDS", "1"))
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class Call(NamedTuple):
    """An operator and arguments that it takes."""

    op: Any
    tensors: dict[str, Tensor]
    rest: dict[str, Any]


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sparse_mla(backward: bool) -> Call:
    q, kv = drawn(1, 2, 3, 2, 48), drawn(2, 2, 5, 1, 48)
    indices = torch.randint(-1, 5, (2, 3, 1, 4), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    named = {"q": q, "kv": kv, "topk_indices": indices}
    if not backward:
        return Call(OPS.sparse_mla_forward.default, named, {"softmax_scale": 0.2, "head_dim_v": 32})
    out, lse, rest = OPS.sparse_mla_forward(q, kv, indices, softmax_scale=0.2, head_dim_v=32)
    saved = {"grad_out": torch.ones_like(out), "out": out, "out_remainder": rest, "lse": lse}
    return Call(OPS.sparse_mla_backward.default, saved | named, {"softmax_scale": 0.2})


def fp8(backward: bool) -> Call:
    q, q_scale = patchbench_ops.quantize_mla(drawn(1, 1, 3, 2, 576), "token")
    kv, kv_scale = patchbench_ops.quantize_mla(drawn(2, 1, 5, 1, 576), "token")
    indices = torch.randint(-1, 5, (1, 3, 1, 4), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    named = {"q": q, "q_scale": q_scale, "kv": kv, "kv_scale": kv_scale, "topk_indices": indices}
    if not backward:
        return Call(OPS.sparse_mla_fp8_forward.default, named, {"softmax_scale": 0.04})
    out, lse = OPS.sparse_mla_fp8_forward(*named.values(), softmax_scale=0.04)
    return Call(OPS.sparse_mla_fp8_backward.default, {"grad_out": out, "out": out, "lse": lse} | named, {"softmax_scale": 0.04})


def siso(backward: bool) -> Call:
    named = {"q": drawn(1, 2, 9, 2, 6), "k": drawn(2, 2, 9, 2, 6), "v": drawn(3, 2, 9, 2, 4)}
    named |= {"adt": -drawn(4, 2, 2, 9).abs(), "qk_dot": drawn(5, 2, 2, 9), "d": drawn(6, 2)}
    if not backward:
        return Call(OPS.mamba3_siso_forward.default, named, {"cu_seqlens": None, "chunk_size": 4})
    y, final_state, states = OPS.mamba3_siso_forward(*named.values(), None, 4)
    after = {"grad_out": y, "states": states, "grad_final_state": final_state}
    return Call(OPS.mamba3_siso_bwd.default, named | after, {"cu_seqlens": None, "chunk_size": 4})


def rotary() -> Call:
    shapes = {
        "q": (2, 5, 1, 8),
        "k": (2, 5, 1, 8),
        "q_bias": (2, 8),
        "k_bias": (2, 8),
        "angles": (2, 5, 2, 3),
        "angles_cumsum": (2, 5, 2, 3),
    }
    shapes |= {"dt": (2, 2, 5), "trap": (2, 2, 5), "grad_q_rotated": (2, 5, 2, 8), "grad_k_scaled": (2, 5, 2, 8), "grad_qk_dot": (2, 2, 5)}
    return Call(OPS.mamba3_siso_rotary_bwd.default, {name: drawn(i, *shape) for i, (name, shape) in enumerate(shapes.items())}, {})


def mimo() -> Call:
    b, s, r, g, h, n, p, a = 1, 6, 2, 1, 2, 8, 4, 2
    shapes = {"q": (b, s, r, g, n), "k": (b, s, r, g, n), "v": (b, s, h, p), "adt": (b, h, s), "dt": (b, h, s), "trap": (b, h, s)}
    shapes |= {name: (h, r, n) for name in ("q_bias", "k_bias")} | {name: (h, r, p) for name in ("mimo_v", "mimo_z", "mimo_o")}
    shapes |= {"angles": (b, s, h, a), "d": (h,), "z": (b, s, h, p), "grad_out": (b, s, h, p)}
    return Call(
        OPS.mamba3_mimo_bwd.default, {name: drawn(i, *shape) for i, (name, shape) in enumerate(shapes.items())}, {"cu_seqlens": None}
    )


def qk_dot(backward: bool) -> Call:
    named = {"q": drawn(1, 2, 5, 3, 2, 8), "k": drawn(2, 2, 5, 3, 2, 8), "q_bias": drawn(3, 4, 3, 8), "k_bias": drawn(4, 4, 3, 8)}
    grad = {"grad_qk_dot": drawn(5, 2, 4, 5, 3, 3)} if backward else {}
    return Call((OPS.mamba3_mimo_qk_dot_bwd if backward else OPS.mamba3_mimo_qk_dot).default, grad | named, {})


def cross_entropy(part: str) -> Call:
    labels = torch.randint(-1, 7, (2, 3), generator=torch.Generator().manual_seed(3))
    named, options = {"logits": drawn(1, 2, 3, 7), "labels": labels}, {"ignore_index": -1, "label_smoothing": 0.1}
    if part == "forward":
        return Call(OPS.cross_entropy_forward.default, named, options)
    if part == "statistics":
        return Call(OPS.cross_entropy_statistics.default, named, {"vocab_begin": 2})
    statistics = OPS.cross_entropy_statistics(*named.values())
    if part == "combine":
        return Call(OPS.cross_entropy_combine.default, {"statistics": torch.stack((statistics, statistics + 1))}, {})
    if part == "loss":
        return Call(OPS.cross_entropy_loss.default, {"statistics": statistics, "labels": labels}, {"vocab_total": 7} | options)
    given = {"grad_output": drawn(4, 2, 3), "statistics": statistics} | named
    return Call(OPS.cross_entropy_backward.default, given, {"vocab_begin": 0, "vocab_total": 7, "reduction": "none"} | options)


CALLS: dict[str, Callable[[], Call]] = {
    "mask": lambda: Call(OPS.topk_to_index_mask.default, {"topk_indices": torch.tensor([[[0, 5, -1, 5], [7, 8, 2, 2]]])}, {"seqlen_k": 9}),
    "sparse_mla_forward": lambda: sparse_mla(backward=False),
    "sparse_mla_backward": lambda: sparse_mla(backward=True),
    "fp8_forward": lambda: fp8(backward=False),
    "fp8_backward": lambda: fp8(backward=True),
    "siso_forward": lambda: siso(backward=False),
    "siso_backward": lambda: siso(backward=True),
    "rotary": rotary,
    "gate": lambda: Call(
        OPS.mamba3_siso_gate_bwd.default, {name: drawn(i, 2, 5, 2, 8) for i, name in enumerate(("grad_gated", "z", "out"))}, {}
    ),
    "group_reduce": lambda: Call(
        OPS.group_reduce_bwd.default, {"dq": drawn(1, 2, 3, 2, 4, 8), "dk": drawn(2, 2, 3, 2, 4, 8)}, {"num_groups": 2}
    ),
    "mimo": mimo,
    "qk_dot": lambda: qk_dot(backward=False),
    "qk_dot_backward": lambda: qk_dot(backward=True),
    "cross_entropy_forward": lambda: cross_entropy("forward"),
    "cross_entropy_statistics": lambda: cross_entropy("statistics"),
    "cross_entropy_combine": lambda: cross_entropy("combine"),
    "cross_entropy_loss": lambda: cross_entropy("loss"),
    "cross_entropy_backward": lambda: cross_entropy("backward"),
}


# ---- what is done to a tensor: its name, and whether its values and shape stay ----


def transposed(t: Tensor, chance: random.Random) -> Tensor:
    a, b = chance.randrange(t.dim()), chance.randrange(t.dim())
    return t.transpose(a, b).contiguous().transpose(a, b)


def sliced(t: Tensor, chance: random.Random) -> Tensor:
    axis = chance.randrange(t.dim())
    return torch.stack((t, t), axis + 1).flatten(axis, axis + 1).movedim(axis, -1)[..., ::2].movedim(-1, axis)


def shifted(t: Tensor, chance: random.Random) -> Tensor:
    held = torch.empty(t.numel() + 1, dtype=t.dtype)
    view = held[1:].view(t.shape)
    return view.copy_(t)


def cut(t: Tensor, chance: random.Random) -> Tensor:
    axis = chance.randrange(t.dim())
    return t.narrow(axis, 0, t.shape[axis] - 1 if chance.random() < 0.5 else 0)


def grown(t: Tensor, chance: random.Random) -> Tensor:
    axis = chance.randrange(t.dim())
    return torch.cat((t, t), axis) if t.dtype.itemsize > 1 else torch.cat((t.view(torch.uint8), t.view(torch.uint8)), axis).view(t.dtype)


def ranked(t: Tensor, chance: random.Random) -> Tensor:
    return t.unsqueeze(0) if chance.random() < 0.5 else t.flatten(0, 1) if t.dim() > 1 else t.sum()


def retyped(t: Tensor, chance: random.Random) -> Tensor:
    others = [torch.bool, torch.int16, torch.int64, torch.int32, torch.complex64, torch.float64, torch.float32, torch.float8_e5m2]
    return t.float().to(chance.choice([x for x in others if x != t.dtype]))


def moved(t: Tensor, chance: random.Random) -> Tensor:
    return t.to("meta")


SAME = [transposed, sliced, shifted]
OTHER = [cut, grown, ranked, retyped, moved]


def run(call: Call, tensors: dict[str, Tensor]) -> Any:
    """On the CPU's functions whatever a tensor is on."""
    names = [argument.name for argument in call.op._schema.arguments if not argument.kwarg_only]
    everything = tensors | {name: value for name, value in call.rest.items() if name in names}
    keywords = {name: value for name, value in call.rest.items() if name not in names}
    return call.op.redispatch(CPU, *(everything.get(name) for name in names if name in everything), **keywords)


def tensors_of(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("seed", range(4 * ROUNDS))
@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize("name", CALLS)
def test_strides_and_offsets_change_no_value(name: str, change: Callable[..., Tensor], seed: int) -> None:
    call, chance = CALLS[name](), random.Random(seed)
    wanted = tensors_of(run(call, call.tensors))
    which = chance.choice(sorted(call.tensors))
    try:
        given = change(call.tensors[which], chance)
    except (RuntimeError, NotImplementedError):  # float8 has few operators
        given = change(call.tensors[which].view(torch.uint8), chance).view(call.tensors[which].dtype)
    try:
        got = tensors_of(run(call, call.tensors | {which: given}))
    except RuntimeError as e:
        # The FP8 op refuses both, by name.
        assert name.startswith("fp8") and re.search(rf"\b{which}\b.* must (be contiguous|start at a multiple of 16)", str(e)), e
        return
    for ours, exactly in zip(got, wanted, strict=True):
        assert torch.equal(torch.nan_to_num(ours), torch.nan_to_num(exactly)) or (ours - exactly).abs().max() <= 1e-5 * exactly.abs().max()


@pytest.mark.parametrize("seed", range(6 * ROUNDS))
@pytest.mark.parametrize("change", OTHER)
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_tensor_is_named_or_answered(name: str, change: Callable[..., Tensor], seed: int) -> None:
    call, chance = CALLS[name](), random.Random(1000 + seed)
    if change is moved and len(call.tensors) == 1:
        pytest.skip("a tensor alone is on no other device")
    which = chance.choice(sorted(call.tensors))
    try:
        given = change(call.tensors[which], chance)
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch cannot make such a tensor")
    try:
        run(call, call.tensors | {which: given})
    except (RuntimeError, IndexError) as e:
        text = str(e)
        own = re.match(r"(\w+): .* must ", text) and any(
            re.search(rf"\b{other}\b", text) for other in (*call.tensors, "head_dim_qk", "mask")
        )
        assert own or "cu_seqlens" in text or "num_groups" in text or "an index is not below" in text, text
