"""mamba-ssm's Mamba-3 without MIMO on packed sequences, with a d_state that is not a power of two.

The forward stores the states of the chunks for the backward. The states of a packed sequence begin at a number of chunks times
d_state rounded up to a power of two; a row of the storage has room for the chunks times d_state itself. So the last sequences'
states go past their row, over those of the next row, and past the end of the storage: grad_q, grad_adt and what comes from
them are wrong. It happens without gradients too, as under torch.no_grad: the states are stored where an argument (the
layer's D) wants a gradient. `mamba3_siso_combined` is replaced, wherever a module of mamba_ssm holds it:

  packed, d_state even and no power of two, an argument wants a gradient   Q, K, their biases and the initial states get zeros
                                                                           up to the power of two; final states are cut again
  all else                                                                 the original as it came

Exact, bit for bit: the kernels compute on blocks of that width, in which the release has zeros past d_state itself. One mode,
"pad" ("auto" is the same). The product that the pack is named after is left as it is: it harms no run.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from patchbench_mitigations.fingerprint import installed_version, own_function
from patchbench_mitigations.megatron import detached
from patchbench_mitigations.switch import Arguments, Finding, Hook, Mitigation, Placement

SLUG = "mamba3_siso_bwd_cse"
UPSTREAM = "mamba-ssm"
PACKAGE = "mamba_ssm"
PARTS = "mamba_ssm.ops.triton.mamba3."
TARGET = PARTS + "mamba3_siso_combined"
FORWARD = PARTS + "mamba3_siso_fwd"
NAME = "mamba3_siso_combined"
KEYS = (TARGET + ":mamba3_siso_combined", FORWARD + ":mamba3_siso_fwd", PARTS + "mamba3_siso_bwd:compute_dqkv")
TAKES = "Q K V ADT DT Trap Q_bias K_bias Angles D Z Input_States chunk_size return_final_states cu_seqlens".split()
# How the kernel places a packed sequence, as its source has it.
PLACED = "chunk_offset * HEADDIM_QK * stride_ssm_states_qkdim"
Function = Callable[..., Any]


def wider(tensor: torch.Tensor, num_zeros: int) -> torch.Tensor:
    """Zeros to the right of the last axis."""
    return torch.nn.functional.pad(tensor, (0, num_zeros))


def is_padded(given: dict[str, Any]) -> bool:
    """Whether the release would store the states of packed sequences at places for which their rows are too short. Its own
    errors stay its own."""
    width = given["Q"].shape[-1]
    if given["cu_seqlens"] is None or width % 2 or not width & (width - 1) or given["Angles"].shape[-1] > width // 2:
        return False
    tensors = [*given.values(), *(given["Input_States"] or ())]
    return any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors)


def padding(original: Function, hook: Hook) -> Function:
    """The original, on a width that is a power of two where it would store states past their rows."""
    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        given = arguments.of(args, words)
        if not is_padded(given):
            return original(*args, **words)
        width = given["Q"].shape[-1]
        num_zeros = (1 << width.bit_length()) - width
        for name in ("Q", "K", "Q_bias", "K_bias"):
            given[name] = wider(given[name], num_zeros)
        if given["Input_States"] is not None:
            angle, ssm, k, v = given["Input_States"]
            given["Input_States"] = (angle, *(None if one is None else wider(one, num_zeros) for one in (ssm, k)), v)
        found = arguments.call(original, given)
        hook.serve(padded=1)
        if not given["return_final_states"]:
            return found
        out, angle, ssm, k, v = found
        return out, angle, *(one[..., :width].contiguous() for one in (ssm, k)), v

    return replacement


# ---- probe ----


class _Launch:
    """Takes the forward kernel's place and keeps the last launch's arguments by name."""

    def __init__(self, kernel: Function) -> None:
        self.names = list(inspect.signature(kernel).parameters)

    def __getitem__(self, _: Any) -> Function:
        return self.keep

    def keep(self, *positional: Any, **named: Any) -> None:
        self.given = dict(zip(self.names, positional)) | named  # noqa: B905  the rest are named


class _Release(NamedTuple):
    """The public function, the forward that it calls, and that one's kernel as a plain function."""

    combined: Function
    forward: Function
    kernel: Function


