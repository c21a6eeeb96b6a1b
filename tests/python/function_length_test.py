"""No function is longer than 60 lines, unless the comment above a C++ one says why it is "longer than" that."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 60
CPP = {".cpp", ".h", ".cu", ".cuh"}
# As clang-format writes it: a definition starts at the margin or one step in, and its last brace stands at the same place.
START = re.compile(r"( {0,2})(?=\S)(.*)")
NO_FUNCTION = re.compile(
    r"(namespace|class|struct|enum|union|if|for|while|switch|else|do|return|case|using|asm|template|TEST\w*)\b|[})#/\"]"
)


def python_functions(text: str) -> Iterator[tuple[int, str]]:
    """(lines, name) of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.end_lineno - node.lineno + 1, node.name


def cpp_functions(text: str) -> Iterator[tuple[int, str]]:
    """(lines, first line) of each function whose length no comment above it explains."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        start = START.match(lines[at])
        begin = at
        at += 1
        if not start or NO_FUNCTION.match(start[2]) or "(" not in start[2]:
            continue
        brace = next((n for n in range(begin, len(lines)) if re.search(r"[{;}]$", lines[n])), None)
        if brace is None or not lines[brace].endswith("{"):
            continue
        end = next((n for n in range(brace + 1, len(lines)) if lines[n].startswith(start[1] + "}")), len(lines) - 1)
        above = begin
        while above > 0 and re.match(r"\s*(//|template\b)", lines[above - 1]):
            above -= 1
        if "onger than" not in "".join(lines[above:begin]):
            yield end - begin + 1, start[2]
        at = brace + 1


def too_long(path: Path) -> list[str]:
    functions = python_functions if path.suffix == ".py" else cpp_functions
    return [f"{path.name}: {name}: {lines} lines" for lines, name in functions(path.read_text()) if lines > MOST]


def test_no_function_is_too_long() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    found = [line for name in tracked if Path(name).suffix in CPP | {".py"} and (ROOT / name).exists() for line in too_long(ROOT / name)]
    assert not found, found


@pytest.mark.parametrize("lines", [MOST, MOST + 1])
def test_the_check_sees_a_long_function(tmp_path: Path, lines: int) -> None:
    python, cpp, member = tmp_path / "a.py", tmp_path / "a.cpp", tmp_path / "a.h"
    python.write_text("def f():\n" + "    pass\n" * (lines - 1))
    cpp.write_text("int f(int a,\n      int b) {\n" + "  ++a;\n" * (lines - 3) + "}\n")
    member.write_text("class A {\n  int f() const {\n" + "    ++a;\n" * (lines - 2) + "  }\n};\n")
    is_long = lines > MOST
    assert [bool(too_long(path)) for path in (python, cpp, member)] == [is_long] * 3
    cpp.write_text("// Longer than 60 lines: a table.\n" + cpp.read_text())
    assert not too_long(cpp)
