"""Which of the lines that an edit changed a subject runs: a fix is judged where it ran, and nowhere else.

A line counts as its whole statement, or as the header of a compound one; comments, docstrings and declarations are no code. An `if` or
`while` whose header is changed has two branches. Functions of a kernel language are compiled, not run, and are counted as text; those
of Triton run in its interpreter. What ran in another process (but a case's own rank) or thread is not known here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from watch import Trace, found

MANY = 3  # cases that run a statement; then it is not looked at any more
COMPILED = ("tilelang", "T", "cute", "cutlass")
DECLARATIONS = (ast.Global, ast.Nonlocal)


@dataclass(eq=False)
class Statement:
    """A simple statement, or the header of a compound one."""

    first: int
    last: int
    in_kernel: bool = False  # of Triton
    body: tuple[int, int] | None = None  # of an `if` or `while`: the lines that run if the test holds
    cases: list[str] = field(default_factory=list)
    outcomes: set[bool] = field(default_factory=set)
    has_run: bool = False

    def is_done(self) -> bool:
        return (len(self.cases) >= MANY or (self.has_run and not self.cases)) and (self.body is None or len(self.outcomes) == 2)


def first_of(node: ast.AST) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def name_of(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def is_compiled(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(name_of(one).split(".")[0] in COMPILED for one in node.decorator_list)


def is_kernel(node: ast.AST, has_interpreter: bool) -> bool:
    """Whether a function's body is the text of a kernel, or builds one."""
    if not isinstance(node, ast.FunctionDef):
        return False
    is_triton = any(name_of(one).split(".")[0] == "triton" for one in node.decorator_list)
    return (is_triton and not has_interpreter) or any(is_compiled(one) for one in ast.walk(node))


def last_of(node: ast.AST) -> int:
    """The last line of a statement, of a compound one that of its header."""
    if not hasattr(node, "body") and not hasattr(node, "cases"):
        return node.end_lineno
    header = [getattr(node, name, None) for name in ("test", "iter", "returns", "type", "subject")]
    header += [*getattr(node, "bases", ()), *(one.context_expr for one in getattr(node, "items", ()))]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        header += [one for one in ast.walk(node.args) if isinstance(one, ast.expr | ast.arg)]
    return max([node.lineno, *(one.end_lineno for one in header if one is not None)])


