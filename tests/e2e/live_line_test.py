"""The live line of a wait, and colours: on a terminal alone."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from pathlib import Path

from unreachable_test import toys  # noqa: F401  (a fixture)

WORDS = ("reproduce", "two", "--device", "cpu", "--sandbox", "process")
CLEAR = "\r\x1b[K"


class Gate:
    """A reproducer that reads it waits until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_shut = path, True
        os.mkfifo(path)

    def open(self) -> None:
        writer = os.open(self.path, os.O_WRONLY)
        (self.path.parent / "open").touch()
        (self.path.parent / "open").rename(self.path)  # whoever reads it from now on does not wait
        os.close(writer)
        self.is_shut = False


def on_a_terminal(toys: tuple[Path, dict[str, str]], gate: Gate | None = None, **env: str) -> str:  # noqa: F811
    """What both streams of a run bring to a terminal; the gate is opened when the terminal shows a second of waiting."""
    program, here = toys
    here = {name: value for name, value in here.items() if name != "NO_COLOR"} | env
    ours, theirs = pty.openpty()
    said = ""
    with subprocess.Popen([program, *WORDS], env=here, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        while True:
            if not select.select([ours], [], [], 60)[0]:
                run.kill()
                break
            try:
                said += os.read(ours, 1 << 16).decode()
            except OSError:  # the program's end was closed
                break
            if gate and gate.is_shut and " · 1 s" in said:
                gate.open()
        os.close(ours)
    assert run.returncode == 0, said
    return said


def test_a_line_tells_what_is_waited_for_and_how_long(toys, tmp_path: Path) -> None:  # noqa: F811
    said = on_a_terminal(toys, Gate(tmp_path / "gate"), TOY_GATE=str(tmp_path / "gate"))
    first = said.index(" · 1 s")
    assert re.search(r"plain: runs on cpu$", said[:first].rpartition(CLEAR)[2]), said
    assert "upstream: 2 judged, right absent" in said
    assert said.partition("two · toy 1.0 · cpu")[0].endswith(CLEAR), "the answer begins on a clear line"


def test_a_terminal_has_colours_unless_no_color_is_set(toys) -> None:  # noqa: F811
    assert "\x1b[31mBUG_REPRODUCED(wrong)\x1b[0m" in on_a_terminal(toys)
    plain = on_a_terminal(toys, NO_COLOR="1")
    assert "BUG_REPRODUCED(wrong): " in plain and "\x1b[3" not in plain


def test_a_pipe_has_neither(toys) -> None:  # noqa: F811
    program, here = toys
    done = subprocess.run([program, *WORDS], env=here, capture_output=True, text=True)
    assert done.returncode == 0 and "BUG_REPRODUCED(wrong): " in done.stdout, done.stderr
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stderr and "judged" not in done.stderr
