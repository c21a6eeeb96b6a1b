"""Megatron-LM's sparse MLA: no quantised operand reaches a kernel as a null pointer or as a dense copy made in silence.

TransformerEngine's quantised tensors say bfloat16 and store something else. The dispatcher asks for the dtype alone, so
that a kernel is given null pointers, or what a permute made of them. Replaced are, where they are held:

  dsa_kernels.run_fused_absorbed_sparse_attention   whatever the backend
  ops.tilelang_dsa.fused_sparse_mla_absorbed        for who calls the TileLang half by itself
  SparseMLA.apply                                   where TileLang is installed; the class stays the same object

A call without a quantised operand goes to the original as it came. Modes for the others:

  refuse      ("auto") TypeError, which names the operand and its type
  dequantize  each quantised operand is dequantised first, counted, and said once for each type; gradients pass through
  fp8         patchbench::sparse_mla_fp8_forward and _backward on the stored bytes: both operands per-tensor Float8Tensor of
              E4M3 with row-wise data, head_dim 576, v_channels 512. Anything else is a TypeError; nothing is made dense
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from patchbench_mitigations.fingerprint import own_function
from patchbench_mitigations.megatron import VARIANT, Modules, is_wrapped_storage, modules_for, version_for
from patchbench_mitigations.registry import MODE_AUTO, load_op
from patchbench_mitigations.switch import ABSENT, Arguments, Finding, Hook, Mitigation, Placement

SLUG = "fp8_storage_dispatch"
UPSTREAM = "megatron-core"
HEAD_DIM, HEAD_DIM_V = 576, 512
Function = Callable[..., Any]
_probing = threading.local()
_announced: set[type] = set()
_announcing = threading.Lock()


@dataclass(frozen=True)
class Site:
    """A function that hands operands to a kernel. `takes` are its arguments, the two `operands` among them; `called_by`
    is the function of the same module that looks it up, "" where nothing stands between."""

    module: str
    name: str
    takes: str
    operands: tuple[str, str]
    called_by: str = ""

    @property
    def label(self) -> str:
        return f"{self.module}.{self.name}"


ABSORBED = "query key topk_indices softmax_scale v_channels"
SITES = (
    Site("dsa_kernels", "run_fused_absorbed_sparse_attention", f"config {ABSORBED} topk_length", ("query", "key")),
    Site("ops.tilelang_dsa", "fused_sparse_mla_absorbed", ABSORBED, ("query", "key"), "run_fused_absorbed_sparse_attention"),
    Site("ops.tilelang_dsa", "SparseMLA.apply", "q kv indices scaling", ("q", "kv")),
)


def _count(**more: int) -> None:
    if _own.hook is not None:
        _own.hook.serve(**more)


def _refusal(site: Site, name: str, operand: Any, why: str) -> TypeError:
    _count(refused=1)
    return TypeError(str(_own.refusal(f"{site.label}: {name} is a {type(operand).__name__}; {why}")))


class _Dense(torch.autograd.Function):
    """The values of a wrapper in the dtype that it reports; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, operand: torch.Tensor) -> torch.Tensor:
        return operand.dequantize().to(operand.dtype)

    @staticmethod
    def backward(ctx: Any, grad_dense: torch.Tensor) -> torch.Tensor:
        return grad_dense


def dequantized(site: Site, name: str, operand: Any) -> torch.Tensor:
    """The operand as a plain tensor, counted; a WARNING the first time that its type is seen in this process."""
    try:
        made = _Dense.apply(operand)
    except (AttributeError, NotImplementedError) as e:  # a storage that is not a tensor reports no dtype
        raise _refusal(site, name, operand, f"it does not dequantise ({(str(e).splitlines() or [''])[0]})") from e
    if is_wrapped_storage(made):
        raise _refusal(site, name, operand, f"its dequantize() gives a {type(made).__name__}")
    num_bytes = made.numel() * made.element_size()
    _count(dequantized=1, dense_bytes=num_bytes)
    with _announcing:
        is_first = type(operand) not in _announced
        _announced.add(type(operand))
    if is_first:
        text = "%s: %s is a %s and is dequantised to %d bytes of %s; said once for this type, status() counts"
        _own.say(text, site.label, name, type(operand).__name__, num_bytes, made.dtype)
    return made


load_ops = functools.partial(load_op, "sparse_mla_fp8_forward")


