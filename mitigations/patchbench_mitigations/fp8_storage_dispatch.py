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
import importlib
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from patchbench_mitigations.registry import LOG, MODE_AUTO, Refused, is_forced, is_killed, load_op

SLUG = "fp8_storage_dispatch"
# The parent of the modules that are changed: whichever of them is imported first, its parent was before.
TARGET = "megatron.core"
VARIANT = "megatron.core.transformer.experimental_attention_variant"
MODES = (MODE_AUTO, "refuse", "dequantize", "fp8")
# Releases on which the probe and every mode were run with TransformerEngine's own classes.
MEASURED = frozenset(("0.19.0", "0.19.2"))
HEAD_DIM, HEAD_DIM_V = 576, 512
Function = Callable[..., Any]
_lock = threading.RLock()
_probing = threading.local()
_announced: set[type] = set()


@dataclass
class Finding:
    """What the installed release does: `needed` or `right`, with what was seen."""

    state: str
    version: str
    reason: str


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


@dataclass
class Rebinding:
    """An attribute that was changed: of a module, or of a class, which had inherited it."""

    site: Site
    holder: Any
    name: str
    original: Function
    placed: Any


@dataclass
class Hook:
    """What was changed, why, and what passed through it since."""

    finding: Finding
    mode: str
    rebindings: list[Rebinding]
    counts: Counter[str] = field(default_factory=lambda: Counter(refused=0, dequantized=0, dense_bytes=0, fp8=0))


_hook: Hook | None = None


def is_wrapped_storage(value: Any) -> bool:
    """Whether the values lie in a format of the type's own, behind the dtype that it reports. Quantised classes override
    `dequantize`, whatever library they are of. Only the type is asked: reading a pointer raises on some of them."""
    return getattr(type(value), "dequantize", None) not in (None, torch.Tensor.dequantize)


def _count(**more: int) -> None:
    with _lock:
        if _hook is not None:
            _hook.counts.update(more)


def _refusal(site: Site, name: str, operand: Any, why: str) -> TypeError:
    _count(refused=1)
    return TypeError(f"{SLUG}: {site.label}: {name} is a {type(operand).__name__}; {why}")


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
    except (AttributeError, NotImplementedError) as e:  # a storage that is no tensor reports no dtype
        raise _refusal(site, name, operand, f"it does not dequantise ({(str(e).splitlines() or [''])[0]})") from e
    if is_wrapped_storage(made):
        raise _refusal(site, name, operand, f"its dequantize() gives a {type(made).__name__}")
    num_bytes = made.numel() * made.element_size()
    _count(dequantized=1, dense_bytes=num_bytes)
    with _lock:
        is_first = type(operand) not in _announced
        _announced.add(type(operand))
    if is_first:
        text = "%s: %s: %s is a %s and is dequantised to %d bytes of %s; said once for this type, status() counts"
        LOG.warning(text, SLUG, site.label, name, type(operand).__name__, num_bytes, made.dtype)
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
    bfloat16, which both report, and are those of the dequantised operands."""

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
    """[batch, seqlen_q, 1, topk] int32 of [batch, seqlen_q, topk]; slots from `topk_length` on are no keys."""
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

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        if not any(map(is_wrapped_storage, (*args, *words.values()))):
            return original(*args, **words)
        bound = signature.bind(*args, **words)
        bound.apply_defaults()
        given = bound.arguments
        if getattr(_probing, "on", False):
            raise _Caught
        if mode == "fp8":
            return attend(site, given)
        for name in filter(lambda n: is_wrapped_storage(given[n]), site.operands):
            if mode == "refuse":
                how = f"pass {name}.dequantize(), or set PATCHBENCH_MITIGATE={SLUG}:dequantize or :fp8"
                raise _refusal(site, name, given[name], f"no kernel reads its storage; {how}")
            given[name] = dequantized(site, name, given[name])
        return original(*bound.args, **bound.kwargs)

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


def _modules() -> tuple[dict[str, ModuleType], str]:
    """The dispatcher's modules and the release's version; Refused where the release has no such dispatcher."""
    try:
        version = str(getattr(importlib.import_module(TARGET), "__version__", "unknown"))
    except ImportError as e:
        raise Refused(f"{SLUG}: {TARGET} cannot be imported ({e}); is megatron-core installed?") from e
    modules, version = {}, version.partition("+")[0]  # a checkout's own commit may follow
    for name in dict.fromkeys(site.module for site in SITES):
        try:
            modules[name] = importlib.import_module(f"{VARIANT}.{name}")
        except ImportError as e:
            absent = "it has no fused sparse-MLA dispatcher; 0.19.0 is the first that has"
            why = absent if (e.name or "").startswith(VARIANT) else str(e)
            raise Refused(f"{SLUG}: megatron-core {version}: {why}") from e
    return modules, version


def _function_of(site: Site, modules: dict[str, ModuleType]) -> tuple[Any, Function, inspect.Signature] | None:
    """Holder, function, arguments; None where TileLang is not installed; Refused for what is not as it was measured."""
    module, (name, _, method) = modules[site.module], site.name.partition(".")
    found = getattr(module, name, None)
    if found is None:
        if method and hasattr(module, name):
            return None
        raise Refused(f"{SLUG}: {site.module}.{name} is not in this release; it has changed since it was measured")
    if method:
        is_own = isinstance(found, type) and issubclass(found, torch.autograd.Function) and method not in vars(found)
    else:
        is_own = inspect.isfunction(found) and not hasattr(found, "__wrapped__") and found.__module__ == module.__name__
    if not is_own:
        raise Refused(f"{SLUG}: {site.label} is wrapped already; undo that first")
    signature = inspect.signature(found.forward if method else found)
    taken = [p for p in signature.parameters.values() if not method or p.name != "ctx"]
    if [p.name for p in taken] != site.takes.split():
        raise Refused(f"{SLUG}: {site.label} takes other arguments than were measured: {signature}")
    signature = signature.replace(parameters=taken)
    return (found, getattr(found, method), signature) if method else (module, found, signature)


def _probe(modules: dict[str, ModuleType], version: str) -> Finding:
    """Whether the dtype guard is fooled; Refused for a function that is not as it was measured."""
    for site in SITES:
        _function_of(site, modules)
    guard = getattr(modules["ops.tilelang_dsa"], "_all_bfloat16", None)
    if guard is None:
        raise Refused(f"{SLUG}: ops.tilelang_dsa._all_bfloat16 is not in this release; it has changed since it was measured")
    try:
        passes = bool(guard(_operand(), _operand()))
        seen = "takes a quantised operand for a dense one" if passes else "declines a quantised operand"
    except Exception as e:
        passes, seen = False, f"raises {type(e).__name__} on a quantised operand"
    return Finding("needed" if passes else "right", version, f"the dtype guard {seen}")


def probe() -> Finding:
    """What the installed release's own code does, whether or not the hook is on. Runs on the CPU, without a kernel."""
    with _lock:
        return _hook.finding if _hook is not None else _probe(*_modules())


