"""Times Megatron-LM's fused absorbed entry on FP8 wrappers and on bfloat16 operands, in turn.

    PYTHONPATH=repro/bench:repro/harness:repro/fp8_storage_dispatch:repro/sparse_mla_dims:MEGATRON:TRANSFORMER_ENGINE:TILELANG \\
        PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_dispatch.py [--shape ...] [--repeats 20]

MEGATRON is megatron-core with the pack's edits. "bf16": its kernels on bfloat16 operands. "fp8": its kernels on the stored bytes of
per-tensor E4M3 wrappers. "fp8, quantised": the same, and query and kv are quantised from bfloat16 in the time taken (amax, scale and
cast in torch: TransformerEngine's own quantiser is compiled). "op bf16", "op fp8": patchbench::sparse_mla and ::sparse_mla_fp8 on the
same. "step" is forward and backward through autograd. Peaks are above the operands. Errors are against float64: of "fp8" on the stored
values, `error_of_bf16_values` on the values before they were stored: [of the whole, of the worst row].
"""

from __future__ import annotations

import functools
import importlib
import os
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType

import torch
from bench_main import Bench, Shape, bench_main, versions
from device_time import in_turn, peak_bytes

SHAPES = [[1, 1024, 8192, 128, 2048], [1, 4096, 8192, 128, 2048], [1, 1024, 65536, 128, 2048], [1, 1024, 8192, 16, 2048]]
PACKAGES = ("megatron-core", "transformer-engine", "tilelang", "torch")
HEAD_DIM, HEAD_DIM_V = 576, 512
SCALE = HEAD_DIM**-0.5
Pair = tuple[torch.Tensor, torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@functools.cache
def subject() -> ModuleType:
    """The pack's subject, with megatron-core as the upstream under test."""
    os.environ["PATCHBENCH_UPSTREAM"] = "megatron-core"
    return importlib.import_module("subject")


def quantised(dense: torch.Tensor) -> torch.Tensor:
    """The wrapper around a bfloat16 tensor's e4m3 bytes, with one scale."""
    scale = dense.abs().amax().float() / 448
    payload = (dense / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    return subject().make_wrapper("float8", payload, scale.reshape(1))


def with_gradient(attend: Attend, operands: Pair, grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """out, grad_query and grad_kv, by autograd."""
    leaves = [tensor.detach().requires_grad_() for tensor in operands]
    out = attend(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, grad_out))


def quantised_step(attend: Attend, operands: Pair, grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return with_gradient(attend, tuple(map(quantised, operands)), grad_out)


def entry(indices: torch.Tensor) -> Attend:
    """The release's entry for [seqlen, batch, heads, head_dim]."""
    absorbed = subject().dispatcher()[1].fused_sparse_mla_absorbed

    def attend(query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        out = absorbed(query, kv, indices, SCALE, HEAD_DIM_V)
        if out is None:
            raise RuntimeError("the entry declines the operands")
        return out

    return attend


def op(indices: torch.Tensor) -> Attend:
    """patchbench::sparse_mla on the same tensors."""
    patchbench_ops = importlib.import_module("patchbench_ops")

    def attend(query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        q, k = query.transpose(0, 1), kv.transpose(0, 1)
        out = patchbench_ops.sparse_mla(q, k, indices.unsqueeze(2), softmax_scale=SCALE, head_dim_v=HEAD_DIM_V)[0]
        return out.transpose(0, 1).contiguous()

    return attend


def op_fp8(indices: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]:
    """A forward and a backward of patchbench::sparse_mla_fp8 on the bytes of two wrappers."""
    ops = torch.ops.patchbench

    def step(query: torch.Tensor, kv: torch.Tensor, grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stored = []
        for wrapper in (query, kv):
            stored += [wrapper._data.transpose(0, 1).contiguous().view(torch.float8_e4m3fn), wrapper._scale_inv]
        named = indices.unsqueeze(2)
        out, lse = ops.sparse_mla_fp8_forward(*stored, named, softmax_scale=SCALE)
        grads = ops.sparse_mla_fp8_backward(grad_out.transpose(0, 1).contiguous(), out, lse, *stored, named, softmax_scale=SCALE)
        return tuple(t.transpose(0, 1).contiguous() for t in (out, *grads))

    return step


def errors_of(got: tuple[torch.Tensor, ...], operands: Pair, indices: torch.Tensor, grad_out: torch.Tensor) -> dict[str, list]:
    query, kv, grad = (t.transpose(0, 1) for t in (*operands, grad_out))
    oracle = importlib.import_module("oracle")
    want = oracle.attention(query, kv, indices.unsqueeze(2), grad, SCALE)
    names = ("out", "grad_q", "grad_kv")
    return {name: oracle.error(tensor.transpose(0, 1), want[name]) for name, tensor in zip(names, got, strict=True)}


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    batch, queries, keys, heads, topk = shape
    torch.manual_seed(3)
    bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
    dense = torch.randn(queries, batch, heads, HEAD_DIM, **bf16), torch.randn(keys, batch, 1, HEAD_DIM, **bf16)
    grad_out = torch.randn(queries, batch, heads, HEAD_DIM_V, **bf16)
    indices = torch.rand(batch, queries, keys, device="cuda").topk(topk, dim=-1).indices.to(torch.int32)
    stored = tuple(map(quantised, dense))
    attend, ours, ours_fp8 = entry(indices), op(indices), op_fp8(indices)
    # Not dequantize(), which rounds them to bfloat16.
    values = tuple(wrapper._data.view(torch.float8_e4m3fn).float() * wrapper._scale_inv for wrapper in stored)
    got = with_gradient(attend, stored, grad_out)
    row = {"shape": shape, "stored_bytes": stored[1].numel(), "dense_bytes": 2 * stored[1].numel()}
    row["error"] = {
        "fp8": errors_of(got, values, indices, grad_out),
        "bf16": errors_of(with_gradient(attend, dense, grad_out), dense, indices, grad_out),
    }
    row["error_of_bf16_values"] = errors_of(got, dense, indices, grad_out)
    calls = {
        "bf16 forward": lambda _: attend(*dense),
        "fp8 forward": lambda _: attend(*stored),
        "fp8, quantised forward": lambda _: attend(*map(quantised, dense)),
        "bf16 step": lambda _: with_gradient(attend, dense, grad_out),
        "fp8 step": lambda _: with_gradient(attend, stored, grad_out),
        "fp8, quantised step": lambda _: quantised_step(attend, dense, grad_out),
        "op bf16 step": lambda _: with_gradient(ours, dense, grad_out),
        "op fp8 step": lambda _: ours_fp8(*stored, grad_out),
    }
    row["ms"] = in_turn(calls, options.repeats)
    row["peak_bytes"] = {name: peak_bytes(lambda call=call: call(0)) for name, call in calls.items()}
    return [row]


AXES = "batch, queries, keys, heads, topk"
BENCH = Bench("fp8_storage_dispatch dispatch", rows_of, SHAPES, AXES, repeats=10, about=lambda: {"versions": versions(*PACKAGES)})

if __name__ == "__main__":
    bench_main(BENCH)
