"""Whether a release is one that was measured: its version and the source of the functions that a mitigation changes.

`data/<slug>.json` says what the committed evidence shows of each release; env/mitigation_data.py writes it, nobody else.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from patchbench_mitigations.registry import data_of


def digest_of_source(text: str) -> str:
    """SHA-256 of one function's source, decorators included; indentation, trailing blanks and what follows do not count."""
    lines = textwrap.dedent(text).splitlines()
    node = ast.parse("\n".join(lines)).body[0]
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return hashlib.sha256("\n".join(line.rstrip() for line in lines[first - 1 : node.end_lineno]).encode()).hexdigest()


def digest_of(function: Callable[..., Any]) -> str:
    """Of a live function; "no source" where none can be read."""
    try:
        return digest_of_source(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError, IndexError):
        return "no source"


def function_of(key: str) -> Callable[..., Any] | None:
    """The live function of "module:name" or "module:Class.name", None where there is none of that name."""
    module, _, path = key.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return None


def difference(release: dict[str, Any], keys: Iterable[str]) -> str:
    """The first function whose source is not the measured release's, "" for none. What is not there is for its mitigation
    to judge: an optional dependency takes functions away."""
    for key in keys:
        function, measured = function_of(key), release["functions"].get(key)
        if function is not None and (measured is None or digest_of(function) != measured):
            return key.partition(":")[2]
    return ""


def own_function(function: Any, home: Any) -> bool:
    """Whether this is a function that the module `home` defines: bare, under decorators of torch, or under another
    mitigation's replacement."""
    while inspect.isfunction(function) and hasattr(function, "__wrapped__") and _is_known(function):
        function = function.__wrapped__
    return inspect.isfunction(function) and not hasattr(function, "__wrapped__") and function.__globals__ is vars(home)


def _is_known(function: Any) -> bool:
    return function.__globals__.get("__name__", "").partition(".")[0] in ("torch", "patchbench_mitigations")


def why_unmeasured(slug: str, version: str, keys: Iterable[str]) -> str:
    """Why the evidence does not speak for the installed release; "" where it does."""
    data = data_of(slug)
    release = data["releases"].get(version, {})
    if "mitigated" not in release:
        return f"not verified on {data['package']} {version}"
    changed = difference(release, keys)
    return f"{data['package']} says {version}, but its {changed} is not that release's" if changed else ""
