"""What the real Liger-Kernel looks up and this machine lacks; nothing of the package itself is touched.

* `torch.hip`: liger-kernel 0.5.4 asks `torch.hip.is_available()`, which no torch release has. Needed for that release alone.
* Triton's CPU interpreter (3.4 to 3.9) has no `libdevice.tanh` (it returns None) and hands Python floats to a kernel
  unwrapped, so that a kernel's `.to()` on one fails. Needed while TRITON_INTERPRET=1; a compiled kernel never sees this file's half.
"""

from __future__ import annotations

import os
import types
from typing import Any

import torch


def install() -> None:
    """Puts the missing names in place; idempotent. Call before the package is imported."""
    if not hasattr(torch, "hip"):
        torch.hip = types.SimpleNamespace(is_available=lambda: False)
    if os.environ.get("TRITON_INTERPRET") == "1":
        _complete_interpreter()


def _complete_interpreter() -> None:
    """Gives the interpreter a tanh (numpy's, in the block's dtype) and wraps float arguments as fp32, as the compiler does."""
    import numpy
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    if getattr(interpreter, "has_patchbench_stand_in", False):
        return

    def tanh(x: Any) -> Any:
        return tl.tensor(interpreter.TensorHandle(numpy.tanh(x.handle.data), x.handle.dtype), x.type)

    convert = interpreter._implicit_cvt

    def convert_floats_too(argument: Any) -> Any:
        if isinstance(argument, float):
            return tl.tensor(interpreter.TensorHandle(numpy.array([argument], numpy.float32), tl.float32), tl.float32)
        return convert(argument)

    libdevice.tanh = tanh
    interpreter._implicit_cvt = convert_floats_too
    interpreter.has_patchbench_stand_in = True
