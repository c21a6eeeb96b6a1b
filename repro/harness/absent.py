"""Replaces packages that an upstream imports and that are not installed here, so that its modules can be imported."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Absent(types.ModuleType):
    """A missing module, and anything in it: may be called, subclassed, iterated or used to decorate."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = Absent(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **_: Any) -> Any:
        """As a decorator it leaves what it decorates; any other call gives something just as absent."""
        return args[0] if len(args) == 1 and isinstance(args[0], type | types.FunctionType) else Absent(self.__name__)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __int__(self) -> int:
        return 0

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[()]:
        return ()


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for the named packages once every other finder has failed, so that an installed one is never hidden."""

    def __init__(self, names: Sequence[str], filled: Mapping[str, Mapping[str, Any]]) -> None:
        self.names, self.filled = tuple(names), filled

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        for name, value in self.filled.get(module.__name__, {}).items():
            setattr(module, name, value)


def stand_in_for(names: Sequence[str], filled: Mapping[str, Mapping[str, Any]] | None = None) -> bool:
    """From now on the named packages can be imported; `filled` is what some of their modules hold. False if they could before."""
    if any(isinstance(finder, AbsentFinder) and finder.names == tuple(names) for finder in sys.meta_path):
        return False
    sys.meta_path.append(AbsentFinder(names, filled or {}))
    return True


def enter_without_init(package: str) -> None:
    """The package's modules can be imported and its own `__init__` is not run: for one that imports compiled extensions there."""
    spec = importlib.util.find_spec(package)
    made = types.ModuleType(package)
    made.__path__, made.__spec__ = list(spec.submodule_search_locations), spec
    sys.modules[package] = made


def optional_module(name: str) -> types.ModuleType | None:
    """The module, None where its package has none of that name; a dependency that is missing is raised."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        return None
