"""What deepspeed builds with a compiler when a process group begins, and a sandbox lacks: an all-reduce through shared memory. Without it
every collective goes through gloo."""

from __future__ import annotations

import sys


def install() -> None:
    """Call after deepspeed is imported, before the first process group."""
    backend = sys.modules["deepspeed.comm.torch"]
    if hasattr(backend, "build_shm_op"):
        backend.build_shm_op = lambda: None
