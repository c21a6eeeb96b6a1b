"""What a subject runs, seen from outside of it: one trace function, and the parts that look at the files they name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

Trace = Callable[[FrameType, str, Any], Any]


class Part(Protocol):
    files: dict[str, Any]  # by their real paths

    def enter(self, frame: FrameType, file: Any) -> Trace | None:
        """A function of `file`, one of the files, is entered; what to call for each of its lines."""

    def is_done(self) -> bool:
        """Whether nothing more can be learnt."""

    def wants_kernels(self) -> bool:
        """Whether it looks at what Triton's interpreter runs, which takes 2.5 times as long under a trace function."""


def found(path: str) -> Path | None:
    """A package's file on the import path."""
    return next((Path(folder) / path for folder in sys.path if (Path(folder) / path).is_file()), None)


class Watch:
    """Runs its parts until all of them are done. What runs in another process or thread is not seen."""

    def __init__(self, *parts: Part):
        self.parts = parts
        self.has_hooked = False
        self.by_name: dict[str, list[tuple[Part, Any]]] = {}  # by a code object's file name

    def start(self) -> None:
        if any(part.files for part in self.parts):
            sys.settrace(self.enter)

    def next_case(self) -> None:
        if all(part.is_done() for part in self.parts):
            self.stop()
        interpreter = sys.modules.get("triton.runtime.interpreter")  # a subject may import it in its first case
        if interpreter is not None and hasattr(interpreter, "GridExecutor") and not self.has_hooked:
            self.has_hooked = True
            interpreter.GridExecutor.__call__ = self.launching(interpreter.GridExecutor.__call__)

    def launching(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel's launch that is watched only where that is wanted."""

        def call(*words: Any, **options: Any) -> Any:
            trace = sys.gettrace()
            if trace is None or any(part.wants_kernels() for part in self.parts):
                return launch(*words, **options)
            sys.settrace(None)
            try:
                return launch(*words, **options)
            finally:
                sys.settrace(trace)

        return call

    def stop(self) -> None:
        sys.settrace(None)

    def enter(self, frame: FrameType, _: str, __: Any) -> Trace | None:
        name = frame.f_code.co_filename
        if name not in self.by_name:
            real = str(Path(name).resolve())
            self.by_name[name] = [(part, part.files[real]) for part in self.parts if real in part.files]
        trace = None
        for part, file in self.by_name[name]:
            trace = part.enter(frame, file) or trace
        return trace
