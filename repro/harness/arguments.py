"""The values that the arguments of a package's functions have over the cases: an argument with one value was not looked at.

A tensor is looked at wherever it is given: its values differ from case to case. None, numbers, words and dtypes are values; of a dict
each key is an argument. Other objects are named without their values; nothing is said of the functions of a kernel language.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from changed_lines import first_of, is_kernel
from watch import found

ENOUGH = 2
RECEIVERS = ("self", "cls", "ctx")
PLAIN = (bool, int, float, str, torch.dtype)


def parameters(node: ast.AST, within: str = "") -> Iterator[tuple[str, int, list[str]]]:
    """Each function below a node: its qualified name, its first line, its parameters."""
    for one in ast.iter_child_nodes(node):
        name = f"{within}{getattr(one, 'name', '')}"
        if is_kernel(one, has_interpreter=False):
            continue
        if isinstance(one, ast.FunctionDef):
            given = one.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *([given.kwarg] if given.kwarg else [])]
            yield name, first_of(one), [argument.arg for argument in every if argument.arg not in RECEIVERS]
        elif isinstance(one, ast.ClassDef):
            yield from parameters(one, f"{name}.")
        else:
            yield from parameters(one, within)


class Arguments:
    """`functions`: {path: [qualified names]}. A function that the package does not have is left out."""

    def __init__(self, functions: dict[str, list[str]]):
        self.files: dict[str, dict[int, tuple[str, list[str]]]] = {}
        self.values: dict[str, dict[str, list[str]]] = {}  # function -> argument -> values
        for path, names in functions.items():
            source = found(path)
            if source is None:
                continue
            known = {line: (name, words) for name, line, words in parameters(ast.parse(source.read_text(encoding="utf-8")))}
            self.files[str(source.resolve())] = {line: one for line, one in known.items() if one[0] in names}

    def enter(self, frame: FrameType, file: dict[int, tuple[str, list[str]]]) -> None:
        code = frame.f_code
        one = file.get(code.co_firstlineno)
        if one is None or code.co_name != one[0].rpartition(".")[2] or code.co_flags & inspect.CO_GENERATOR:
            return
        given = frame.f_locals
        for word in one[1]:
            value = given.get(word)
            if isinstance(value, dict):
                for key, inner in value.items():
                    self.take(one[0], f"{word}[{key}]", inner)
            else:
                self.take(one[0], word, value)

    def take(self, function: str, argument: str, value: Any) -> None:
        seen = self.values.setdefault(function, {}).setdefault(argument, [])
        if value is None or isinstance(value, PLAIN):
            text = repr(value)[:40]
            if len(seen) < ENOUGH and text not in seen:
                seen.append(text)
        elif isinstance(value, torch.Tensor):
            seen[:] = ["tensors", "of several cases"]
        else:
            seen[:] = ["an object", "not compared"]

    def state(self) -> dict[str, dict[str, list[str]]]:
        """What was learnt so far, for `add` of this process's parent."""
        return self.values

    def add(self, state: dict[str, dict[str, list[str]]]) -> None:
        for function, words in state.items():
            for argument, texts in words.items():
                known = self.values.setdefault(function, {}).setdefault(argument, [])
                known += [text for text in texts if text not in known][: ENOUGH - len(known)]

    def is_done(self) -> bool:
        return not self.files  # a later case may give another argument

    def wants_kernels(self) -> bool:
        return False

    def report(self) -> dict[str, list[str]]:
        return {f"{function}({argument})": seen for function, words in self.values.items() for argument, seen in sorted(words.items())}
