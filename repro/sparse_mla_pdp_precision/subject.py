"""Runs the real sparse-MLA backward of the installed megatron-core, and lowers its real TileLang kernels for a GPU that is not there.

Axes of a case: `site` ("delta": the gradients; "lowering": whether the kernels lower; "smem_overlap": whether the compiler lays the
staging buffers of dKV over Q), the shape and, where it lowers, `arch`. At "delta" without a GPU the kernels are run as written by
stand_in.py; elsewhere TileLang is the real one.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from typing import Any
from unittest import mock

import shared_memory
import stand_in
import torch
from subject_runtime import Case, Unsupported

PACKAGE = "megatron.core" if os.environ.get("PATCHBENCH_UPSTREAM") != "tilelang" else "tilelang"
OPS = "megatron.core.transformer.experimental_attention_variant.ops"


@functools.cache
def ops_module(name: str, is_stood_in: bool) -> Any:
    """A module of the release's kernels, imported once beside stand_in's TileLang and once beside the installed one: what a
    mitigation replaced in it stays replaced in the next case."""
    language = stand_in.modules() if is_stood_in else {}
    for loaded in [one for one in sys.modules if one.startswith(f"{OPS}.")]:
        del sys.modules[loaded]
    hidden = {one: sys.modules.pop(one) for one in language if one in sys.modules}
    sys.modules.update(language)
    try:
        return importlib.import_module(f"{OPS}.{name}")
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("megatron"):
            raise
        raise Unsupported(f"no {e.name} in this release") from e
    finally:
        for one in language:
            del sys.modules[one]
        sys.modules.update(hidden)


def gradients(case: Case) -> dict[str, torch.Tensor]:
    """grad_q and grad_kv by the release's autograd function."""
    words = case.tensors
    is_stood_in = not case.device.startswith("cuda")
    if is_stood_in:
        torch.set_num_threads(1)  # tensors of one block: threads that wait for one another cost more than they give
    sparse_mla = ops_module("sparse_mla", is_stood_in)
    q, kv = words["q"].clone().requires_grad_(), words["kv"].unsqueeze(1).clone().requires_grad_()
    scaling = q.shape[-1] ** -0.5
    # Rows and keys are otherwise padded to 256.
    with mock.patch.dict(os.environ, {"MCORE_DSA_TILELANG_SEQ_BUCKET": "1"}):
        out, _ = sparse_mla.SparseMLA.apply(q, kv, words["indices"].unsqueeze(1), scaling)
        out.backward(words["grad_out"])
    return {"grad_q": q.grad, "grad_kv": kv.grad.squeeze(1)}


def lowered(factory: Any, arch: str, merge: bool | None = None, **words: Any) -> Any:
    """TileLang's artifact for one kernel factory: `kernel_source`, `device_mod`. What lowering raises reaches the caller."""
    import tilelang
    from tilelang import tvm

    configs = dict(factory.pass_configs or {})
    if merge is not None:
        configs[tilelang.PassConfigKey.TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE] = merge
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    with tvm.transform.PassContext(opt_level=3, config=configs), target:
        return tilelang.lower(factory.get_tir(**words), target=target, enable_device_compile=False)


def words_of(case: Case) -> dict[str, Any]:
    axes = case.axes
    d, d_v = axes["head_dim_qk"], axes["head_dim_v"]
    return {"H": axes["num_heads"], "D": d_v, "D_tail": d - d_v, "topk": axes["topk"], "kv_group": 1, "sm_scale": d**-0.5}


def shared_bytes(artifact: Any) -> float:
    (kernel,) = artifact.device_mod.functions.values()
    return float(int(kernel.attrs["dyn_shared_memory_buf"]))


def lowering(case: Case) -> dict[str, torch.Tensor]:
    """`lowers`: the kernel of the gradients and, where the tree has one, that of the row statistics."""
    module = ops_module("tilelang_sparse_mla_bwd", False)
    artifact = lowered(module.bwd, case.axes["arch"], **words_of(case))
    products = re.findall(r"\btl::(?:wgmma|mma_sync)\w*<", artifact.kernel_source)
    case.numbers |= {"backward_shared_bytes": shared_bytes(artifact), "backward_products": float(len(products))}
    statistics = getattr(module, "row_statistics", None)
    if statistics is not None:
        case.numbers["statistics_shared_bytes"] = shared_bytes(lowered(statistics, case.axes["arch"], **words_of(case)))
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