def _columns(release: _Release, hook: Hook | None) -> tuple[int, int]:
    """How many columns of states a row needs and has, for two packed sequences of one chunk and a d_state of 6, through the
    replacement if a hook is given. The host functions' own code runs on copies of their modules' names, on a CPU; no kernel."""
    launch = _Launch(release.kernel)
    forward = detached(release.forward, mamba3_siso_fwd_kernel=launch)

    class Autograd:
        """Takes the place of the release's autograd function; its result is not looked at."""

        @staticmethod
        def apply(*positional: Any) -> None:
            bounds, chunk = positional[-3:-1]
            forward(*positional[:11], chunk_size=chunk, store_states_adt_outv=True, cu_seqlens=bounds)

    combined = detached(release.combined, _Mamba3Function=Autograd)
    width, chunk, num_tokens = 6, 16, 17

    def zeros(*sizes: int) -> torch.Tensor:
        return torch.zeros(sizes, device="cpu")

    q, v, scalars, bias = zeros(1, num_tokens, 1, width), zeros(1, num_tokens, 1, 4), zeros(1, 1, num_tokens), zeros(1, width)
    angles, bounds = zeros(1, num_tokens, 1, 2), torch.tensor([0, chunk, num_tokens], dtype=torch.int32, device="cpu")
    tensors = (q, q, v, scalars, scalars, scalars, bias.requires_grad_(), bias, angles)
    (padding(combined, hook) if hook else combined)(*tensors, chunk_size=chunk, cu_seqlens=bounds)
    given = launch.given
    # The second sequence is one chunk and begins at chunk 1 + 16 // 16.
    return 2 * given["HEADDIM_QK"] + given["headdim_qk"], given["SSM_States"].shape[-1]


def observed_state(release: _Release, version: str, hook: Hook | None = None) -> Finding:
    """What the release does with the places of packed states."""
    if PLACED not in inspect.getsource(release.kernel):
        return Finding("unknown", version, "the forward kernel places the states of packed sequences in another way than was measured")
    try:
        needed, there = _columns(release, hook)
    except Exception as e:
        return Finding("unknown", version, f"the host functions raised {type(e).__name__}: {(str(e).splitlines() or [''])[0]}")
    text = f"two packed sequences with a d_state of 6 need {needed} columns of states in a row, which has {there}"
    return Finding("right" if needed <= there else "needed", version, text)


# ---- switch ----


class _Siso(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "the release's kernels", KEYS
    counted = ("padded",)

    def meaning(self, mode: str) -> str:
        return "pad"

    def op_note(self, mode: str) -> str:
        return ""

    def release(self) -> tuple[_Release, str]:
        modules: list[ModuleType] = []
        for name in (TARGET, FORWARD):
            try:
                modules.append(importlib.import_module(name))
            except ImportError as e:
                raise self.refusal(f"{name} cannot be imported ({e}); is mamba-ssm with Mamba-3 installed?") from e
        combined, forward = (getattr(module, name, None) for module, name in zip(modules, (NAME, "mamba3_siso_fwd"), strict=True))
        kernel = getattr(modules[1], "mamba3_siso_fwd_kernel", None)
        while kernel is not None and not inspect.isfunction(kernel):
            kernel = getattr(kernel, "fn", None)  # under Triton's autotuner and compiler, or its interpreter
        if not own_function(combined, modules[0]) or not own_function(forward, modules[1]) or kernel is None:
            raise self.refusal(f"{NAME} or what it calls is not there as a plain function, or is wrapped already; undo that first")
        return _Release(combined, forward, kernel), installed_version(UPSTREAM, TARGET)

    def look(self, release: _Release, version: str) -> Finding:
        return observed_state(release, version)

    def objection(self, release: _Release, finding: Finding) -> str:
        if finding.state == "unknown":
            return f"mamba-ssm {finding.version}: {finding.reason}"
        takes = list(inspect.signature(release.combined).parameters)
        return "" if takes == TAKES else f"{NAME} takes other arguments than were measured: {', '.join(takes)}"

    def placements(self, release: _Release, hook: Hook) -> list[Placement]:
        home = importlib.import_module(TARGET)
        return [Placement(home, NAME, release.combined, padding(release.combined, hook), NAME, PACKAGE)]

    def left(self, release: _Release, hook: Hook) -> str:
        fixed = observed_state(release, hook.finding.version, hook)
        return "" if fixed.state == "right" else fixed.reason


_own = _Siso()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
