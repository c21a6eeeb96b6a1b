"""The compiled module of patchbench-py. Without it the program is asked; the answers are the same."""

from __future__ import annotations

import importlib
import os
from types import ModuleType


def module() -> ModuleType | None:
    """`_patchbench`, or None where it is not installed or PATCHBENCH_NATIVE=0 turns it off.

    Its errors are the classes of `patchbench`: it raises what the program's exit status means.
    """
    if os.environ.get("PATCHBENCH_NATIVE") == "0":
        return None
    try:
        return importlib.import_module("_patchbench")
    except ModuleNotFoundError:
        return None
