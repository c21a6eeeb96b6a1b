"""Which measured release the installed one equals: by its version and the source of the functions that a mitigation changes.

`data/<slug>.json` says what the committed evidence shows of each release; env/mitigation_data.py writes it, nobody else.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
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


def measured_as(slug: str, version: str, keys: Iterable[str]) -> tuple[str, str]:
    """(the release whose evidence speaks for the installed one, ""): its own, or the nearest whose every function has the
    same source, whatever the version is called; else ("", why there is none)."""
    data, keys = data_of(slug), list(keys)
    known = list(data["releases"])
    verified = {name: one for name, one in data["releases"].items() if "mitigated" in one}
    changed = difference(verified[version], keys) if version in verified else ""
    if version in verified and not changed:
        return version, ""
    live = {key: digest_of(function) for key in keys if (function := function_of(key)) is not None}
    at = known.index(version) if version in known else len(known)
    if alike := [name for name, one in verified.items() if live and one["functions"] == live]:
        return min(alike, key=lambda name: abs(known.index(name) - at)), ""
    if changed:
        return "", f"{data['package']} says {version}, but its {changed} is not that release's"
    return "", f"not verified on {data['package']} {version}"


def installed_version(package: str, name: str) -> str:
    """The version of the package whose module `name` is imported, from what is there while the package is still importing: the
    metadata of the distribution that the module's file is of, else what a parent module says; "unknown" where nothing does."""
    file = sys.modules[name].__file__ or ""
    for distribution in importlib.metadata.distributions(name=package):
        if _holds(distribution, name, file):
            return distribution.version
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        parent = ".".join(parts[:i])
        # package_info is Megatron-LM's version file; the other upstreams say their version before they import anything.
        if said := getattr(sys.modules.get(parent), "__version__", None) or function_of(f"{parent}.package_info:__version__"):
            return str(said)
    return "unknown"


def _holds(distribution: importlib.metadata.Distribution, name: str, file: str) -> bool:
    """Whether the file of the module `name` is this distribution's: below its folder, or in the checkout that it points at."""
    stem = os.path.join(str(distribution.locate_file("")), *name.split("."))
    if any(os.path.exists(path) and os.path.samefile(path, file) for path in (f"{stem}.py", os.path.join(stem, "__init__.py"))):
        return True
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    checkout = origin.get("url", "").removeprefix("file://") if origin.get("dir_info", {}).get("editable") else ""
    return bool(checkout) and os.path.realpath(file).startswith(os.path.realpath(checkout) + os.sep)