def _why_not_stored(operand: Any) -> str:
    """Why the op cannot read the operand's storage; "" where it can."""
    if not is_wrapped_storage(operand):
        return "fp8 takes both operands quantised or none"
    if not isinstance(operand, torch.Tensor) or "Float8Tensor" not in (base.__name__ for base in type(operand).__mro__):
        return "fp8 takes per-tensor Float8Tensor alone"
    data, scale = getattr(operand, "_data", None), getattr(operand, "_scale_inv", None)
    tag = getattr(getattr(operand, "_fp8_dtype", None), "name", "unknown")
    if operand.dtype != torch.bfloat16 or tag != "kFloat8E4M3" or operand.shape[-1] != HEAD_DIM:
        got = f"{tag} that reports {operand.dtype}, {operand.shape[-1]} columns"
        return f"fp8 takes kFloat8E4M3 that reports torch.bfloat16, {HEAD_DIM} columns, got {got}"
    if data is None or scale is None:
        return "it holds no row-wise data" if data is None else "it holds no scale"
    if data.dtype != torch.uint8 or data.shape != operand.shape or not data.is_contiguous():
        return f"its data must be contiguous uint8 {[*operand.shape]}, got {data.dtype} {[*data.shape]}, {data.stride()}"
    is_one = scale.numel() == 1 and scale.dtype == torch.float32
    return "" if is_one else f"its scale must be 1 float32, got {scale.numel()} {scale.dtype}"


