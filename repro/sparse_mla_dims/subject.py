"""Runs the real sparse attention of megatron-core at a shape: which path it takes, what it computes, holds and says, and what lowers.

Sites: "dispatch" (the whole of `_run_sparse_attention`, forward and backward), "interface" (the forward kernel's wrapper, called
directly), "memory" (the first again, with every live storage counted), "fits" (a training step of a length that fills a GPU), "lowering"
(the real TileLang builders, to CUDA source) and "admission" (whether the shape is taken, and where it is, whether both kernels lower).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import carriers
import stand_in
import torch
from absent import Absent, optional_module, stand_in_for
from compiled_kernel import lowered
from live_storages import LiveStorages
from subject_runtime import Case, Unsupported

UPSTREAM = os.environ.get("PATCHBENCH_UPSTREAM", "megatron-core")
IS_MEGATRON = UPSTREAM in ("megatron-core", "tilelang")  # TileLang is judged by Megatron-LM's kernels
PACKAGE = "deepseek_v32" if UPSTREAM == "tilelang-examples" else carriers.PACKAGE or "megatron.core"
EXAMPLE_EXTENTS = {"B": 1, "S": 64, "S_kv": 128}
VARIANT = "megatron.core.transformer.experimental_attention_variant"


def need_module(name: str) -> ModuleType:
    """A module of the release's attention variant; Unsupported where it has none of that name."""
    module = optional_module(f"{VARIANT}.{name}")
    if module is None:
        raise Unsupported(f"this release has no {name}")
    return module


def kernels() -> tuple[ModuleType, ModuleType]:
    """The modules that hold the kernels' builders, forward and backward. TileLang is there, or nothing can be said."""
    if need_module("ops.tilelang_dsa").SparseMLA is None:
        raise RuntimeError("TileLang cannot be imported, so the release declines every shape")
    return need_module("ops.tilelang_sparse_mla_fwd"), need_module("ops.tilelang_sparse_mla_bwd")


def forward_wrapper() -> tuple[Callable[..., tuple[torch.Tensor, torch.Tensor]], list[ModuleType]]:
    """The wrapper of the forward kernel in the project under test, taking a batch, and the modules that hold builders."""
    if not IS_MEGATRON:
        stand_in_for(["tilelang"])
    if UPSTREAM == "tilelang-examples":
        sys.modules["utils"] = ModuleType("utils")  # the example's own comparison
        sys.modules["utils"].assert_tensors_similar = None
        module = importlib.import_module("deepseek_v32.sparse_mla_fwd")
        return module.sparse_mla_fwd_interface, [module]
    if IS_MEGATRON:
        forward, backward = kernels()
        return forward.sparse_mla_fwd_interface, [forward, backward]
    if UPSTREAM == "prime-rl":
        module = carriers.carried("sparse_mla_fwd")
        return module.sparse_mla_fwd_interface, [module]
    module = carriers.carried("tilelang_sparse_mla_fwd")
    return lambda q, kv, indices, **words: module.sparse_mla_fwd_interface(q[0], kv[0], indices[0], **words), [module]


def backward_module() -> ModuleType:
    """The module of the backward's wrapper and builders. Call after forward_wrapper."""
    if UPSTREAM == "tilelang-examples":
        return importlib.import_module("deepseek_v32.sparse_mla_bwd")
    if not IS_MEGATRON:
        raise Unsupported(f"the backward of {UPSTREAM} is not called")
    return kernels()[1]


class Announcements(logging.Handler):
    """The bytes named in each record that shows at the default log level, of the package or of its mitigation: the number before that word,
    else the largest one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.amounts: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("megatron.", "patchbench.")):
            print(f"said: {record.getMessage()}")
            found = re.findall(r"(\d+) bytes", record.getMessage()) or re.findall(r"\d+", record.getMessage())
            self.amounts.append(max(map(int, found), default=0))


@contextlib.contextmanager
def listening() -> Iterator[list[int]]:
    """The announcements while open; one that is open already hears none of them."""
    root, handler = logging.getLogger(), Announcements()
    outer = [one for one in root.handlers if isinstance(one, Announcements)]
    root.handlers = [*(one for one in root.handlers if one not in outer), handler]
    try:
        yield handler.amounts
    finally:
        root.removeHandler(handler)
        root.handlers += outer


def in_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    """The values in bf16, in the storage order, with the gaps and the offset that they have."""
    stored = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return stored.to(torch.bfloat16).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def forget_what_was_said() -> None:
    """A decline is said once a shape in a process; each case asks whether it is."""
    once = getattr(need_module("dsa_kernels"), "_warn_of_dense_scores", None)
    if once is not None:
        once.cache_clear()
    mitigation = sys.modules.get("patchbench_mitigations.sparse_mla_dims")
    if mitigation is not None:
        mitigation._said.clear()


def operands(case: Case, rows: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """query and kv in bf16, differentiable, the indices, and the output's gradient, of the first `rows` positions."""
    given = case.tensors
    query, kv = (in_bfloat16(given[name])[rows].requires_grad_() for name in ("query", "kv"))
    return query, kv, given["topk_indices"][:, rows], in_bfloat16(given["grad_out"])[rows]


