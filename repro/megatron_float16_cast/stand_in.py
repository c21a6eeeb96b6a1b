"""Makes the constructors of the real mixers callable without compiled extensions and, on a CPU, without a GPU.

* `mamba_ssm`: its `__init__` imports compiled extensions, so the package, where there is one, is entered without it; every module below
  is real.
* The packages of ABSENT are imported by the mixers; their forwards alone use them. An installed one is never hidden.
* A constructor of megatron-core draws under a generator of its tensor-parallel group, which only `initialize_model_parallel` makes, and
  asks for the current GPU. `place` is both: no generator of its own, and the case's device.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

import torch
from absent import enter_without_init, stand_in_for

ABSENT = ("causal_conv1d", "einops", "tilelang")
ONE_RANK = SimpleNamespace(size=lambda: 1, rank=lambda: 0)


class Linear(torch.nn.Module):
    """In the place of a mixer's parallel linear layer: its weight [out, in] in the model's dtype."""

    def __init__(self, num_in: int, num_out: int, *, config: object, **_: object):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(num_out, num_in, dtype=config.params_dtype, device=torch.cuda.current_device()))


def install() -> None:
    """Idempotent. Call before the packages are imported."""
    if stand_in_for(ABSENT) and importlib.util.find_spec("mamba_ssm") is not None:
        enter_without_init("mamba_ssm")


@contextlib.contextmanager
def place(module: object, device: str) -> Iterator[None]:
    """Within this the constructors of `megatron.core.ssm.mamba_mixer` build on the device."""
    tracker = SimpleNamespace(fork=contextlib.nullcontext)
    with (
        mock.patch.object(module, "get_cuda_rng_tracker", lambda: tracker),
        mock.patch.object(torch.cuda, "current_device", lambda: device),
    ):
        yield
