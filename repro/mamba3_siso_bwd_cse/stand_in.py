"""Makes the real Mamba-3 SISO backward importable and its launch the same everywhere; host function and kernel stay real.

* `mamba_ssm`: its `__init__` imports compiled extensions, so the package is entered without it; every module below is real.
* `einops` is imported by the module and not used by this kernel. An installed one is never hidden.
* The kernel's autotuner keeps the one configuration of LAUNCH, on CPU and GPU alike: Triton's CPU interpreter has no clock to
  tune by, and two subjects that were tuned apart would not be comparable bit for bit.
* The host function asserts that its tensors are on a GPU: `as_if_on_gpu` marks the ones that are not.
* The public op, forward and backward, runs in the interpreter alone: its PTX approximations are Triton's own functions there, and
  what it casts to bfloat16 is float32.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from absent import enter_without_init, optional_module, stand_in_for

PARTS = "mamba_ssm.ops.triton.mamba3."
MODULE = PARTS + "mamba3_siso_bwd"
KERNEL = "mamba3_siso_bwd_kernel_dqkv"
OP, FORWARD = PARTS + "mamba3_siso_combined", PARTS + "mamba3_siso_fwd"
# Elements after the stored states that no launch may write, and what they hold.
GUARD, UNTOUCHED = 65536, 123.0
# One of the release's own 27. Three stages do not fit in the shared memory of an H100 at d = 128, d_v = 64, chunk = 64.
LAUNCH = {"num_warps": 4, "num_stages": 1}


class OnGpu(torch.Tensor):
    """A tensor whose `is_cuda` is true wherever it lies."""

    is_cuda = True


def as_if_on_gpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The same storage; a tensor on a GPU stays what it is."""
    return tensor if tensor is None or tensor.is_cuda else tensor.as_subclass(OnGpu)


def module() -> types.ModuleType | None:
    """The release's module with its kernel's launch fixed; None where the release has none."""
    found = optional_module(MODULE)
    if found is not None:
        fix_launch(getattr(found, KERNEL))
    return found


def fix_launch(kernel: Any) -> None:
    """Leaves an autotuned kernel the configuration of LAUNCH, which is then run without being timed."""
    import triton

    kernel.configs = [triton.Config(kernel.configs[0].kwargs, **LAUNCH)]


def op() -> types.ModuleType | None:
    """The module of the release's public op, with the launches of all its kernels fixed, ready for the interpreter where Triton interprets;
    None where the release has none."""
    import triton
    import triton.language as tl

    found = optional_module(OP)
    if found is None:
        return None
    # Looked up per call: while a kernel runs, the interpreter has its own functions in tl.
    of_triton = {
        "cos_approx": lambda x: tl.cos(x), "sin_approx": lambda x: tl.sin(x), "sigmoid_approx": lambda x: tl.sigmoid(x),
        "tanh_approx": lambda x: 2 * tl.sigmoid(2 * x) - 1, "sech2_approx": lambda x: 4 * tl.sigmoid(2 * x) * tl.sigmoid(-2 * x),
    }  # fmt: skip
    for name in (FORWARD, MODULE, PARTS + "angle_dt"):
        names = vars(importlib.import_module(name))
        for kernel in [value for value in names.values() if isinstance(value, triton.runtime.Autotuner)]:
            fix_launch(kernel)
        if os.environ.get("TRITON_INTERPRET") == "1":
            names.update({name: function for name, function in of_triton.items() if name in names})
    return found


class GuardedTorch:
    """torch for the op: its zeros are float32 and have GUARD elements after them; `past_end` counts the changed ones."""

    bfloat16 = torch.float32

    def __init__(self) -> None:
        self.storages: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, sizes: tuple[int, ...], **words: Any) -> torch.Tensor:
        count = math.prod(sizes)
        self.storages.append(torch.full((count + GUARD,), UNTOUCHED, **words))
        return self.storages[-1][:count].zero_().view(sizes)

    def past_end(self) -> int:
        return sum(int((storage[-GUARD:] != UNTOUCHED).sum()) for storage in self.storages)


@contextlib.contextmanager
def interpreted() -> Iterator[GuardedTorch]:
    """Until it ends, the op runs on a CPU: its torch is the one that is given back, and every tensor says that it is on a GPU."""
    guarded = GuardedTorch()
    with contextlib.ExitStack() as stack:
        for name in (OP, FORWARD):
            stack.enter_context(mock.patch.object(sys.modules[name], "torch", guarded))
        stack.enter_context(mock.patch.object(torch.Tensor, "is_cuda", True, create=True))
        yield guarded


def install() -> None:
    """Makes the module importable; idempotent. Call before the package is imported."""
    if not stand_in_for(("einops",)):
        return
    enter_without_init("mamba_ssm")
