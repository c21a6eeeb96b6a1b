"""Megatron-LM's Float16Module: what a Mamba mixer makes in float32, and what is marked to stay so, keeps its bits through the cast.

A mixer makes some of its parameters in float32, whatever the model's dtype is: FP32_OF_MIXERS names them, by the mixer's class.
Subclasses are mixers, too. A parameter that was made in another dtype, because the program set torch's default, is cast as before.

The mark is the attribute `keep_in_fp32`, the one that Megatron-LM's main branch has since PR 5929. Whoever builds the model sets it,
before the model is wrapped. It holds for any parameter or buffer, and `False` casts a mixer's parameter as the release does:

    model.router.bias.keep_in_fp32 = True

The hook replaces `Float16Module.__init__` on the class object. While the release's own runs, `half()` and `bfloat16()` of the module
that it is given cast the other tensors alone; a module in which nothing stays goes to the release untouched.

Mode "exact" (what "auto" stands for) is exact: what stays has its bits, and every other tensor is cast as the release casts it. A gradient
that is there already stays with its parameter. What stays is a native float32 parameter to what comes after: its gradient and its part of
a checkpoint are in float32, too. Sharded checkpoints of Float16OptimizerWithFloat16Params, which the same PR changes for such parameters,
stay as the release has them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from patchbench_mitigations.registry import MODE_AUTO
from patchbench_mitigations.switch import Finding, Hook, Mitigation, Placement

SLUG = "megatron_float16_cast"
UPSTREAM = "megatron-core"
TARGET = "megatron.core.transformer.module"
CLASS = "Float16Module"
MARK = "keep_in_fp32"
EXACT = "exact"
KEYS = (f"{TARGET}:{CLASS}.__init__",)
# (module, class) of a mixer -> what its constructor makes in float32 by its own choice. Measured on megatron-core 0.15.0 to 0.19.2 and
# mamba-ssm 2.3.2.post1. Megatron's dt_bias is not there: the mixer makes it in the model's dtype.
FP32_OF_MIXERS = {
    ("megatron.core.ssm.mamba_mixer", "MambaMixer"): ("A_log", "D"),
    ("mamba_ssm.modules.mamba3", "Mamba3"): ("dt_bias", "D", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o"),
}


def _kept(module: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers below the module that stay in float32; a tensor of two modules may be there twice."""
    found = []
    for part in module.modules():
        kinds = [(kind.__module__, kind.__qualname__) for kind in type(part).__mro__]
        of_mixer = {name for kind in kinds for name in FP32_OF_MIXERS.get(kind, ())}
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            is_mixers = name in of_mixer and tensor is not None and tensor.dtype == torch.float32
            if getattr(tensor, MARK, is_mixers):
                found.append(tensor)
    return found


def _cast_for(module: torch.nn.Module, kept: Sequence[torch.Tensor], dtype: torch.dtype) -> Callable[[], torch.nn.Module]:
    """Replaces `module.half` or `module.bfloat16`."""

    def cast_but_kept() -> torch.nn.Module:
        gradients = [tensor.grad for tensor in kept]
        stay = {id(tensor) for tensor in [*kept, *gradients]}
        return module._apply(lambda tensor: tensor if id(tensor) in stay or not tensor.is_floating_point() else tensor.to(dtype))

    return cast_but_kept


