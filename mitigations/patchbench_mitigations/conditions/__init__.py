"""Of a pack, when a call meets the condition of a class: what the manifest's rules, which name arguments, do not say.

`<slug>.py` has CALLS: {dotted name of a function, or of a method of a class: {class: condition}}. The parameters of a condition are
arguments of that function, by their names there; one with a default may be missing there. It returns whether the call meets. It is only
read, never changed, what it is given, and imports no torch. Of a class in CALLS the manifest's rules are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def of_values(condition: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a condition that looks at values: it may return a tensor of one element, which is added up on its device. It is not
    looked at where torch.compile traces or a CUDA graph is captured."""
    condition.is_of_values = True
    return condition


def is_part(condition: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a condition that is a part of the class's: what is counted is said to meet a part."""
    condition.is_part = True
    return condition


def differs_by_row(gradient: Any) -> Any:
    """Whether a gradient with one number a row has two different ones; one that is stored once for all rows has not."""
    if gradient is None or gradient.dim() == 0 or gradient.numel() < 2 or not any(gradient.stride()):
        return False
    return (gradient != gradient.flatten()[0]).any()
