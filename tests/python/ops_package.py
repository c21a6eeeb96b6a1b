"""The package patchbench_ops: the installed one, else that of this tree over the library that PATCHBENCH_OPS_LIB names or a build's."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
if importlib.util.find_spec("patchbench_ops") is None:
    LIBRARY = Path(os.environ.get("PATCHBENCH_OPS_LIB") or ROOT / "build" / "cpu" / "lib" / "libpatchbench_ops.so")
    if not LIBRARY.exists():
        pytest.skip(f"no op library at {LIBRARY}: build patchbench_ops or set PATCHBENCH_OPS_LIB", allow_module_level=True)
    os.environ["PATCHBENCH_OPS_LIB"] = str(LIBRARY)
    sys.path.insert(0, str(ROOT / "packs" / "python"))
import patchbench_ops  # noqa: E402  (reads the variable above)

OPS = torch.ops.patchbench
__all__ = ["OPS", "patchbench_ops"]
