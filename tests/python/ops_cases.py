"""One small case of every operator of patchbench_ops, in a shape that its kernels serve on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from ops_package import OPS, patchbench_ops
from torch import Tensor

bf16 = torch.bfloat16


class Case(NamedTuple):
    """`run` of `tensors` gives the results; `leaves` of them have a gradient, of the first result; `path` says who does it."""

    tensors: dict[str, Tensor]
    leaves: tuple[str, ...]
    run: Callable[[dict[str, Tensor]], tuple[Tensor, ...]]
    path: Callable[[dict[str, Tensor]], str]


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def indices(seqlen_k: int, *shape: int) -> Tensor:
    """Some of them invalid."""
    return torch.randint(-1, seqlen_k, shape, generator=torch.Generator().manual_seed(3), dtype=torch.int32)


def mask() -> Case:
    def run(t: dict[str, Tensor]) -> tuple[Tensor, ...]:
        made = patchbench_ops.topk_to_index_mask(t["topk_indices"], 70)
        return made, patchbench_ops.topk_to_index_mask_(made.clone(), t["topk_indices"])

    return Case({"topk_indices": indices(70, 2, 5, 8)}, (), run, lambda t: OPS.topk_to_index_mask_path(t["topk_indices"]))


def sparse_mla() -> Case:
    tensors = {"q": drawn(1, 1, 3, 16, 576, dtype=bf16), "kv": drawn(2, 1, 90, 1, 576, dtype=bf16)}
    tensors["topk_indices"] = indices(90, 1, 3, 1, 70)
    return Case(
        tensors,
        ("q", "kv"),
        lambda t: patchbench_ops.sparse_mla(*t.values(), softmax_scale=1 / 24, head_dim_v=512),
        lambda t: patchbench_ops.sparse_mla_path(t["q"], 512),
    )


def fp8(layout: str) -> Case:
    tensors = {"query": drawn(1, 1, 3, 16, 576, dtype=bf16), "kv": drawn(2, 1, 90, 1, 576, dtype=bf16)}
    tensors["topk_indices"] = indices(90, 1, 3, 1, 70)

    def path(t: dict[str, Tensor]) -> str:
        return patchbench_ops.sparse_mla_fp8_path(patchbench_ops.quantize_mla(t["kv"], layout)[0])

    def run(t: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return patchbench_ops.sparse_mla_fp8(*t.values(), layout=layout, softmax_scale=1 / 24)

    return Case(tensors, ("query", "kv"), run, path)


def fp8_halves() -> Case:
    """The operators that sparse_mla_fp8 is made of, over stored operands."""
    tensors = {"query": drawn(1, 1, 3, 16, 576, dtype=bf16), "kv": drawn(2, 1, 90, 1, 576, dtype=bf16)}
    tensors["topk_indices"] = indices(90, 1, 3, 1, 70)

    def run(t: dict[str, Tensor]) -> tuple[Tensor, ...]:
        q, kv = (patchbench_ops.quantize_mla(t[name], "token") for name in ("query", "kv"))
        stored = (*q, *kv, t["topk_indices"])
        out, lse = patchbench_ops.sparse_mla_fp8_forward(*stored, softmax_scale=1 / 24)
        grads = patchbench_ops.sparse_mla_fp8_backward(out, out, lse, *stored, softmax_scale=1 / 24)
        return out, lse, *grads, patchbench_ops.dequantize_mla(*kv)

    return Case(tensors, (), run, fp8("token").path)


def siso() -> Case:
    tensors = {"q": drawn(1, 1, 70, 2, 64, dtype=bf16), "k": drawn(2, 1, 70, 2, 64, dtype=bf16), "v": drawn(3, 1, 70, 2, 64, dtype=bf16)}
    tensors |= {"adt": -drawn(4, 1, 2, 70).abs(), "qk_dot": drawn(5, 1, 2, 70), "d": drawn(6, 2), "initial_state": drawn(7, 1, 2, 64, 64)}

    def run(t: dict[str, Tensor]) -> tuple[Tensor, ...]:
        *first, state = t.values()
        return patchbench_ops.mamba3_siso(*first, initial_state=state)

    return Case(tensors, tuple(tensors), run, lambda t: OPS.mamba3_siso_bwd_path(t["q"], t["v"], None, 64))


def siso_backward() -> Case:
    tensors = siso().tensors | {"grad_out": drawn(8, 1, 70, 2, 64, dtype=bf16)}

    def run(t: dict[str, Tensor]) -> tuple[Tensor, ...]:
        *first, state, grad_out = t.values()
        _, _, states = OPS.mamba3_siso_forward(*first, None, 64, state)
        return patchbench_ops.mamba3_siso_bwd(*first, None, 64, grad_out, states)

    return Case(tensors, (), run, siso().path)


def rotary() -> Case:
    b, s, g, h, n, r = 1, 70, 1, 2, 64, 16
    low = {"q": (b, s, g, n), "k": (b, s, g, n), "angles": (b, s, h, r), "angles_cumsum": (b, s, h, r)}
    low |= {"grad_q_rotated": (b, s, h, n), "grad_k_scaled": (b, s, h, n)}
    wide = {"q_bias": (h, n), "k_bias": (h, n), "dt": (b, h, s), "trap": (b, h, s), "grad_qk_dot": (b, h, s)}
    made = {name: drawn(i, *shape, dtype=bf16) for i, (name, shape) in enumerate(low.items())}
    made |= {name: drawn(20 + i, *shape) for i, (name, shape) in enumerate(wide.items())}
    return Case(
        made,
        (),
        lambda t: patchbench_ops.mamba3_siso_rotary_bwd(**t),
        lambda t: OPS.mamba3_siso_rotary_bwd_path(t["q"], t["q_bias"], t["angles"]),
    )


def gate() -> Case:
    tensors = {name: drawn(i, 1, 70, 2, 64, dtype=bf16) for i, name in enumerate(("grad_gated", "z", "out"))}
    return Case(tensors, (), lambda t: patchbench_ops.mamba3_siso_gate_bwd(**t), lambda t: OPS.mamba3_siso_gate_bwd_path(t["z"]))


def group_reduce() -> Case:
    tensors = {"dq": drawn(1, 2, 3, 2, 4, 64, dtype=bf16), "dk": drawn(2, 2, 3, 2, 4, 64, dtype=bf16)}
    return Case(tensors, (), lambda t: patchbench_ops.group_reduce_bwd(**t, num_groups=2), lambda t: OPS.group_reduce_bwd_path(t["dq"], 2))


def mimo() -> Case:
    b, s, r, g, h, n, p, a = 1, 70, 4, 1, 2, 64, 64, 16
    shapes = {"q": (b, s, r, g, n), "k": (b, s, r, g, n), "v": (b, s, h, p), "adt": (b, h, s), "dt": (b, h, s), "trap": (b, h, s)}
    shapes |= {name: (h, r, n) for name in ("q_bias", "k_bias")} | {name: (h, r, p) for name in ("mimo_v", "mimo_z", "mimo_o")}
    shapes |= {"angles": (b, s, h, a), "d": (h,), "z": (b, s, h, p), "grad_out": (b, s, h, p)}
    low = ("q", "k", "v", "z", "grad_out")
    made = {name: drawn(i, *shape, dtype=bf16 if name in low else torch.float32) for i, (name, shape) in enumerate(shapes.items())}
    made |= {"adt": -made["adt"].abs(), "dt": made["dt"].abs()}
    return Case(
        made,
        (),
        lambda t: patchbench_ops.mamba3_mimo_bwd(**t, cu_seqlens=None),
        lambda t: OPS.mamba3_mimo_bwd_path(t["q"], t["v"], t["angles"], None),
    )


def qk_dot() -> Case:
    tensors = {"q": drawn(1, 1, 70, 4, 1, 128, dtype=bf16), "k": drawn(2, 1, 70, 4, 1, 128, dtype=bf16)}
    tensors |= {"q_bias": drawn(3, 2, 4, 128), "k_bias": drawn(4, 2, 4, 128)}
    return Case(
        tensors,
        tuple(tensors),
        lambda t: (patchbench_ops.mamba3_mimo_qk_dot(**t),),
        lambda t: OPS.mamba3_mimo_qk_dot_path(t["q"]),
    )


def cross_entropy() -> Case:
    tensors = {"logits": drawn(1, 2, 5, 130, dtype=bf16), "labels": indices(130, 2, 5).long()}
    options = {"reduction": "none", "ignore_index": -1, "label_smoothing": 0.1}
    return Case(
        tensors,
        ("logits",),
        lambda t: (patchbench_ops.cross_entropy(**t, **options),),
        lambda t: patchbench_ops.cross_entropy_path(t["logits"]),
    )


def cross_entropy_parts() -> Case:
    """Two ranks with one half of the classes each."""
    tensors = cross_entropy().tensors | {"grad_output": drawn(2, 2, 5)}
    options = {"reduction": "none", "ignore_index": -1, "label_smoothing": 0.1}

    def run(t: dict[str, Tensor]) -> tuple[Tensor, ...]:
        logits, labels, grad_output = t.values()
        halves = [(logits[..., :65].contiguous(), 0), (logits[..., 65:].contiguous(), 65)]
        each = [patchbench_ops.cross_entropy_statistics(half, labels, first) for half, first in halves]
        both = patchbench_ops.cross_entropy_combine(torch.stack(each))
        grads = [patchbench_ops.cross_entropy_backward(grad_output, both, half, labels, first, 130, **options) for half, first in halves]
        for half, first in halves:
            patchbench_ops.cross_entropy_backward_(grad_output, both, half, labels, first, 130, **options)
        return patchbench_ops.cross_entropy_loss(both, labels, 130, **options), both, *grads, *(half for half, _ in halves)

    return Case(tensors, (), run, cross_entropy().path)


CASES: dict[str, Callable[[], Case]] = {
    "cross_entropy": cross_entropy,
    "cross_entropy_parts": cross_entropy_parts,
    "topk_to_index_mask": mask,
    "sparse_mla": sparse_mla,
    "sparse_mla_fp8_tensor": lambda: fp8("tensor"),
    "sparse_mla_fp8_token": lambda: fp8("token"),
    "sparse_mla_fp8_block": lambda: fp8("block"),
    "sparse_mla_fp8_forward_and_backward": fp8_halves,
    "mamba3_siso": siso,
    "mamba3_siso_bwd": siso_backward,
    "mamba3_siso_rotary_bwd": rotary,
    "mamba3_siso_gate_bwd": gate,
    "group_reduce_bwd": group_reduce,
    "mamba3_mimo_bwd": mimo,
    "mamba3_mimo_qk_dot": qk_dot,
}
# The operators that add atomically in their kernels.
ATOMIC = {name for name in CASES if name.startswith("sparse_mla")}
