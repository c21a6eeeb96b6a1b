"""The installed megatron-core, for the mitigations of its sparse attention."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch

from patchbench_mitigations.fingerprint import installed_version
from patchbench_mitigations.switch import Mitigation

# The parent of the modules that are changed: whichever of them is imported first, its parent was before.
TARGET = "megatron.core"
VARIANT = "megatron.core.transformer.experimental_attention_variant"
Modules = dict[str, ModuleType]


def is_wrapped_storage(value: Any) -> bool:
    """Whether the values lie in a format of the type's own, behind the dtype that it reports. Quantised classes override
    `dequantize`, whatever library they are of. Only the type is asked: reading a pointer raises on some of them."""
    return getattr(type(value), "dequantize", None) not in (None, torch.Tensor.dequantize)


def detached(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """The release's own code of a function, under whatever wraps it, on a copy of its module's names with these in place of
    the module's: the module itself is not touched."""
    inner = inspect.unwrap(function)
    copied = FunctionType(inner.__code__, {**inner.__globals__, **names}, inner.__name__, inner.__defaults__, inner.__closure__)
    copied.__kwdefaults__ = inner.__kwdefaults__
    return copied


def version_for(own: Mitigation) -> str:
    """The installed release's version; Refused where megatron-core is not."""
    try:
        importlib.import_module(TARGET)
    except ImportError as e:
        raise own.refusal(f"{TARGET} cannot be imported ({e}); is megatron-core installed?") from e
    return installed_version("megatron-core", TARGET)


def modules_for(own: Mitigation, names: Iterable[str]) -> Modules:
    """The attention variant's modules that the release has; Refused for one that is there and cannot be imported."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.import_module(f"{VARIANT}.{name}")
        except ImportError as e:
            if not isinstance(e, ModuleNotFoundError) or not (e.name or "").startswith(VARIANT):
                raise own.refusal(f"{VARIANT}.{name} cannot be imported ({e})") from e
    return found
