"""Makes the real Mamba-3 SISO backward importable and its launch the same everywhere; host function and kernel stay real.

* `mamba_ssm`: its `__init__` imports compiled extensions, so the package is entered without it; every module below is real.
* `einops` is imported by the module and not used by this kernel. An installed one is never hidden.
* The kernel's autotuner keeps the one configuration of LAUNCH, on CPU and GPU alike: Triton's CPU interpreter has no clock to
  tune by, and two subjects that were tuned apart would not be comparable bit for bit.
* The host function asserts that its tensors are on a GPU: `as_if_on_gpu` marks the ones that are not.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from absent import enter_without_init, optional_module, stand_in_for

MODULE = "mamba_ssm.ops.triton.mamba3.mamba3_siso_bwd"
KERNEL = "mamba3_siso_bwd_kernel_dqkv"
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

    kernel.configs = [triton.Config({}, **LAUNCH)]


def install() -> None:
    """Makes the module importable; idempotent. Call before the package is imported."""
    if not stand_in_for(("einops",)):
        return
    enter_without_init("mamba_ssm")
