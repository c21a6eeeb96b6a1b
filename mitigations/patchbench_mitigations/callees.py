"""The functions of its module that a replaced function calls. A replacement that computes by itself would pass over the user's."""

from __future__ import annotations

import ast
import dis
import inspect
import sys
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any


def code_of(placed_over: Any) -> FunctionType | None:
    """The Python function under whatever wraps it, None where there is none."""
    inner = inspect.unwrap(getattr(placed_over, "__func__", placed_over))
    return inner if inspect.isfunction(inner) else None


def _defined_in(names: dict[str, Any]) -> set[str]:
    """The functions that a module's source defines; none where it cannot be read."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[names["__name__"]]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return set()
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def is_foreign(function: Any, names: dict[str, Any]) -> bool:
    """Whether a function under a name that its module defines is another's, or wrapped by another."""
    package = names["__name__"].partition(".")[0]
    while inspect.isfunction(function):
        root = function.__globals__.get("__name__", "").partition(".")[0]
        if not hasattr(function, "__wrapped__"):
            return function.__globals__ is not names
        if root not in (package, "torch", "patchbench_mitigations", "functools", "contextlib"):
            return True
        function = function.__wrapped__
    return False


def _ours_over(function: Any) -> Any:
    """The function under the replacements of mitigations. A mitigation that comes or goes is not a change by the user."""
    while getattr(function, "__globals__", {}).get("__name__", "").startswith("patchbench_mitigations.") and hasattr(
        function, "__wrapped__"
    ):
        function = function.__wrapped__
    return function


class Callees:
    """The callables that the code of some functions looks up in their modules, as they are now."""

    def __init__(self, functions: Iterable[Callable[..., Any]]):
        codes = [code for function in functions if (code := code_of(function)) is not None]
        looked_up = [(code.__globals__, i.argval) for code in codes for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]
        self.found = [(names, name, names[name]) for names, name in looked_up if callable(names.get(name))]

    def foreign(self) -> str:
        """The first that the module defines and that is not the release's own, "" for none."""
        defined = {id(names): _defined_in(names) for names, _, _ in self.found}
        return next((name for names, name, held in self.found if name in defined[id(names)] and is_foreign(held, names)), "")

    def changed(self) -> str:
        """The first that is another now, "" for none."""
        now = ((names.get(name), name, held) for names, name, held in self.found)
        return next((name for given, name, held in now if given is not held and _ours_over(given) is not _ours_over(held)), "")
