#!/usr/bin/env python3
"""The code rules of env/policy.json, looked for in a user's Python: lint.py [--json] PATH...

Names are resolved through each file's imports, so an alias is found and a comment is not. A line that ends in
`# patchbench: allow RULE` is left alone. The standard library alone.
Exit: 0 nothing over its limit, 1 findings, 2 usage.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

POLICY = Path(__file__).resolve().parent / "policy.json"
CONFIG = "torch._dynamo.config"
VARIABLE = "TORCHDYNAMO_SUPPRESS_ERRORS"
RESETS = ("torch._dynamo.reset", "torch.compiler.reset")
UNCOMPILED = ("torch.compiler.disable", "torch._dynamo.disable", "torch._disable_dynamo")


class Site(NamedTuple):
    """One place that a rule speaks of."""

    rule: str
    path: str
    line: int
    text: str


class Names:
    """The dotted names that the names of one file mean, by its imports."""

    def __init__(self, tree: ast.AST):
        self.known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for a in node.names:
                    self.known[a.asname or a.name.split(".")[0]] = a.name if a.asname else a.name.split(".")[0]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for a in node.names:
                    self.known[a.asname or a.name] = f"{node.module}.{a.name}"

    def of(self, node: ast.AST) -> str:
        """The dotted name of an expression, "" if it is none."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            head = self.of(node.value)
            return f"{head}.{node.attr}" if head else ""
        return ""


def is_false(node: ast.AST | None) -> bool:
    """Whether an expression is the literal False or None."""
    return isinstance(node, ast.Constant) and not node.value


def self_attribute(node: ast.AST) -> str:
    """The name in `self.name`, else ""."""
    is_one = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_one else ""


def suppressions(tree: ast.AST, names: Names) -> Iterator[tuple[int, str]]:
    """Where suppress_errors is switched on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if names.of(target) == f"{CONFIG}.suppress_errors" and not is_false(node.value):
                    yield node.lineno, "suppress_errors is switched on"
                if isinstance(target, ast.Subscript) and names.of(target.value) == "os.environ" and is_variable(target.slice):
                    yield node.lineno, f"{VARIABLE} is set; any text switches it on"
        elif isinstance(node, ast.Call):
            called = names.of(node.func)
            is_on = any(k.arg == "suppress_errors" and not is_false(k.value) for k in node.keywords)
            if called in (f"{CONFIG}.patch", "torch._dynamo.optimize") and is_on:
                yield node.lineno, "suppress_errors is switched on"
            if called in ("os.environ.setdefault", "os.putenv") and node.args and is_variable(node.args[0]):
                yield node.lineno, f"{VARIABLE} is set; any text switches it on"


def is_variable(node: ast.AST) -> bool:
    """Whether an expression is the name of the variable."""
    return isinstance(node, ast.Constant) and node.value == VARIABLE


def resets(tree: ast.AST, names: Names) -> Iterator[tuple[int, str]]:
    """Every call that drops the compiled graphs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and names.of(node.func) in RESETS:
            yield node.lineno, f"{names.of(node.func)}() drops every compiled graph"


def dynamic_axes(tree: ast.AST, names: Names) -> Iterator[tuple[int, str]]:
    """Where more than one axis gets a symbol."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marked: dict[str, set[object]] = {}
        for node in own_nodes(scope):
            if not isinstance(node, ast.Call):
                continue
            called = names.of(node.func)
            if called == "torch.compile":
                if any(k.arg == "dynamic" and isinstance(k.value, ast.Constant) and k.value.value is True for k in node.keywords):
                    yield node.lineno, "dynamic=True gives a symbol to every axis"
            elif called in ("torch._dynamo.mark_dynamic", "torch._dynamo.maybe_mark_dynamic") and len(node.args) > 1:
                axes = node.args[1].elts if isinstance(node.args[1], ast.List | ast.Tuple) else [node.args[1]]
                seen = marked.setdefault(ast.dump(node.args[0]), set())
                seen |= {ast.dump(axis) for axis in axes}
                if len(seen) > 1:
                    yield node.lineno, f"{len(seen)} axes of one tensor are marked"


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without the nodes of the functions in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from own_nodes(child)


def modules(tree: ast.AST, names: Names) -> Iterator[ast.ClassDef]:
    """The classes of a file that are modules of torch, by the name of a base or of a base's base in the file."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}

    def is_module(node: ast.ClassDef, seen: frozenset[str]) -> bool:
        for base in map(names.of, node.bases):
            if base.endswith("Module"):
                return True
            if base in classes and base not in seen and is_module(classes[base], seen | {base}):
                return True
        return False

    yield from (node for node in classes.values() if is_module(node, frozenset({node.name})))