@contextlib.contextmanager
def _stays(module: torch.nn.Module, kept: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within this the casts of this one module object leave what is kept; it has no attribute more afterwards."""
    placed = {"half": _cast_for(module, kept, torch.float16), "bfloat16": _cast_for(module, kept, torch.bfloat16)}
    held = {name: vars(module)[name] for name in placed if name in vars(module)}
    vars(module).update(placed)
    try:
        yield
    finally:
        for name in placed:
            del vars(module)[name]
        vars(module).update(held)


def _init_for(hook: Hook, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, config: Any, module: torch.nn.Module, *args: Any, **words: Any) -> None:
        kept = _kept(module)
        if not kept:
            return original(self, config, module, *args, **words)
        hook.serve(served=1, kept=len({id(tensor) for tensor in kept}))
        with _stays(module, kept):
            return original(self, config, module, *args, **words)

    return __init__


# ---- probe ----


MARKED = ("marked", "marked_buffer")


def _holder(kind: type, names: Sequence[str]) -> torch.nn.Module:
    """A module of this class with a parameter of each name, each with a gradient, and one more, "cast"; MARKED are a marked parameter and
    a marked buffer. All are 1/3, which no 16-bit type holds."""
    module = kind()
    for name in (*names, "cast"):
        tensor = torch.full((2,), 1 / 3)
        if name == "marked_buffer":
            module.register_buffer(name, tensor)
        else:
            setattr(module, name, torch.nn.Parameter(tensor))
            getattr(module, name).grad = tensor.clone()
        if name in MARKED:
            setattr(getattr(module, name), MARK, True)
    return module


def _lost(module: torch.nn.Module, names: Sequence[str], dtype: torch.dtype) -> str:
    """Which of the named tensors and gradients the wrap has changed, "" for none. ValueError where it has not cast the others."""
    if module.cast.dtype != dtype:
        raise ValueError(f"what may be cast is not cast to {dtype}")
    for name in names:
        tensor = getattr(module, name)
        for what, found in ((name, tensor.detach()), (f"the gradient of {name}", tensor.grad)):
            if found is not None and not (found.dtype == torch.float32 and torch.equal(found, torch.full((2,), 1 / 3))):
                return f"{what} comes out as {found.dtype}, rounded"
    return ""


def observed_state(wrapper: type) -> tuple[str, str]:
    """Wraps, in bf16 and in fp16, modules with the class names and the parameters of the mixers, and one with a marked parameter and a
    marked buffer: (state, reason)."""
    asked = [
        ("mixer_parameters_rounded", type(name, (torch.nn.Module,), {"__module__": holder}), names, f"{name} makes it in float32")
        for (holder, name), names in FP32_OF_MIXERS.items()
    ]
    asked.append(("fp32_lost", torch.nn.Module, MARKED, "it is marked to stay in float32"))
    for state, kind, names, why in asked:
        for dtype in (torch.bfloat16, torch.float16):
            is_bf16, module = dtype == torch.bfloat16, _holder(kind, names)
            try:
                wrapper(SimpleNamespace(bf16=is_bf16, fp16=not is_bf16, virtual_pipeline_model_parallel_size=None), module)
                lost = _lost(module, names, dtype)
            except Exception as error:
                return "unknown", f"a module could not be wrapped ({type(error).__name__}: {error})"
            if lost:
                return state, f"{lost}; {why}"
    return "right", "what a mixer makes in float32 and what is marked stays so, all else is cast"


# ---- switch ----


class _Float16Cast(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "", KEYS
    counted = ("served", "kept")

    def meaning(self, mode: str) -> str:
        return EXACT if mode == MODE_AUTO else mode

    def op_note(self, mode: str) -> str:
        return "no op: the release wraps"

    def served_by(self, hook: Hook) -> str:
        return "the release's own wrapper, over a cast that leaves what must stay in float32"

    def release(self) -> tuple[type, str]:
        return self.installed_class(TARGET, CLASS, ("__init__",))

    def look(self, release: type, version: str) -> Finding:
        state, reason = observed_state(release)
        return Finding(state, version, reason)

    def placements(self, release: type, hook: Hook) -> list[Placement]:
        placed = _init_for(hook, release.__init__)
        return [Placement(release, "__init__", vars(release)["__init__"], placed, f"{CLASS}.__init__")]

    def left(self, release: type, hook: Hook) -> str:
        state, reason = observed_state(release)
        return "" if state == "right" else reason


_own = _Float16Cast()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
