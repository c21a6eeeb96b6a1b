"""DeepSpeed's ZeRO stage 2 with gradient accumulation: every micro-batch reaches the gradient.

The release adds a micro-batch to the ones before it where `averaged_gradients` holds something, which it does from the last micro-batch
on alone; what is added up is in `all_grad_tensors`. The hook replaces `independent_gradient_partition_epilogue` on the class object.
While the release's own function runs, a mark stands in `averaged_gradients` for each parameter group whose `all_grad_tensors` holds
earlier micro-batches, so that the release adds instead of overwriting.

Mode "exact" (what "auto" stands for) is exact: the release's own sums, in its own order. It costs no memory and no launch but the
additions that were left out. Stage 1, optimizer offload (other code) and accumulation 1 go through untouched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from patchbench_mitigations.registry import MODE_AUTO
from patchbench_mitigations.switch import Finding, Hook, Mitigation, Placement

SLUG = "zero2_grad_accumulation"
UPSTREAM = "deepspeed"
TARGET = "deepspeed.runtime.zero.stage_1_and_2"
CLASS = "DeepSpeedZeroOptimizer"
METHOD = "independent_gradient_partition_epilogue"
EXACT = "exact"
KEYS = tuple(f"{TARGET}:{CLASS}.{name}" for name in (METHOD, "get_all_grad_tensors", "get_flat_partition"))
MARK = object()


def _epilogue_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def epilogue(self: Any) -> Any:
        averaged = self.averaged_gradients
        begun = [i for i, sums in self.all_grad_tensors.items() if sums is not None and averaged.get(i) is None]
        averaged.update(dict.fromkeys(begun, MARK))
        try:
            return original(self)
        finally:
            averaged.update({i: None for i in begun if averaged[i] is MARK})
            if begun:
                hook.serve(added=1)

    return epilogue


# ---- probe ----


class _TwoMicroBatches:
    """What the epilogue reads of an optimizer with one parameter, whose micro-batches give 1 and 2. Every other method does nothing."""

    def __init__(self) -> None:
        self.bit16_groups, self.params_in_partition, self.params_already_reduced = [[]], [[]], []
        self.first_offset, self.partition_size = [0], [1]
        self.overlap_comm = self.cpu_offload = self.is_gradient_accumulation_boundary = False
        self.gradient_accumulation_dtype = torch.float32
        self.averaged_gradients: dict[int, Any] = {}
        self.all_grad_tensors: dict[int, Any] = {}
        self.num_given = 0

    def get_all_grad_tensors(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        self.num_given += 1
        return [torch.tensor([float(self.num_given)])]

    get_flat_partition = get_all_grad_tensors

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def observed_state(epilogue: Callable[..., Any]) -> tuple[str, str]:
    """Gives the epilogue two micro-batches: (state, reason)."""
    optimizer = _TwoMicroBatches()
    try:
        epilogue(optimizer)
        epilogue(optimizer)
        kept = optimizer.all_grad_tensors.get(0) or optimizer.averaged_gradients.get(0)
        got = float(kept[0])
    except Exception as error:
        return "unknown", f"the epilogue cannot be asked: {error}"
    if got == 3:
        return "right", "two micro-batches are added up"
    return ("last_micro_batch", "the second micro-batch takes the place of the first") if got == 2 else ("unknown", f"1 and 2 give {got}")


# ---- switch ----


class _Accumulation(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "", KEYS
    counted = ("added",)

    def meaning(self, mode: str) -> str:
        return EXACT if mode == MODE_AUTO else mode

    def op_note(self, mode: str) -> str:
        return "no op: the release computes"

    def served_by(self, hook: Hook) -> str:
        return "the release's own epilogue"

    def release(self) -> tuple[type, str]:
        return self.installed_class(TARGET, CLASS, (METHOD,))

    def look(self, release: type, version: str) -> Finding:
        state, reason = observed_state(getattr(release, METHOD))
        return Finding(state, version, reason)

    def placements(self, release: type, hook: Hook) -> list[Placement]:
        original = vars(release)[METHOD]
        return [Placement(release, METHOD, original, _epilogue_for(hook, original), f"{CLASS}.{METHOD}")]

    def left(self, release: type, hook: Hook) -> str:
        state, reason = observed_state(getattr(release, METHOD))
        return "" if state == "right" else reason


_own = _Accumulation()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
