"""Of DeepSpeed's ZeRO stage 2: micro-batches whose sum the next one takes the place of."""

from __future__ import annotations

from typing import Any

METHOD = "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer.independent_gradient_partition_epilogue"


def last_micro_batch(self: Any) -> bool:
    """What the optimizer holds when a backward ends: earlier micro-batches of the step, to which nothing is added."""
    is_offloaded = getattr(self, "cpu_offload", False)
    return not is_offloaded and any(
        sums is not None and self.averaged_gradients.get(i) is None for i, sums in self.all_grad_tensors.items()
    )


CALLS = {METHOD: {"last_micro_batch": last_micro_batch}}
