"""What deepspeed builds with a compiler when a process group begins, and a sandbox lacks: an all-reduce through shared memory. Without it
every collective goes through gloo."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys


def install() -> None:
    """Call before the first process group."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with contextlib.redirect_stdout(sys.stderr):
        backend = importlib.import_module("deepspeed.comm.torch")
    if hasattr(backend, "build_shm_op"):
        backend.build_shm_op = lambda: None
