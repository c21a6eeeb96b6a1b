"""Runs the real sparse-MLA backward of the project on the path; lowers megatron-core's real TileLang kernels for a GPU that is not there.

Axes of a case: `site` ("delta": the gradients; "lowering": whether the kernels lower; "smem_overlap": whether the compiler lays the
staging buffers of dKV over Q), the shape and, where it lowers, `arch`; of megatron-core's "delta" `is_batched` (operands with a batch
axis), `is_padded` (a query's keys are padded to a larger number) and `scale_times` (a power of 2: the scale times it, q divided by it).
At "delta" without a GPU the kernels are run as written by stand_in.py; elsewhere TileLang is the real one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import carriers
import compiled_kernel
import shared_memory
import stand_in
import torch
from subject_runtime import Case, Unsupported

UPSTREAM = os.environ.get("PATCHBENCH_UPSTREAM", "megatron-core")
PACKAGES = {"tilelang": "tilelang", "tilelang-examples": "deepseek_v32"}
PACKAGE = PACKAGES.get(UPSTREAM) or carriers.PACKAGE or "megatron.core"
OPS = "megatron.core.transformer.experimental_attention_variant.ops"
#: What an example of TileLang takes for no key: an index after every query. Rows of 0 are there to be read.
NUM_PADDED = 64


@contextlib.contextmanager
def language_of(is_stood_in: bool) -> Iterator[None]:
    """stand_in's TileLang in the place of the installed one while open, or that one."""
    language = stand_in.modules() if is_stood_in else {}
    hidden = {one: sys.modules.pop(one) for one in language if one in sys.modules}
    sys.modules.update(language)
    try:
        yield
    finally:
        for one in language:
            del sys.modules[one]
        sys.modules.update(hidden)


@functools.cache
def ops_module(name: str, is_stood_in: bool) -> Any:
    """A module of the release's kernels, imported once with stand_in's TileLang and once with the installed one: what a
    mitigation replaced in it stays replaced in the next case."""
    for loaded in [one for one in sys.modules if one.startswith(f"{OPS}.")]:
        del sys.modules[loaded]
    try:
        with language_of(is_stood_in):
            return importlib.import_module(f"{OPS}.{name}")
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("megatron"):
            raise
        raise Unsupported(f"no {e.name} in this release") from e


def carried_gradients(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, grad_out: torch.Tensor) -> None:
    """By a project's own autograd function."""
    out, _ = carriers.carried("sparse_mla").SparseMLA.apply(q, kv, indices.unsqueeze(1), q.shape[-1] ** -0.5)
    out.backward(grad_out)


def example_gradients(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, grad_out: torch.Tensor) -> None:
    """By the two functions of TileLang's example for DeepSeek V3.2, whose kernels take every index up to a query's own position."""
    sys.modules["utils"] = types.ModuleType("utils")
    sys.modules["utils"].assert_tensors_similar = None
    forward, backward = (importlib.import_module(f"deepseek_v32.sparse_mla_{step}") for step in ("fwd", "bwd"))
    q_all, index = q.detach().unsqueeze(0), indices.masked_fill(indices < 0, len(kv)).unsqueeze(0).unsqueeze(2)
    kv_all = torch.cat([kv.detach(), kv.new_zeros(NUM_PADDED, *kv.shape[1:])]).unsqueeze(0)
    out, lse = forward.sparse_mla_fwd_interface(q_all, kv_all, index)
    grad_q, grad_kv = backward.sparse_mla_bwd(q_all, kv_all, out, grad_out.unsqueeze(0), index, lse)
    q.grad, kv.grad = grad_q[0], grad_kv[0, : len(kv)]


def prime_gradients(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, grad_out: torch.Tensor) -> None:
    """By prime-rl's two functions, whose kernels take every index but that of the last key."""
    forward, backward = (carriers.carried(f"sparse_mla_{step}") for step in ("fwd", "bwd"))
    scale = q.shape[-1] ** -0.5
    q_all, index = q.detach().unsqueeze(0), indices.masked_fill(indices < 0, len(kv)).unsqueeze(0).unsqueeze(2)
    kv_all = torch.cat([kv.detach(), kv.new_zeros(1, *kv.shape[1:])]).unsqueeze(0)
    out, lse = forward.sparse_mla_fwd_interface(q_all, kv_all, index, scale)
    grad_q, grad_kv = backward.sparse_mla_bwd(q_all, kv_all, out, grad_out.unsqueeze(0), index, lse, scale)
    q.grad, kv.grad = grad_q[0], grad_kv[0, : len(kv)]