def _to_bshd(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Contiguous [batch, seqlen, heads, head_dim] of a tensor whose axes `layout` names."""
    if layout == "shd":
        return tensor.unsqueeze(0)
    return (tensor.transpose(0, 1) if layout == "sbhd" else tensor).contiguous()


def _from_bshd(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    return tensor.squeeze(0) if layout == "shd" else _to_bshd(tensor, layout)


class _SparseMla(torch.autograd.Function):
    """out [batch, seqlen_q, num_heads, 512] bfloat16 and lse float32 (base 2, not differentiable) of the stored operands
    (q, q_scale, kv, kv_scale). The wrappers `query` and `kv` carry the graph alone: their gradients come in `layout`, in
    bfloat16, which both report, and equal the gradients of the dequantised operands."""

    @staticmethod
    def forward(ctx: Any, query: Any, kv: Any, stored: Any, indices: torch.Tensor, softmax_scale: float, layout: str) -> Any:
        out, lse = torch.ops.patchbench.sparse_mla_fp8_forward(*stored, indices, softmax_scale=softmax_scale)
        ctx.save_for_backward(out, lse, *stored, indices)
        ctx.softmax_scale, ctx.layout = softmax_scale, layout
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor, _: Any) -> Any:
        grads = torch.ops.patchbench.sparse_mla_fp8_backward(grad_out, *ctx.saved_tensors, softmax_scale=ctx.softmax_scale)
        return (*(_from_bshd(grad, ctx.layout) for grad in grads), None, None, None, None)


def _indices_bsgk(given: dict[str, Any]) -> torch.Tensor:
    """[batch, seqlen_q, 1, topk] int32 of [batch, seqlen_q, topk]; slots from `topk_length` on hold no key."""
    indices, length = given["topk_indices"], given.get("topk_length")
    if length is not None:
        if length.shape != indices.shape[:-1]:
            raise ValueError(f"{SLUG}: topk_length must have shape {[*indices.shape[:-1]]}, got {[*length.shape]}")
        slots = torch.arange(indices.shape[-1], device=indices.device)
        indices = indices.masked_fill(slots >= length.to(indices.device).unsqueeze(-1), -1)
    return indices.unsqueeze(2).to(torch.int32).contiguous()


def attend(site: Site, given: dict[str, Any]) -> Any:
    """The op on the stored bytes, in the layout of the original's result."""
    for name in site.operands:
        if why := _why_not_stored(given[name]):
            raise _refusal(site, name, given[name], why)
    query, kv = (given[name] for name in site.operands)
    if given.get("v_channels", HEAD_DIM_V) != HEAD_DIM_V:
        raise _refusal(site, site.operands[0], query, f"fp8 takes v_channels {HEAD_DIM_V}, got {given['v_channels']}")
    is_absorbed = "topk_indices" in given
    layout = "sbhd" if is_absorbed else "bshd" if query.dim() == 4 else "shd"
    indices = _indices_bsgk(given) if is_absorbed else _to_bshd(given["indices"].to(torch.int32).contiguous(), layout)
    scaling = given["softmax_scale" if is_absorbed else "scaling"]
    softmax_scale = HEAD_DIM**-0.5 if scaling is None else float(scaling)
    stored = [(_to_bshd(t._data, layout).view(torch.float8_e4m3fn), t._scale_inv.reshape(1)) for t in (query, kv)]
    out, lse = _SparseMla.apply(query, kv, (*stored[0], *stored[1]), indices, softmax_scale, layout)
    _count(fp8=1)
    return _from_bshd(out, layout) if is_absorbed else (_from_bshd(out, layout), _from_bshd(lse, layout))


def guarded(site: Site, original: Function, signature: inspect.Signature, mode: str) -> Function:
    """The original, but for calls with a quantised operand."""
    arguments = Arguments(signature)

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        if not any(map(is_wrapped_storage, (*args, *words.values()))):
            return original(*args, **words)
        if getattr(_probing, "on", False):
            raise _Caught
        if _own.hook is not None and _own.hook.leaves():
            return original(*args, **words)
        given = arguments.of(args, words)
        if mode == "fp8":
            return attend(site, given)
        for name in filter(lambda n: is_wrapped_storage(given[n]), site.operands):
            if mode == "refuse":
                how = f"pass {name}.dequantize(), or set PATCHBENCH_MITIGATE={SLUG}:dequantize or :fp8"
                raise _refusal(site, name, given[name], f"no kernel reads its storage; {how}")
            given[name] = dequantized(site, name, given[name])
        return arguments.call(original, given)

    return replacement


# ---- probe ----


class _Caught(Exception):
    """A replaced function saw the probe's operand."""


class _Quantised(torch.Tensor):
    """A stand-in for a quantised tensor: reports bfloat16, has no storage, dequantises to zeros."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(f"the probe's operand was given to {func}")

    def dequantize(self) -> torch.Tensor:
        return torch.zeros(self.shape, dtype=torch.bfloat16)


def _operand() -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(_Quantised, (1, 1, 1, HEAD_DIM), dtype=torch.bfloat16, device="cpu")


def _function_of(site: Site, modules: Modules) -> tuple[Any, Function, inspect.Signature] | None:
    """Holder, function, arguments; None where TileLang is not installed; Refused for what is not as it was measured."""
    module, (name, _, method) = modules[site.module], site.name.partition(".")
    found = getattr(module, name, None)
    if found is None:
        if method and hasattr(module, name):
            return None
        raise _own.refusal(f"{site.module}.{name} is not in this release; it has changed since it was measured")
    if method:
        is_own = isinstance(found, type) and issubclass(found, torch.autograd.Function) and method not in vars(found)
    else:
        is_own = own_function(found, module)
    if not is_own:
        raise _own.refusal(f"{site.label} is wrapped already; undo that first")
    signature = inspect.signature(found.forward if method else found)
    taken = [p for p in signature.parameters.values() if not method or p.name != "ctx"]
    if [p.name for p in taken] != site.takes.split():
        raise _own.refusal(f"{site.label} takes other arguments than were measured: {signature}")
    signature = signature.replace(parameters=taken)
    return (found, getattr(found, method), signature) if method else (module, found, signature)


# ---- switch ----

KEYS = tuple(
    f"{VARIANT}.{module}:{name}"
    for module, name in (
        ("dsa_kernels", "run_fused_absorbed_sparse_attention"), ("ops.tilelang_dsa", "_all_bfloat16"),
        ("ops.tilelang_dsa", "fused_sparse_mla_absorbed"), ("ops.sparse_mla", "SparseMLA.forward"),
        ("ops.sparse_mla", "SparseMLA.backward"),
    )
)  # fmt: skip


class _Fp8(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "patchbench::sparse_mla_fp8_forward", KEYS
    counted = ("refused", "dequantized", "dense_bytes", "fp8")

    def meaning(self, mode: str) -> str:
        return "refuse" if mode == MODE_AUTO else mode

    def op_note(self, mode: str) -> str:
        if mode != "fp8":
            return f"mode {mode}"
        if load_ops():
            raise self.refusal(f"mode fp8 needs the op library: {load_ops()}")
        return ""

    def release(self) -> tuple[Modules, str]:
        version, names = version_for(self), dict.fromkeys(site.module for site in SITES)
        modules = modules_for(self, names)
        if len(modules) < len(names):
            why = "it has no fused sparse-MLA dispatcher; 0.19.0 is the first that has"
            raise self.refusal(f"megatron-core {version}: {why}")
        return modules, version

    def look(self, release: Modules, version: str) -> Finding:
        for site in SITES:
            _function_of(site, release)
        guard = getattr(release["ops.tilelang_dsa"], "_all_bfloat16", None)
        if guard is None:
            raise self.refusal("ops.tilelang_dsa._all_bfloat16 is not in this release; it has changed since it was measured")
        try:
            passes = bool(guard(_operand(), _operand()))
            seen = "takes a quantised operand for a dense one" if passes else "declines a quantised operand"
        except Exception as e:
            passes, seen = False, f"raises {type(e).__name__} on a quantised operand"
        return Finding("needed" if passes else "right", version, f"the dtype guard {seen}")

    def placements(self, release: Modules, hook: Hook) -> list[Placement]:
        made = []
        for site in SITES:
            if (function := _function_of(site, release)) is not None:
                guard, is_class = guarded(site, *function[1:], hook.mode), isinstance(function[0], type)
                placed, original = (staticmethod(guard), ABSENT) if is_class else (guard, function[1])
                made.append(Placement(function[0], site.name.rpartition(".")[2], original, placed, site.label))
        return made

    def left(self, release: Modules, hook: Hook) -> str:
        sites = {site.label: site for site in SITES}
        for placement in hook.placements:
            site = sites[placement.label]
            caller = getattr(release[site.module], site.called_by, None) or getattr(placement.holder, placement.name)
            _probing.on = True
            try:
                caller(*(_operand() if name in site.operands else None for name in site.takes.split()))
                seen = "its callers do not come to the replacement"
            except _Caught:
                continue
            except Exception as e:
                seen = f"raised {type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
            finally:
                _probing.on = False
            return f"{site.label}: {seen}"
        return ""


_own = _Fp8()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
