"""When a mitigation acts: right after the import of the module that it changes. What every other module here builds on."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

LOG = logging.getLogger("patchbench.mitigations")


class Refused(RuntimeError):
    """A mitigation will not act here; the message says why and what to try."""


def is_killed() -> bool:
    """Whether the kill switch is on."""
    return os.environ.get("PATCHBENCH_MITIGATE", "").strip() == "off"


def when_imported(name: str, act: Callable[[], Any], package: str = "") -> None:
    """Calls `act` once the module `name` has been executed, and with `package` once no import of a module of that package that
    led to it is under way: what such a module holds is half of it. At once if it has been. What `act` raises, the import raises."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _AfterImport(name, act, package))


# No base classes: importlib.abc takes three times as long to import as the rest of this module.
class _AfterImport:
    """Finds one module, or a package's modules, with the other finders, and acts after the module was executed. A look for the
    spec alone does not count as the import."""

    def __init__(self, name: str, act: Callable[[], Any], package: str):
        self.name, self.act, self.package, self.thread = name, act, package, threading.local()
        self.is_executed = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        is_ours = fullname == self.name or fullname.partition(".")[0] == self.package
        if not is_ours or getattr(self.thread, "asking", False):
            return None
        self.thread.asking = True
        try:
            found = (finder.find_spec(fullname, path, target) for finder in list(sys.meta_path))
            spec = next((one for one in found if one is not None and one.loader is not None), None)
        finally:
            self.thread.asking = False
        if spec is not None:
            spec.loader = _Acting(spec.loader, self)
        return spec

    def execute(self, module: ModuleType, run: Callable[[ModuleType], None]) -> None:
        """Runs a module's code; acts after that of the outermost one, unless it failed and takes the awaited one with it."""
        self.thread.depth = getattr(self.thread, "depth", 0) + 1
        is_usable = False
        try:
            run(module)
            is_usable = True
            self.is_executed |= module.__name__ == self.name
        finally:
            self.thread.depth -= 1
            is_usable = is_usable or not f"{self.name}.".startswith(f"{module.__name__}.")
            if self.is_executed and is_usable and self.thread.depth == 0 and self in sys.meta_path:
                sys.meta_path.remove(self)
                self.act()


class _Acting:
    """The module's own loader, but for the act after it."""

    def __init__(self, loader: Any, finder: _AfterImport):
        self.loader, self.finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.finder.execute(module, self.loader.exec_module)
