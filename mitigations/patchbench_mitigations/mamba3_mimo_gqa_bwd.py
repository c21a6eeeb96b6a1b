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
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from patchbench_mitigations.fingerprint import installed_version, own_function
from patchbench_mitigations.registry import load_op
from patchbench_mitigations.switch import Arguments, Finding, Hook, Mitigation, Placement

SLUG = "mamba3_mimo_gqa_bwd"
UPSTREAM = "mamba-ssm"
PACKAGE = "mamba_ssm"
# The varlen module imports this one, and so does whatever calls either: nobody has bound a name before the hook acts.
TARGET = "mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd"
TAKES = (
    "dout q k v q_bias k_bias mimo_v mimo_o z mimo_z angles dA_cs dA_cs_rev dt trap D segsum chunk_size "
    "rotary_dim_divisor dtype{} bf_threads bf_num_stages bb_threads bb_num_stages"
)
ROUNDED = (torch.float16, torch.bfloat16)
OP_DTYPES = (torch.float32, *ROUNDED)
PLACES = (0, 1, 6, 7)  # of the gradients of q, k, q_bias and k_bias in what a host function returns
Function = Callable[..., Any]


class Site(NamedTuple):
    """A host function: its module, its name and the arguments that it was measured with."""

    module: str
    name: str
    takes: list[str]


SITES = (
    Site(TARGET, "mamba_mimo_bwd_combined", TAKES.format("").split()),
    Site(f"{TARGET}_varlen", "mamba_mimo_bwd_combined_varlen", TAKES.format(" cu_seqlens").split()),
)
KEYS = (f"{TARGET}:mamba_mimo_bwd_combined", f"{TARGET}_varlen:mamba_mimo_bwd_combined_varlen")


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
        hook.serve(op=1)
        return torch.ops.patchbench.group_reduce_bwd(dq, dk, num_groups)
    hook.serve(plain=1)
    return plain_reduced(dq, dk, num_groups)


# ---- the hook ----


def guarded(hook: Hook, original: Function) -> Function:
    """The original, but for calls that it refuses or whose bias gradients it would round."""
    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        given = arguments.of(args, words)
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
        gradients = list(arguments.call(original, given))
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


# ---- switch ----

Hosts = list[tuple[Site, types.FunctionType]]


def _looked_at(hosts: Hosts, version: str, hook: Hook | None = None) -> Finding:
    """The worst of the host functions' states."""
    seen = [(*observed_state(host, hook), site.name) for site, host in hosts]
    for wanted in ("unknown", "needed"):
        for state, reason, name in seen:
            if state == wanted:
                return Finding(state, version, f"{name}: {reason}")
    return Finding("right", version, seen[0][1])


class _Mamba(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "patchbench::group_reduce_bwd", KEYS
    counted = ("op", "plain")

    def op_note(self, mode: str) -> str:
        if mode == "op" and load_ops():
            raise self.refusal(f"mode op: {load_ops()}; use mode plain, or build the op for this torch")
        return "mode plain" if mode == "plain" else load_ops()

    def release(self) -> tuple[Hosts, str]:
        found: Hosts = []
        for site in SITES:
            try:
                module = importlib.import_module(site.module)
            except ImportError as e:
                if found and e.name == site.module:
                    continue  # before variable lengths
                raise self.refusal(f"{site.module} cannot be imported ({e}); is mamba-ssm with Mamba-3 installed?") from e
            host = getattr(module, site.name, None)
            if not own_function(host, module):
                raise self.refusal(f"{site.name} is not there as a plain function, or is wrapped already; undo that first")
            found.append((site, host))
        return found, installed_version(UPSTREAM, TARGET)

    def look(self, release: Hosts, version: str) -> Finding:
        return _looked_at(release, version)

    def objection(self, release: Hosts, finding: Finding) -> str:
        if finding.state == "unknown":
            return f"mamba-ssm {finding.version}: {finding.reason}"
        for site, host in release:
            if list(inspect.signature(host).parameters) != site.takes:
                return f"{site.name} takes other arguments than were measured: {inspect.signature(host)}"
        return ""

    def placements(self, release: Hosts, hook: Hook) -> list[Placement]:
        return [Placement(sys.modules[site.module], site.name, host, guarded(hook, host), site.name, PACKAGE) for site, host in release]

    def left(self, release: Hosts, hook: Hook) -> str:
        fixed = _looked_at(release, hook.finding.version, hook)
        return "" if fixed.state == "right" else fixed.reason


_own = _Mamba()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