def attend(case: Case, query: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The release's absorbed sparse attention, [seqlen_q, batch, num_heads, head_dim_v]. The projection that follows is the identity."""
    num_heads, width = query.shape[2], case.axes["head_dim_v"]
    config = SimpleNamespace(dsa_kernel_backend="tilelang", attention_backend="auto", kv_lora_rank=width)
    identity = torch.eye(width, dtype=query.dtype, device=query.device)
    out = need_module("dsa")._run_sparse_attention(
        absorbed_mla=True, query=query, key=kv, value=None, up_v_weight=identity.expand(num_heads, -1, -1), topk_indices=indices,
        softmax_scale=case.tensors["softmax_scale"].item(), config=config, varlen_starts=None, varlen_ends=None, key_positions=None,
        mask=torch.zeros(1, 1, device=query.device).expand(query.shape[0], kv.shape[0]),
    )  # fmt: skip
    return out.unflatten(-1, (num_heads, width))


def run_dispatch(case: Case) -> dict[str, Any]:
    """Values and gradients (of several backwards, axis `backwards`, the last; those before it have half the gradient), whether the
    kernels made them, and the bytes that were announced."""
    query, kv, indices, grad_out = operands(case)
    forget_what_was_said()
    with stand_in.serving(case.device, *kernels()) as launches, listening() as amounts:
        out, num_backwards = attend(case, query, kv, indices), case.axes.get("backwards", 1)
        for left in reversed(range(num_backwards)):
            given = grad_out / 2 if left else grad_out
            grad_query, grad_kv = torch.autograd.grad(out, (query, kv), given, retain_graph=num_backwards > 1)
    case.numbers |= {name: float(count) for name, count in launches.items()}
    is_fused = launches["sparse_mla_fwd"] > 0 and launches["bwd"] > 0
    values = {"out": out, "grad_query": grad_query, "grad_kv": grad_kv}
    return {name: value.float() for name, value in values.items()} | {"is_fused": is_fused, "said_bytes": sum(amounts)}


def plain_forward(q: torch.Tensor, kv: torch.Tensor, index: torch.Tensor, sm_scale: float, d_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum as the forward's stand-in gives them, for a backward whose forward declines the shape."""
    build = stand_in.build_forward(q.shape[2], d_v, q.shape[3] - d_v, index.shape[3], kv.shape[2], sm_scale)
    return build(q, kv, index)


def run_interface(case: Case) -> dict[str, Any]:
    """What the forward kernel's wrapper gives for the same operands; with `has_backward` the gradients of the backward's, too."""
    query, kv, indices, grad_out = operands(case)
    q, k = (t.detach().transpose(0, 1).contiguous() for t in (query, kv))
    words = {"sm_scale": case.tensors["softmax_scale"].item(), "d_v": case.axes["head_dim_v"]}
    index = indices.unsqueeze(2).contiguous()
    wrapper, modules = forward_wrapper()
    if not case.axes.get("has_backward", False):
        with stand_in.serving(case.device, *modules):
            out, _ = wrapper(q, k, index, **words)
        return {"out": out.view(*q.shape[:3], -1).transpose(0, 1).float()}
    backward = backward_module()
    # A width that the backward cannot read from the output is an argument of its own.
    given = {name: words[name] for name in words if name in inspect.signature(backward.sparse_mla_bwd).parameters}
    with stand_in.serving(case.device, *modules, backward):
        out, lse = plain_forward(q, k, index, **words) if case.axes.get("is_forward_plain", False) else wrapper(q, k, index, **words)
        grad_query, grad_kv = backward.sparse_mla_bwd(q, k, out, grad_out.transpose(0, 1).contiguous(), index, lse, **given)
    values = {"out": out, "grad_query": grad_query, "grad_kv": grad_kv}
    return {name: value.transpose(0, 1).float() for name, value in values.items()}


def held_bytes(case: Case, seqlen: int) -> dict[str, int]:
    """Most bytes alive, the operands left out: in a forward for inference, in one for training, kept by it, and in a training step."""
    found = {}
    query, kv, indices, grad_out = operands(case, slice(seqlen))
    with torch.no_grad(), LiveStorages() as inference:
        attend(case, query, kv, indices)
    with LiveStorages() as training:
        out = attend(case, query, kv, indices)
        found |= {"inference": inference.peak, "forward": training.peak, "kept": training.now()}
        torch.autograd.grad(out, (query, kv), grad_out)
    return found | {"training": training.peak}


def run_memory(case: Case) -> dict[str, Any]:
    """Whether the path holds as many score tensors as `dense_units` says, and grows with the square of the length."""
    axes, seqlen = case.axes, case.axes["seqlen_q"]
    with stand_in.serving(case.device, *kernels()):
        half, full = held_bytes(case, seqlen // 2), held_bytes(case, seqlen)
    unit = 4 * axes["batch"] * axes["num_heads"] * seqlen**2
    case.numbers |= {f"{name}_units": size / unit for name, size in full.items()}
    growth = case.numbers["growth"] = full["training"] / half["training"]
    return {"holds_scores": full["training"] >= axes["dense_units"] * unit, "is_quadratic": growth >= axes["dense_growth"]}


def run_fits(case: Case) -> dict[str, Any]:
    """Whether a training step fits on the GPU, and beyond its operands into `peak_bytes_max`. The allocator's error reaches the caller."""
    if case.device == "cpu":
        raise Unsupported("what fits is asked of a GPU")
    axes, kind = case.axes, {"dtype": torch.bfloat16, "device": case.device}
    rows, keys = ((axes[name], axes["batch"]) for name in ("seqlen_q", "seqlen_k"))
    query = torch.randn(*rows, axes["num_heads"], axes["head_dim_qk"], **kind).requires_grad_()
    kv = torch.randn(*keys, 1, axes["head_dim_qk"], **kind).requires_grad_()
    grad_out = torch.randn(*rows, axes["num_heads"], axes["head_dim_v"], **kind)
    named = (axes["batch"], axes["seqlen_q"], axes["topk"])
    indices = torch.randint(0, axes["seqlen_k"], named, dtype=torch.int32, device=case.device)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(attend(case, query, kv, indices), (query, kv), grad_out)
    peak = case.numbers["peak_bytes"] = torch.cuda.max_memory_allocated() - held
    return {"is_small": peak <= axes["peak_bytes_max"]}


def shared_bytes_of(case: Case, kernel_name: str, max_block_heads: int) -> float:
    """Lowers a builder to CUDA source for sm_90a: the shared memory it asks for. What lowering raises reaches the caller."""
    _, modules = forward_wrapper()
    import tilelang

    if isinstance(tilelang, Absent):
        raise Unsupported("TileLang is not beside this project")
    axes, words = case.axes, {"topk": case.axes["topk"], "sm_scale": 0.05}
    width, tail = axes["head_dim_v"], axes["head_dim_qk"] - axes["head_dim_v"]
    if kernel_name == "forward":
        factory = modules[0].sparse_mla_fwd
        words |= {"heads": axes["num_heads"], "dim": width, "tail_dim": tail}
    else:
        factory = backward_module().bwd
        words |= {"H": axes["num_heads"], "D": width, "D_tail": tail}
        # The example is built for its extents, and its blocks have up to 64 heads.
        words |= EXAMPLE_EXTENTS if UPSTREAM == "tilelang-examples" else {"max_block_h": max_block_heads}
    (kernel,) = lowered(stand_in.builder_of(factory), "sm_90a", **words).device_mod.functions.values()
    return float(int(kernel.attrs["dyn_shared_memory_buf"]))


def run_lowering(case: Case) -> dict[str, Any]:
    """Lowers one of the builders."""
    axes = case.axes
    case.numbers["shared_bytes"] = shared_bytes_of(case, axes["kernel"], axes.get("max_block_heads", 0))
    return {"lowers": True}


def is_admitted(case: Case) -> bool:
    """Whether the kernels are reached, with plain computations in their place: by the dispatcher, or where there is none by the
    wrappers, whose assertion is how they decline."""
    if UPSTREAM != "tilelang-examples":
        return run_dispatch(case)["is_fused"]
    case.axes["has_backward"] = True
    try:
        run_interface(case)
    except AssertionError as e:
        print(f"declined: {e}")
        return False
    return True


def run_admission(case: Case) -> dict[str, Any]:
    """Whether the shape is taken. Where it is, both real kernels are lowered, and what that raises reaches the caller."""
    if case.device != "cpu":
        raise Unsupported("on a GPU the dispatcher's own call shows the same")
    is_fused = is_admitted(case)
    for name in ("forward", "backward") if is_fused else ():
        case.numbers[f"{name}_shared_bytes"] = shared_bytes_of(case, name, 32)
    return {"is_fused": is_fused}


SITES: dict[str, Callable[[Case], dict[str, Any]]] = {
    "admission": run_admission, "dispatch": run_dispatch, "fits": run_fits, "interface": run_interface, "memory": run_memory,
    "lowering": run_lowering,
}  # fmt: skip


def run(case: Case) -> dict[str, torch.Tensor]:
    """The site's outputs in fp32."""
    if case.device == "cpu":
        torch.set_num_threads(1)  # small products: threads that wait for one another cost more than they give
    made = SITES[case.axes["site"]](case)
    return {name: value if torch.is_tensor(value) else torch.tensor(float(value)) for name, value in made.items()}
