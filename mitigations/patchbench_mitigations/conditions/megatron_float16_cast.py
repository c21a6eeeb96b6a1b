"""Of Megatron-LM's Float16Module: what the model that it wraps holds."""

from __future__ import annotations

import itertools
from typing import Any

METHOD = "megatron.core.transformer.module.Float16Module.__init__"


def mixer_parameters_rounded(module: Any) -> bool:
    """The modules of the model that is wrapped: a MambaMixer or a Mamba3 is among them."""
    return any(cls.__name__ in ("MambaMixer", "Mamba3") for one in module.modules() for cls in type(one).__mro__)


def fp32_lost(module: Any) -> bool:
    """The parameters and buffers of the model that is wrapped: one is marked keep_in_fp32."""
    return any(getattr(one, "keep_in_fp32", False) for one in itertools.chain(module.parameters(), module.buffers()))


CALLS = {METHOD: {"mixer_parameters_rounded": mixer_parameters_rounded, "fp32_lost": fp32_lost}}