def int_attributes(methods: dict[str, ast.FunctionDef], body: list[ast.stmt]) -> set[str]:
    """Attributes that start as a Python int, in __init__ or on the class."""
    found = set()
    for node in body:
        if isinstance(node, ast.Assign) and is_int(node.value):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    for node in ast.walk(methods["__init__"]) if "__init__" in methods else ():
        if isinstance(node, ast.Assign) and is_int(node.value):
            found |= {self_attribute(t) for t in node.targets} - {""}
        if isinstance(node, ast.AnnAssign) and node.value and is_int(node.value):
            found |= {self_attribute(node.target)} - {""}
    return found


def is_int(node: ast.AST) -> bool:
    """Whether an expression is an int literal."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def compiled_nodes(node: ast.AST, names: Names) -> Iterator[ast.AST]:
    """The nodes of a function that a compiler sees: what stands under `if not is_compiling()` is left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.UnaryOp) and isinstance(child.test.op, ast.Not):
            call = child.test.operand
            if isinstance(call, ast.Call) and names.of(call.func).endswith("is_compiling"):
                for statement in child.orelse:
                    yield statement
                    yield from compiled_nodes(statement, names)
                continue
        yield child
        yield from compiled_nodes(child, names)


def counters(tree: ast.AST, names: Names) -> Iterator[tuple[int, str]]:
    """Python ints that change in forward or in what forward calls on self."""
    for klass in modules(tree, names):
        methods = {m.name: m for m in klass.body if isinstance(m, ast.FunctionDef)}
        ints = int_attributes(methods, klass.body)
        reached, waiting = set(), ["forward"]
        while waiting:
            name = waiting.pop()
            if name in reached or name not in methods:
                continue
            reached.add(name)
            method = methods[name]
            decorators = {names.of(d.func if isinstance(d, ast.Call) else d) for d in method.decorator_list}
            if decorators & set(UNCOMPILED):
                continue
            for node in compiled_nodes(method, names):
                changed = changed_attribute(node)
                if changed in ints:
                    yield node.lineno, f"self.{changed} of {klass.name} is a Python int that changes in {name}: register_buffer"
                if isinstance(node, ast.Call):
                    waiting.append(self_attribute(node.func))


def changed_attribute(node: ast.AST) -> str:
    """The attribute that a statement counts up or down, else ""."""
    if isinstance(node, ast.AugAssign):
        return self_attribute(node.target)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        for target in node.targets:
            name = self_attribute(target)
            if name and name in (self_attribute(node.value.left), self_attribute(node.value.right)):
                return name
    return ""


FINDERS = {
    "one_reset_site": resets,
    "counters_are_buffers": counters,
    "no_suppress_errors_in_code": suppressions,
    "one_dynamic_axis": dynamic_axes,
}


def sources(paths: list[Path]) -> Iterator[Path]:
    """Every .py below the paths, but for hidden folders and virtual environments."""
    for path in paths:
        if path.is_file():
            yield path
            continue
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(f for f in folders if f[0] != "." and not Path(folder, f, "pyvenv.cfg").exists())
            yield from (Path(folder, f) for f in sorted(files) if f.endswith(".py"))


def sites_of(path: Path) -> Iterator[Site]:
    """The findings of one file. Raises SyntaxError or ValueError if this interpreter cannot parse it."""
    text = path.read_bytes()
    tree = ast.parse(text, str(path))
    lines = text.decode("utf-8", "replace").splitlines()
    names = Names(tree)
    for rule, finder in FINDERS.items():
        for line, words in sorted(set(finder(tree, names))):
            if not lines[line - 1].rstrip().endswith(f"# patchbench: allow {rule}"):
                yield Site(rule, str(path), line, words)


def over_limit(sites: list[Site]) -> list[Site]:
    """The sites of rules that allow fewer; a rule about single sites allows none, one about a count allows that many."""
    limits = {r["name"]: r["expect"]["at_most"] for r in json.loads(POLICY.read_text())["rules"] if r["kind"] == "code"}
    found = []
    for rule in FINDERS:
        of_rule = [s for s in sites if s.rule == rule]
        # Each site of this rule already has more axes than the limit.
        if len(of_rule) > (0 if rule == "one_dynamic_axis" else limits[rule]):
            found += of_rule
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    given = parser.parse_args()
    for path in given.paths:
        if not path.exists():
            parser.error(f"{path}: no such file or folder")
    sites, unread, num_files = [], [], 0
    for path in sources(given.paths):
        num_files += 1
        try:
            sites += sites_of(path)
        except (SyntaxError, ValueError, OSError, RecursionError) as error:
            unread.append({"path": str(path), "reason": str(error).splitlines()[0] if str(error) else type(error).__name__})
    found = over_limit(sites)
    if given.json:
        print(json.dumps({"files": num_files, "findings": [s._asdict() for s in found], "unread": unread}, indent=2))
    else:
        for s in found:
            print(f"{s.path}:{s.line}: {s.rule}: {s.text}")
        for u in unread:
            print(f"lint: {u['path']} was not read: {u['reason']}", file=sys.stderr)
        print(f"{num_files} files, {len(found)} findings" + (f", {len(unread)} files not read" if unread else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