def is_code(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not (is_text or isinstance(node, DECLARATIONS) or (isinstance(node, ast.AnnAssign) and node.value is None))


def statements(node: ast.AST, has_interpreter: bool, in_kernel: bool = False) -> Iterator[Statement | range]:
    """Every statement below a node; of a kernel the range of its lines."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.expr):
            continue
        if isinstance(one, ast.stmt | ast.ExceptHandler) and is_code(one):
            last = last_of(one)
            has_branches = isinstance(one, ast.If | ast.While) and not isinstance(one.test, ast.Constant) and first_of(one.body[0]) > last
            body = (first_of(one.body[0]), one.body[-1].end_lineno) if has_branches else None
            yield Statement(first_of(one), last, in_kernel, body)
        if is_kernel(one, has_interpreter):
            yield range(first_of(one.body[0]), one.end_lineno + 1)
        else:
            yield from statements(one, has_interpreter, in_kernel or is_kernel(one, has_interpreter=False))


def lines_with_code(code: CodeType) -> set[int]:
    """The lines that CPython can stop at; it drops code that cannot be reached."""
    lines = {line for _, _, line in code.co_lines() if line is not None}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= lines_with_code(constant)
    return lines


class ChangedFile:
    """The changed statements of one file."""

    def __init__(self, path: str, source: Path, lines: list[int], gaps: list[int], has_interpreter: bool):
        self.path, self.num_text = path, 0
        text = source.read_text(encoding="utf-8")
        code = lines_with_code(compile(text, str(source), "exec", dont_inherit=True))
        known, kernels = [], []
        for one in statements(ast.parse(text), has_interpreter):
            (kernels if isinstance(one, range) else known).append(one)
        known = [one for one in known if code & set(range(one.first, one.last + 1))]
        kernel_lines = {line for kernel in kernels for line in kernel}
        self.num_text = len(kernel_lines & set(lines))
        changed = set(lines) - kernel_lines
        self.changed = [one for one in known if changed & set(range(one.first, one.last + 1))]
        # A gap is where lines were taken away: the statement before it, or the one after, has to run.
        self.gaps = [(line, self.neighbours(known, line)) for line in gaps if line not in kernel_lines]
        watched = {id(one): one for one in [*self.changed, *(one for _, pair in self.gaps for one in pair)]}
        self.watched = list(watched.values())

    @staticmethod
    def neighbours(known: list[Statement], line: int) -> list[Statement]:
        before = max((one for one in known if one.last < line), key=lambda one: one.last, default=None)
        after = min((one for one in known if one.first >= line), key=lambda one: one.first, default=None)
        return [one for one in (before, after) if one is not None]

    def open(self) -> list[Statement]:
        return [one for one in self.watched if not one.is_done()]

    def missed(self) -> list[str]:
        found = [f"{self.path}:{one.first}" for one in self.changed if not one.has_run]
        for one in self.changed:
            if one.has_run and one.body is not None:
                found += [f"{self.path}:{one.first} is never {str(way).lower()}" for way in (True, False) if way not in one.outcomes]
        return found + [f"{self.path}:{line} (taken away)" for line, pair in self.gaps if not any(one.has_run for one in pair)]


class ChangedLines:
    """`changed`: {path: {"lines": [...], "gaps": [...]}}. Each statement is looked at until it has run in enough cases."""

    def __init__(self, changed: dict[str, dict[str, list[int]]], has_interpreter: bool):
        self.files: dict[str, ChangedFile] = {}
        self.absent: list[str] = []
        self.known: dict[tuple[str, int, str], list[Statement]] = {}  # by a function's place
        self.case = ""  # what runs belongs to it
        for path, lines in changed.items():
            source = found(path)
            if source is None:
                self.absent.append(f"{path} is not imported from here")
            else:
                self.files[str(source.resolve())] = ChangedFile(path, source, lines["lines"], lines["gaps"], has_interpreter)

    def is_done(self) -> bool:
        return not any(file.open() for file in self.files.values())

    def wants_kernels(self) -> bool:
        return any(one.in_kernel for file in self.files.values() for one in file.open())

    def of(self, code: CodeType, file: ChangedFile) -> list[Statement]:
        """The statements to look at in a function."""
        place = (code.co_filename, code.co_firstlineno, code.co_name)
        if place not in self.known:
            lines = {line for _, _, line in code.co_lines() if line is not None}
            self.known[place] = [one for one in file.watched if lines & set(range(one.first, one.last + 1))]
        return self.known[place]

    def enter(self, frame: FrameType, file: ChangedFile) -> Trace | None:
        watched = [one for one in self.of(frame.f_code, file) if not one.is_done()]
        if not watched:
            return None
        at: Statement | None = None  # the `if` or `while` whose test is being computed

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal at
            line = frame.f_lineno
            if at is not None and event in ("line", "return") and not (event == "line" and at.first <= line <= at.last):
                at.outcomes.add(event == "line" and at.body[0] <= line <= at.body[1])
                at = None
            if event == "exception":
                at = None
            if event == "line":
                for one in watched:
                    if one.first <= line <= one.last:
                        self.run(one)
                        at = one if one.body is not None else at
            return step

        return step

    def run(self, one: Statement) -> None:
        one.has_run = True
        if self.case and self.case not in one.cases:
            one.cases.append(self.case)

    def state(self) -> list[tuple[list[str], set[bool], bool]]:
        """What was learnt so far, for `add` of this process's parent."""
        return [(one.cases, one.outcomes, one.has_run) for file in self.files.values() for one in file.watched]

    def add(self, state: list[tuple[list[str], set[bool], bool]]) -> None:
        watched = [one for file in self.files.values() for one in file.watched]
        for one, (cases, outcomes, has_run) in zip(watched, state, strict=True):
            one.cases += [case for case in cases if case not in one.cases]
            one.outcomes |= outcomes
            one.has_run |= has_run

    def ran(self, case: str) -> list[str]:
        """The changed statements that were seen to run in a case: `path:line`."""
        return [f"{file.path}:{one.first}" for file in self.files.values() for one in file.changed if case in one.cases]

    def report(self) -> dict[str, Any]:
        missed = [text for file in self.files.values() for text in file.missed()] + self.absent
        return {
            "num": sum(len(file.changed) + len(file.gaps) for file in self.files.values()) + len(self.absent),
            "missed": sorted(missed),
            "text": sum(file.num_text for file in self.files.values()),
        }
