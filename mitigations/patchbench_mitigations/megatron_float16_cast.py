"""Megatron-LM's Float16Module: a parameter or buffer that is marked to stay in float32 keeps its bits through the cast.

The mark is the attribute `keep_in_fp32`, the one that Megatron-LM's main branch has since PR 5929. Whoever builds the model sets it,
before the model is wrapped; nothing is marked by itself:

    for name, parameter in model.named_parameters():
        parameter.keep_in_fp32 = name.endswith(("dt_bias", "A_log", ".D"))

The hook replaces `Float16Module.__init__` on the class object. While the release's own runs, `half()` and `bfloat16()` of the module
that it is given cast what is not marked alone; a module without a marked tensor goes to the release untouched.

Mode "exact" (what "auto" stands for) is exact: a marked tensor has its bits, every other is cast as the release casts it. A marked
parameter is a native float32 parameter to what comes after: its gradient and its part of a checkpoint are in float32, too. Sharded
checkpoints of Float16OptimizerWithFloat16Params, which the same PR changes for such parameters, stay as the release has them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
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


def _is_marked(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, MARK, False))


def _num_marked(module: torch.nn.Module) -> int:
    return sum(map(_is_marked, itertools.chain(module.parameters(), module.buffers())))


def _cast_for(module: torch.nn.Module, dtype: torch.dtype) -> Callable[[], torch.nn.Module]:
    """Replaces `module.half` or `module.bfloat16`."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and not _is_marked(tensor) else tensor

    return lambda: module._apply(cast)


@contextlib.contextmanager
def _marks_are_kept(module: torch.nn.Module) -> Iterator[None]:
    """Within this the casts of this one module object keep what is marked; it has no attribute more afterwards."""
    placed = {"half": _cast_for(module, torch.float16), "bfloat16": _cast_for(module, torch.bfloat16)}
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
        kept = _num_marked(module)
        if not kept:
            return original(self, config, module, *args, **words)
        hook.serve(served=1, kept=kept)
        with _marks_are_kept(module):
            return original(self, config, module, *args, **words)

    return __init__


# ---- probe ----


def observed_state(wrapper: type) -> tuple[str, str]:
    """Wraps a module of two parameters and two buffers, of which one each is marked, in bf16 and in fp16: (state, reason)."""
    for dtype in (torch.bfloat16, torch.float16):
        module = torch.nn.Module()
        for name in ("kept", "cast"):
            setattr(module, name, torch.nn.Parameter(torch.full((2,), 1 / 3)))  # no 16-bit type holds it
            module.register_buffer(f"{name}_buffer", torch.full((2,), 1 / 3))
        setattr(module.kept, MARK, True)
        setattr(module.kept_buffer, MARK, True)
        before = module.kept.detach().clone()
        is_bf16 = dtype == torch.bfloat16
        try:
            wrapper(SimpleNamespace(bf16=is_bf16, fp16=not is_bf16, virtual_pipeline_model_parallel_size=None), module)
        except Exception as error:
            return "unknown", f"a module could not be wrapped ({type(error).__name__}: {error})"
        if module.cast.dtype != dtype or module.cast_buffer.dtype != dtype:
            return "unknown", f"what is not marked is not cast to {dtype}"
        for name, tensor in (("parameter", module.kept), ("buffer", module.kept_buffer)):
            if not torch.equal(tensor.detach(), before):
                return "fp32_lost", f"a {name} that is marked to stay in float32 comes out as {tensor.dtype}, rounded"
    return "right", "what is marked stays in float32, all else is cast"


# ---- switch ----


class _Float16Cast(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "", KEYS
    counted = ("served", "kept")

    def meaning(self, mode: str) -> str:
        return EXACT if mode == MODE_AUTO else mode

    def op_note(self, mode: str) -> str:
        return "no op: the release wraps"

    def served_by(self, hook: Hook) -> str:
        return "the release's own wrapper, over a cast that keeps what is marked"

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