def megatron_gradients(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, grad_out: torch.Tensor, axes: dict[str, Any]) -> None:
    """By megatron-core's autograd function; of several backwards through one graph the last one's; those before it have half the
    gradient."""
    num_backwards = axes.get("backwards", 1)
    sizes = {"MCORE_DSA_TILELANG_SEQ_BUCKET": "1"}  # rows and keys are otherwise padded to 256
    if axes.get("is_padded"):
        sizes["MCORE_DSA_TILELANG_TOPK_BUCKET"] = str(axes["topk"] + 256)
    with mock.patch.dict(os.environ, sizes):
        sparse_mla = ops_module("sparse_mla", not q.is_cuda)
        times = axes.get("scale_times", 1)
        words = (q if times == 1 else q / times, kv, indices.unsqueeze(1))
        if axes.get("is_batched"):
            words, grad_out = tuple(one.unsqueeze(0) for one in words), grad_out.unsqueeze(0)
        out, _ = sparse_mla.SparseMLA.apply(*words, times * q.shape[-1] ** -0.5)
        for left in reversed(range(num_backwards)):
            q.grad = kv.grad = None
            out.backward(grad_out / 2 if left else grad_out, retain_graph=num_backwards > 1)


def gradients(case: Case) -> dict[str, torch.Tensor]:
    """grad_q and grad_kv by the project's own functions."""
    words = case.tensors
    is_stood_in = not case.device.startswith("cuda")
    if is_stood_in:
        torch.set_num_threads(1)  # tensors of one block: threads that wait for one another cost more than they give
    q, kv = words["q"].clone().requires_grad_(), words["kv"].unsqueeze(1).clone().requires_grad_()
    apart = {"tilelang-examples": example_gradients, "prime-rl": prime_gradients}
    run = apart.get(UPSTREAM, carried_gradients if UPSTREAM in carriers.FOLDERS else None)
    if run is None:
        megatron_gradients(q, kv, words["indices"], words["grad_out"], case.axes)
    else:
        with language_of(is_stood_in):
            run(q, kv, words["indices"], words["grad_out"])
    return {"grad_q": q.grad, "grad_kv": kv.grad.squeeze(1)}


def lowered(factory: Any, arch: str, merge: bool | None = None, **words: Any) -> Any:
    """TileLang's artifact for one kernel factory: `kernel_source`, `device_mod`. What lowering raises reaches the caller."""
    import tilelang

    configs = dict(factory.pass_configs or {})
    if merge is not None:
        configs[tilelang.PassConfigKey.TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE] = merge
    return compiled_kernel.lowered(factory, arch, configs=configs, **words)


def words_of(case: Case) -> dict[str, Any]:
    axes = case.axes
    d, d_v = axes["head_dim_qk"], axes["head_dim_v"]
    return {"H": axes["num_heads"], "D": d_v, "D_tail": d - d_v, "topk": axes["topk"], "kv_group": 1, "sm_scale": d**-0.5}


def shared_bytes(artifact: Any) -> float:
    (kernel,) = artifact.device_mod.functions.values()
    return float(int(kernel.attrs["dyn_shared_memory_buf"]))


def lowering(case: Case) -> dict[str, torch.Tensor]:
    """`lowers`: the kernel of the gradients and what the backward runs before it, the row statistics or else the forward again."""
    words, arch = words_of(case), case.axes["arch"]
    module = ops_module("tilelang_sparse_mla_bwd", False)
    artifact = lowered(module.bwd, arch, **words)
    products = re.findall(r"\btl::(?:wgmma|mma_sync)\w*<", artifact.kernel_source)
    case.numbers |= {"backward_shared_bytes": shared_bytes(artifact), "backward_products": float(len(products))}
    again = getattr(module, "row_statistics", None)
    if again is None:
        again = ops_module("tilelang_sparse_mla_fwd", False).sparse_mla_fwd
        words = {{"H": "heads", "D": "dim", "D_tail": "tail_dim"}.get(name, name): value for name, value in words.items()}
    case.numbers["recompute_shared_bytes"] = shared_bytes(lowered(again, arch, **words))
    return {"lowers": torch.ones(())}


def smem_overlap(case: Case) -> dict[str, torch.Tensor]:
    """`disjoint`: no byte of shared memory is both Q, loaded once before the loop, and staging of dKV within it."""
    axes = case.axes
    module = ops_module("tilelang_sparse_mla_bwd", False)
    shape = {name: axes[name] for name in ("max_block_h", "num_stages", "threads")}
    artifact = lowered(module.bwd, axes["arch"], axes["is_merged"], **words_of(case), **shape)
    held, staged = shared_memory.bytes_of_q_and_staging(artifact.kernel_source, axes["threads"])
    case.numbers |= {
        "q_bytes": float(len(held)), "staging_bytes": float(len(staged)), "common_bytes": float(len(held & staged)),
        "shared_bytes": shared_bytes(artifact),
    }  # fmt: skip
    return {"disjoint": torch.tensor(float(not held & staged))}


def run(case: Case) -> dict[str, torch.Tensor]:
    """What the case's site gives; exceptions reach the caller."""
    return {"delta": gradients, "lowering": lowering, "smem_overlap": smem_overlap}[case.axes["site"]](case)
