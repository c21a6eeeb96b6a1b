"""mamba-ssm's Mamba-3 MIMO backward with grouped B and C: any number of groups, and float32 bias gradients.

The host functions return per-head gradients of q and k where there are as many groups as heads, sum them where there is one
group, and raise for a number between. They sum the gradients of the float32 biases in the dtype of q and k. Replaced are
`mamba_mimo_bwd_combined` and `mamba_mimo_bwd_combined_varlen`, wherever a module of mamba_ssm holds them:

  1 < groups < heads     q and k are repeated from groups to heads for the original, which then returns per-head gradients;
                         these are summed over each group in float32 and rounded once
  1 group, not float32   the same, because exact bias gradients need the per-head ones
  groups = heads, not float32   the original's gradients, but those of the biases
  all else               the original as it came, so with its own error where groups are no divisor of heads

The bias gradients are float32 sums over batch and tokens of the per-head gradients that the kernel stored. Modes: "op"
(patchbench::group_reduce_bwd for float32, bfloat16, float16), "plain" (torch alone), "auto" (op where it loads, else plain).
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from patchbench_mitigations.registry import LOG, MODE_AUTO, Refused, is_forced, is_killed, load_op

SLUG = "mamba3_mimo_gqa_bwd"
PACKAGE = "mamba_ssm"
# The varlen module imports this one, and so does whatever calls either: nobody has bound a name before the hook acts.
TARGET = "mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd"
MODES = (MODE_AUTO, "op", "plain")
# Releases on which the probe and both forms were run against fp64. The main branch kept the string after its own fix, so
# that the arguments below and the probe decide with it.
MEASURED = frozenset(("2.3.2.post1",))
TAKES = (
    "dout q k v q_bias k_bias mimo_v mimo_o z mimo_z angles dA_cs dA_cs_rev dt trap D segsum chunk_size "
    "rotary_dim_divisor dtype{} bf_threads bf_num_stages bb_threads bb_num_stages"
)
ROUNDED = (torch.float16, torch.bfloat16)
OP_DTYPES = (torch.float32, *ROUNDED)
PLACES = (0, 1, 6, 7)  # of the gradients of q, k, q_bias and k_bias in what a host function returns
Function = Callable[..., Any]
_lock = threading.RLock()


@dataclass
class Finding:
    """What the installed release does: `needed`, `right`, or `unknown`, with what was seen."""

    state: str
    version: str
    reason: str


class Site(NamedTuple):
    """A host function: its module, its name and the arguments that it was measured with."""

    module: str
    name: str
    takes: list[str]


SITES = (
    Site(TARGET, "mamba_mimo_bwd_combined", TAKES.format("").split()),
    Site(f"{TARGET}_varlen", "mamba_mimo_bwd_combined_varlen", TAKES.format(" cu_seqlens").split()),
)


@dataclass
class Hook:
    """The host functions that were replaced, and how their calls are served."""

    mode: str
    finding: Finding
    op_note: str  # why the op is not used
    replaced: list[tuple[Site, Function, Function]] = field(default_factory=list)  # site, original, replacement
    calls: dict[str, int] = field(default_factory=lambda: {"op": 0, "plain": 0})


_hook: Hook | None = None


# ---- the sums ----


load_ops = functools.partial(load_op, "group_reduce_bwd")


def plain_reduced(dq: torch.Tensor, dk: torch.Tensor, num_groups: int) -> tuple[torch.Tensor, ...]:
    """grad_q, grad_k [b, s, r, g, d] in their dtypes and grad_q_bias, grad_k_bias [h, r, d] in float32 (float64) from
    per-head gradients [b, s, r, h, d]; as many groups as heads give dq and dk themselves."""
    sums, biases = [], []
    for raw in (dq, dk):
        dtype = torch.float64 if raw.dtype == torch.float64 else torch.float32
        groups = raw.unflatten(3, (num_groups, -1))
        sums.append(raw if num_groups == raw.shape[3] else groups.sum(4, dtype=dtype).to(raw.dtype))
        biases.append(raw.sum((0, 1), dtype=dtype).transpose(0, 1).contiguous())
    return *sums, *biases


def reduced(hook: Hook, dq: torch.Tensor, dk: torch.Tensor, num_groups: int) -> tuple[torch.Tensor, ...]:
    """`plain_reduced`, by the op where the mode and the dtypes admit it."""
    if not hook.op_note and dq.dtype in OP_DTYPES and dk.dtype == dq.dtype:
        hook.calls["op"] += 1
        return torch.ops.patchbench.group_reduce_bwd(dq, dk, num_groups)
    hook.calls["plain"] += 1
    return plain_reduced(dq, dk, num_groups)


# ---- the hook ----


def guarded(hook: Hook, original: Function) -> Function:
    """The original, but for calls that it refuses or whose bias gradients it would round."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        bound = signature.bind(*args, **words)
        bound.apply_defaults()
        given = bound.arguments
        q, k, num_heads = given["q"], given["k"], given["v"].shape[-2]
        num_groups = q.shape[3]
        # Without sequence bounds the varlen function calls the dense one, which is replaced too.
        is_passed_on = "cu_seqlens" in given and given["cu_seqlens"] is None
        is_between = 1 < num_groups < num_heads
        is_rounded = q.dtype in ROUNDED or k.dtype in ROUNDED
        is_divisor = num_groups > 0 and num_heads % num_groups == 0 and k.shape == q.shape
        if is_passed_on or not is_divisor or not (is_between or is_rounded):
            return original(*args, **words)
        if num_groups != num_heads:
            given["q"], given["k"] = (x.repeat_interleave(num_heads // num_groups, dim=3) for x in (q, k))
        gradients = list(original(*bound.args, **bound.kwargs))
        sums = reduced(hook, *gradients[:2], num_groups)
        for place, gradient in zip(PLACES, sums, strict=True):
            gradients[place] = gradient
        return tuple(gradients)

    return replacement


# ---- probe ----


class _OwnReduction(Exception):
    """The host function came to a reduction of groups of its own."""


def _detached(host: types.FunctionType, per_head: torch.Tensor) -> Function:
    """The host function's own code on a copy of its module's names, in which the kernels write `per_head` as the gradients
    of q and k and the Triton helpers give nothing: no GPU, no compiler, and the module itself is not touched."""

    def kernel(*tensors: Any) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.shape == per_head.flatten(1, 2).shape:
                tensor.copy_(per_head.flatten(1, 2))

    def reduces(*_: Any, **__: Any) -> None:
        raise _OwnReduction

    names = dict(host.__globals__)
    names |= {"mamba_mimo_bwd_fwd": lambda *_, **__: lambda *_: None, "mamba_mimo_bwd_bwd": lambda *_, **__: kernel}
    for suffix in ("", "_varlen"):
        names[f"bwd_dtrap_ddt_triton{suffix}"] = lambda *_, **__: (None, None)
        names[f"bwd_dadt_fused_triton{suffix}"] = lambda *_, **__: 0
    names["reduce_grouped_qk_grads_and_bias_triton"] = reduces
    copied = types.FunctionType(host.__code__, names, host.__name__, host.__defaults__, host.__closure__)
    copied.__kwdefaults__ = host.__kwdefaults__
    return copied


def observed_state(host: types.FunctionType, hook: Hook | None = None) -> tuple[str, str]:
    """Runs a host function with 2 groups of 4 heads, through the replacement if a hook is given: (state, reason)."""
    num_tokens, num_ranks, num_heads, head_dim, head_dim_v = 4, 2, 4, 8, 6

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cpu")

    # Exact in float16, and so are the sums over groups; those over tokens, 2051 times the head's number, are not.
    per_head = zeros(1, num_tokens, num_ranks, num_heads, head_dim, dtype=torch.float16)
    for head_idx in range(num_heads):
        per_head[:, 0, :, head_idx], per_head[:, 1:, :, head_idx] = 2048 * (head_idx + 1), head_idx + 1
    per_head[:, :, 1] *= -1
    q = zeros(1, num_tokens, num_ranks, 2, head_dim, dtype=torch.float16)
    v, per_token = zeros(1, num_tokens, num_heads, head_dim_v, dtype=torch.float16), zeros(1, num_heads, num_tokens)
    bias, factor = zeros(num_heads, num_ranks, head_dim), zeros(num_heads, num_ranks, head_dim_v)
    words = dict.fromkeys(("z", "mimo_z", "D")) | dict.fromkeys(("dA_cs", "dA_cs_rev", "dt", "trap"), per_token) | {
        "dout": v, "q": q, "k": q, "v": v, "q_bias": bias, "k_bias": bias, "mimo_v": factor, "mimo_o": factor,
        "angles": zeros(1, num_tokens, num_heads, head_dim // 2), "segsum": zeros(1, num_heads, 1, 4, 4),
        "chunk_size": 4, "rotary_dim_divisor": 2, "dtype": torch.float16,
    }  # fmt: skip
    if "cu_seqlens" in inspect.signature(host).parameters:
        words["cu_seqlens"] = torch.tensor([0, num_tokens], dtype=torch.int32, device="cpu")
    function = _detached(host, per_head)
    try:
        found = (guarded(hook, function) if hook else function)(**words)
    except _OwnReduction:
        return "right", "groups are reduced by kernels of its own"
    except Exception as e:
        state = "needed" if isinstance(e, ValueError) else "unknown"
        return state, f"2 groups of 4 heads raise {type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
    pairs = zip((found[place] for place in PLACES), plain_reduced(per_head, per_head, 2), strict=True)
    equal = [got.dtype == wanted.dtype and torch.equal(got, wanted) for got, wanted in pairs]
    if not all(equal[:2]):
        return "unknown", "2 groups of 4 heads give gradients that are not the sums over each group's heads"
    if not all(equal[2:]):
        return "needed", "the bias gradients are not float32 sums"
    return "right", "2 groups of 4 heads are summed in float32"


def _installed() -> tuple[list[tuple[Site, types.FunctionType]], str]:
    """The host functions and the release's version; Refused for what cannot be imported or is no function of its module."""
    found: list[tuple[Site, types.FunctionType]] = []
    for site in SITES:
        try:
            host = getattr(importlib.import_module(site.module), site.name, None)
        except ImportError as e:
            if found and e.name == site.module:
                continue  # before variable lengths
            raise Refused(f"{SLUG}: {site.module} cannot be imported ({e}); is mamba-ssm with Mamba-3 installed?") from e
        if not inspect.isfunction(host) or hasattr(host, "__wrapped__") or host.__module__ != site.module:
            raise Refused(f"{SLUG}: {site.name} is not there as a plain function, or is wrapped already; undo that first")
        found.append((site, host))
    try:
        return found, getattr(sys.modules[PACKAGE], "__version__", None) or importlib.metadata.version("mamba-ssm")
    except importlib.metadata.PackageNotFoundError:
        return found, "unknown"


def _probe(hosts: list[tuple[Site, types.FunctionType]], version: str, hook: Hook | None = None) -> Finding:
    """The worst of the host functions' states."""
    seen = [(*observed_state(host, hook), site.name) for site, host in hosts]
    for wanted in ("unknown", "needed"):
        for state, reason, name in seen:
            if state == wanted:
                return Finding(state, version, f"{name}: {reason}")
    return Finding("right", version, seen[0][1])


def probe() -> Finding:
    """What the installed release's own code does, whether or not the hook is on. Runs on the CPU, without a kernel."""
    with _lock:
        return _hook.finding if _hook is not None else _probe(*_installed())


# ---- switch ----


def _rebind(held: Function, given: Function) -> None:
    """Puts `given` wherever a module of mamba_ssm holds `held`."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE and isinstance(module, types.ModuleType):
            for key in [key for key, value in list(vars(module).items()) if value is held]:
                setattr(module, key, given)


def enable(mode: str = MODE_AUTO) -> dict[str, Any]:
    """Switches the fix on if the installed release needs it, proven by the probe before; all functions or none.
    Idempotent; a call with another mode changes the mode. Returns `status()`. Refused (nothing changed) as the README says;
    ValueError for an unknown mode."""
    global _hook
    if mode not in MODES:
        raise ValueError(f"{SLUG}: no mode {mode!r}; one of: {', '.join(MODES)}")
    with _lock:
        if is_killed():
            LOG.warning("%s: PATCHBENCH_MITIGATE=off: not switched on", SLUG)
            return status()
        if _hook is not None and _hook.mode == mode:
            return status()
        if mode == "op" and load_ops():
            raise Refused(f"{SLUG}: mode op: {load_ops()}; use mode plain, or build the op for this torch")
        disable()
        hosts, version = _installed()
        finding = _probe(hosts, version)
        if finding.state == "right":
            LOG.info("%s: not needed: mamba-ssm %s is right (%s)", SLUG, version, finding.reason)
            return status()
        _check_may_act(hosts, finding)
        fixed = _probe(hosts, version, hook := Hook(mode, finding, "mode plain" if mode == "plain" else load_ops()))
        if fixed.state != "right":
            raise Refused(f"{SLUG}: the fix does not take on mamba-ssm {version} ({fixed.reason}); it is off")
        hook.calls = dict.fromkeys(hook.calls, 0)
        hook.replaced = [(site, host, guarded(hook, host)) for site, host in hosts]
        for _, host, replacement in hook.replaced:
            _rebind(host, replacement)
        _hook = hook
        LOG.warning("%s: on for mamba-ssm %s (%s), sums by %s", SLUG, version, finding.reason, status()["served_by"])
        return status()


def _check_may_act(hosts: list[tuple[Site, types.FunctionType]], finding: Finding) -> None:
    """Refused unless the release is as it was measured; PATCHBENCH_FORCE lifts the version alone."""
    if finding.state == "unknown":
        raise Refused(f"{SLUG}: mamba-ssm {finding.version}: {finding.reason}")
    for site, host in hosts:
        if list(inspect.signature(host).parameters) != site.takes:
            raise Refused(f"{SLUG}: {site.name} takes other arguments than were measured: {inspect.signature(host)}")
    if finding.version not in MEASURED and not is_forced(SLUG):
        raise Refused(f"{SLUG}: mamba-ssm {finding.version} was not measured; PATCHBENCH_FORCE={SLUG} acts nevertheless")


def disable() -> dict[str, Any]:
    """Puts the originals back, the very objects. Idempotent. Refused (nothing changed) if one was wrapped since."""
    global _hook
    with _lock:
        if _hook is not None:
            for site, _, replacement in _hook.replaced:
                if getattr(sys.modules.get(site.module), site.name, replacement) is not replacement:
                    raise Refused(f"{SLUG}: {site.name} was changed since; undo that first")
            for _, host, replacement in _hook.replaced:
                _rebind(replacement, host)
            _hook = None
        return status()


def status() -> dict[str, Any]:
    """{"slug", "on"}, and while on: mode, version, state, reason, served_by, why the op is not used, the functions that are
    replaced, and the calls whose sums were made here, by way."""
    if _hook is None:
        return {"slug": SLUG, "on": False}
    return {"slug": SLUG, "on": True, "mode": _hook.mode, **vars(_hook.finding),
            "served_by": "plain torch" if _hook.op_note else "patchbench::group_reduce_bwd",
            "op_note": _hook.op_note, "sites": [site.name for site, *_ in _hook.replaced], "calls": dict(_hook.calls)}
