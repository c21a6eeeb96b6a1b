"""The op library behind this package: loaded once, its operators named in torch.ops.patchbench."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def path() -> Path:
    """The library file: PATCHBENCH_OPS_LIB, else lib/libpatchbench_ops.so of this package."""
    return Path(os.environ.get("PATCHBENCH_OPS_LIB") or HERE / "lib" / "libpatchbench_ops.so")


def load() -> None:
    """Loads the library, unless its operators are there already. ImportError says in one line what this environment lacks."""
    if hasattr(torch.ops.patchbench, "topk_to_index_mask"):
        return
    if not path().exists():
        raise ImportError(f"patchbench_ops: no op library at {path()}; install the wheel patchbench-ops, or set PATCHBENCH_OPS_LIB")
    try:
        torch.ops.load_library(str(path()))
    except OSError as e:
        raise ImportError(f"patchbench_ops: {path().name} {missing(str(e.__cause__ or e))}") from None


def missing(said: str) -> str:
    """What an environment lacks, from the line in which the loader refused the library."""
    if newer := re.search(r"version `GLIBC_([\d.]+)' not found", said):
        return f"needs glibc {newer[1]}, and this system has {os.confstr('CS_GNU_LIBC_VERSION').split()[-1]}"
    if newer := re.search(r"version `(GLIBCXX|CXXABI)_([\d.]+)' not found", said):
        return f"needs a libstdc++ with {newer[1]}_{newer[2]}, which this system's is too old for"
    if library := re.match(r"(lib(?:cu|nv)\S+\.so[.\d]*): cannot open", said):
        return f"needs {library[1]} of CUDA 13, and torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    if symbol := re.search(r"undefined symbol: (\w+)", said):
        return f"needs torch 2.11 or later, and this is {torch.__version__} (no {symbol[1]})"
    return f"does not load into torch {torch.__version__}: {said}"


def has(name: str) -> bool:
    """Whether the library holds patchbench::<name>, with or without an overload."""
    return hasattr(torch.ops.patchbench, name.split(".")[0])


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of the operator's arguments that gives its results' shapes and dtypes, for torch.compile and Meta."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if has(name):
            torch.library.register_fake(f"patchbench::{name}", function)
        return function

    return register


def not_differentiable(*names: str) -> None:
    """A gradient through one of these raises NotImplementedError: they are backwards, or halves of an operator that has one."""
    for name in names:
        if not has(name):
            continue

        def refuse(ctx: Any, *grads: Any, name: str = name) -> None:
            raise NotImplementedError(f"patchbench::{name} has no gradient")

        torch.library.register_autograd(f"patchbench::{name}", refuse)


def refuse_atomic_adds(name: str, is_atomic: Callable[[], bool]) -> None:
    """In torch's deterministic mode an operator that adds atomically raises RuntimeError, or warns where the mode only warns.

    `is_atomic` is asked in that mode alone: the operators that name a path return text, which a full graph cannot hold.
    """
    if not torch.are_deterministic_algorithms_enabled() or not is_atomic():
        return
    text = (
        f"patchbench::{name} does not have a deterministic implementation on this GPU: its kernel adds atomically. "
        "Use PATCHBENCH_OP_FALLBACK, or torch.use_deterministic_algorithms(False)."
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(text)
    import warnings

    warnings.warn(text, stacklevel=3)
