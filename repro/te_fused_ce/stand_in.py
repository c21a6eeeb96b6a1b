"""What TransformerEngine's fused cross entropy looks up and this machine lacks; the files under test are the real ones.

Its two or three files are Python and Triton; the packages around them load compiled libraries when imported. The packages are
entered without running their `__init__`. `transformer_engine.pytorch.jit`, which cross_entropy.py takes one decorator from, is ours:
`no_torch_dynamo` leaves the function as it is. Where the compiled package is installed, that one is used.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

from absent import enter_without_init

ENTERED = ("transformer_engine", "transformer_engine.common", "transformer_engine.common.triton",
           "transformer_engine.pytorch", "transformer_engine.pytorch.triton")  # fmt: skip


def install() -> None:
    """Makes `transformer_engine.pytorch.cross_entropy` importable; idempotent. Call before the package is imported."""
    if importlib.util.find_spec("transformer_engine_torch") is not None or "transformer_engine" in sys.modules:
        return
    for name in ENTERED:
        if importlib.util.find_spec(name) is not None:
            enter_without_init(name)
    jit = types.ModuleType("transformer_engine.pytorch.jit")
    jit.no_torch_dynamo = undecorated
    sys.modules[jit.__name__] = jit


def undecorated(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """A decorator that changes nothing."""
    return lambda function: function
