"""Which mitigations there are, what the environment asks for, and when they act.

PATCHBENCH_MITIGATE   slug[:mode],…   these, loudly: one that refuses raises where its upstream module is imported
                      auto            every one whose probe sees its bug; refusals are logged
                      off             none, whatever else asks (the kill switch)
PATCHBENCH_FORCE      slug,…          act outside the versions that were measured
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

LOG = logging.getLogger("patchbench.mitigations")
MODE_AUTO = "auto"


class Refused(RuntimeError):
    """A mitigation will not act here; the message says why and what to try."""


@functools.cache
def load_op(name: str) -> str:
    """Makes patchbench::<name> callable, from libpatchbench_ops.so (PATCHBENCH_OPS_LIB, or lib/ of this package) unless it
    is already; "" on success, else why not."""
    import torch

    path = Path(os.environ.get("PATCHBENCH_OPS_LIB") or Path(__file__).parent / "lib" / "libpatchbench_ops.so")
    if not hasattr(torch.ops.patchbench, name):
        if not path.exists():
            return f"no op library at {path}"
        try:
            torch.ops.load_library(str(path))
        except OSError as e:
            return f"{path.name} does not load into torch {torch.__version__}: {str(e).splitlines()[0]}"
    return "" if hasattr(torch.ops.patchbench, name) else f"{path.name} holds no patchbench::{name}"


def slugs() -> list[str]:
    """Every mitigation of this package: the modules that name the upstream module they change."""
    package = importlib.import_module("patchbench_mitigations")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in ("registry", "auto"))


def module_of(slug: str) -> ModuleType:
    """A mitigation's module: `probe`, `enable`, `disable`, `status`, TARGET and MODES. ValueError for an unknown slug."""
    known = slugs()
    if slug not in known:
        close = difflib.get_close_matches(slug, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"one of: {', '.join(known)}"
        raise ValueError(f"PATCHBENCH_MITIGATE: no mitigation {slug!r}; {hint}")
    return importlib.import_module(f"patchbench_mitigations.{slug}")


def parse(value: str) -> list[tuple[str, str]]:
    """The (slug, mode) pairs of a list `slug[:mode],…`; ValueError for an unknown slug or mode, or one named twice."""
    pairs: dict[str, str] = {}
    for word in filter(None, (w.strip() for w in value.split(","))):
        slug, _, mode = word.partition(":")
        modes = module_of(slug).MODES
        if (mode or MODE_AUTO) not in modes:
            raise ValueError(f"PATCHBENCH_MITIGATE: {slug} has no mode {mode!r}; one of: {', '.join(modes)}")
        if slug in pairs:
            raise ValueError(f"PATCHBENCH_MITIGATE: {slug} is named twice")
        pairs[slug] = mode or MODE_AUTO
    return list(pairs.items())


def is_killed() -> bool:
    """Whether the kill switch is on."""
    return os.environ.get("PATCHBENCH_MITIGATE", "").strip() == "off"


def is_forced(slug: str) -> bool:
    """Whether PATCHBENCH_FORCE names the slug."""
    return slug in (w.strip() for w in os.environ.get("PATCHBENCH_FORCE", "").split(","))


def apply(value: str) -> None:
    """Arranges for what `value` (see the module's text) asks. A mitigation acts right after the upstream module it changes
    is imported, or now if it is: nothing heavy is imported on its behalf."""
    value = value.strip()
    if value in ("", "off"):
        return
    if value == "auto":
        for slug in slugs():
            when_imported(module_of(slug).TARGET, lambda m=module_of(slug): _enable_or_log(m))
        return
    for slug, mode in parse(value):
        when_imported(module_of(slug).TARGET, lambda m=module_of(slug), mode=mode: m.enable(mode))


def _enable_or_log(module: ModuleType) -> None:
    try:
        module.enable(MODE_AUTO)
    except Refused as e:
        LOG.warning("%s", e)


def when_imported(name: str, act: Callable[[], Any]) -> None:
    """Calls `act` once the module `name` has been executed; at once if it has been. What `act` raises, the import raises."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _AfterImport(name, act))


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as the others would, and acts after its execution."""

    def __init__(self, name: str, act: Callable[[], Any]):
        self.name, self.act, self.loader = name, act, None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self.loader, spec.loader = spec.loader, self
                return spec
        sys.meta_path.insert(0, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.act()