# ---- switch ----


def _rebind(modules: dict[str, ModuleType], mode: str) -> list[Rebinding]:
    """Replaces every function that the release has; what they are is settled before the first is replaced."""
    rebindings = []
    for site in SITES:
        if (function := _function_of(site, modules)) is not None:
            guard = guarded(site, *function[1:], mode)
            placed = staticmethod(guard) if isinstance(function[0], type) else guard
            rebindings.append(Rebinding(site, function[0], site.name.rpartition(".")[2], function[1], placed))
    for rebinding in rebindings:
        setattr(rebinding.holder, rebinding.name, rebinding.placed)
    return rebindings


def _left(modules: dict[str, ModuleType], rebindings: list[Rebinding]) -> str:
    """The first function whose callers do not come to its replacement; "" for none."""
    for rebinding in rebindings:
        site = rebinding.site
        caller = getattr(modules[site.module], site.called_by, None) or getattr(rebinding.holder, rebinding.name)
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


def enable(mode: str = MODE_AUTO) -> dict[str, Any]:
    """Switches the fix on if the installed release needs it, and proves it by the probe; all functions or none.
    Idempotent; a call with another mode changes the mode. Returns `status()`. Refused for a release or a function that is
    not as it was measured, and for `fp8` without the op library; ValueError for an unknown mode."""
    global _hook
    if mode not in MODES:
        raise ValueError(f"{SLUG}: no mode {mode!r}; one of: {', '.join(MODES)}")
    mode = "refuse" if mode == MODE_AUTO else mode
    with _lock:
        if is_killed():
            LOG.warning("%s: PATCHBENCH_MITIGATE=off: not switched on", SLUG)
            return status()
        if _hook is not None and _hook.mode == mode:
            return status()
        if mode == "fp8" and load_ops():
            raise Refused(f"{SLUG}: mode fp8 needs the op library: {load_ops()}")
        disable()
        modules, version = _modules()
        finding = _probe(modules, version)
        if finding.state == "right":
            LOG.info("%s: not needed: megatron-core %s is right (%s)", SLUG, version, finding.reason)
            return status()
        if version not in MEASURED and not is_forced(SLUG):
            raise Refused(f"{SLUG}: megatron-core {version} was not measured; PATCHBENCH_FORCE={SLUG} acts nevertheless")
        _hook = Hook(finding, mode, _rebind(modules, mode))
        left = _left(modules, _hook.rebindings)
        if left:
            disable()
            raise Refused(f"{SLUG}: the fix did not take on megatron-core {version} ({left}); it is off again")
        LOG.warning("%s: on for megatron-core %s, mode %s: %s", SLUG, version, mode, ", ".join(status()["sites"]))
        return status()


def disable() -> dict[str, Any]:
    """Puts the originals back, the very objects. Idempotent. Refused (nothing changed) if one was wrapped since."""
    global _hook
    with _lock:
        if _hook is not None:
            for rebinding in _hook.rebindings:
                if vars(rebinding.holder).get(rebinding.name) is not rebinding.placed:
                    raise Refused(f"{SLUG}: {rebinding.site.label} was changed since; undo that first")
            for rebinding in _hook.rebindings:
                if isinstance(rebinding.holder, type):
                    delattr(rebinding.holder, rebinding.name)
                else:
                    setattr(rebinding.holder, rebinding.name, rebinding.original)
            _hook = None
        return status()


def status() -> dict[str, Any]:
    """{"slug", "on"}, and while on: mode, version, state, the functions that are replaced, and counts since then: calls
    that were refused or served in fp8, operands that were dequantised, and the bytes that these took."""
    with _lock:
        if _hook is None:
            return {"slug": SLUG, "on": False}
        sites, finding = [rebinding.site.label for rebinding in _hook.rebindings], _hook.finding
        return {"slug": SLUG, "on": True, "mode": _hook.mode, "version": finding.version, "state": finding.state,
                "sites": sites, "counts": dict(_hook.counts)}
