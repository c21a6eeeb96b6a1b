"""The program that every answer comes from: where it is, how it is asked, and its failures as exceptions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Union

PathText = Union[str, "os.PathLike[str]"]


class PatchbenchError(Exception):
    """What ended the work. The text is the program's own line: what, where, what to try."""


class UsageError(PatchbenchError):
    """The words are wrong: an unknown pack, a missing file, malformed input (exit status 2)."""


class UnresolvedError(PatchbenchError):
    """The work ran and gave no answer: a crash, a time limit (exit status 3)."""


class NotRunnableError(PatchbenchError):
    """This machine cannot do it: no GPU, no network, no program (exit status 4)."""


class InternalError(PatchbenchError):
    """Our own failure (exit status 5)."""


class IntegrityError(PatchbenchError):
    """A digest, a chain or a signature does not hold (exit status 1)."""


# Of core/exit_status.h.
_ERRORS: dict[int, type[PatchbenchError]] = {
    1: IntegrityError,
    2: UsageError,
    3: UnresolvedError,
    4: NotRunnableError,
    5: InternalError,
}


def _installed() -> list[Path]:
    """Where an installer puts the program of this package, the most certain place first."""
    found = []
    try:
        files = importlib.metadata.distribution("patchbench").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found += [Path(str(f.locate())) for f in files if f.name == "patchbench" and f.parent.name == "bin"]
    # `pip install --target` moves the program and leaves its record behind.
    found.append(Path(__file__).parents[1] / "bin" / "patchbench")
    found.append(Path(sys.prefix) / "bin" / "patchbench")
    return found


def program() -> Path:
    """The program: PATCHBENCH_PROGRAM, else the one that was installed with this package, else the first on PATH.

    Raises NotRunnableError if there is none.
    """
    named = os.environ.get("PATCHBENCH_PROGRAM")
    if named:
        return Path(named)
    for path in _installed():
        if path.is_file() and os.access(path, os.X_OK):
            return path.resolve()
    on_path = shutil.which("patchbench")
    if on_path is None:
        raise NotRunnableError("the program patchbench is not there; install the wheel again, or name it in PATCHBENCH_PROGRAM")
    return Path(on_path)


def _words_of(text: str) -> str:
    """The program's own line from its stderr."""
    lines = [line for line in text.splitlines() if line.strip()]
    own = [line[len("patchbench: ") :] for line in lines if line.startswith("patchbench: ")]
    return (own or lines or ["it said nothing"])[-1]


def run_bytes(words: Sequence[str], answers: Collection[int] = (0,)) -> bytes:
    """What the program writes to stdout. `answers`: exit statuses that are answers; any other raises what it means."""
    argv = [str(program()), *words]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as e:
        raise NotRunnableError(f"{argv[0]}: {e.strerror}; name the program in PATCHBENCH_PROGRAM") from e
    if done.returncode in answers:
        return done.stdout
    raise _ERRORS.get(done.returncode, InternalError)(_words_of(done.stderr.decode(errors="replace")))


def ask(words: Sequence[str], answers: Collection[int] = (0,)) -> Any:
    """The JSON document that the program answers with `--json`."""
    try:
        return json.loads(run_bytes(["--json", *words], answers))
    except ValueError as e:
        raise UnresolvedError(f"patchbench {' '.join(words)}: its answer is not JSON ({e})") from e
