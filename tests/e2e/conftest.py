"""A command that the program prints in any of these tests is one that it takes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from answers import PROGRAM, complaint_of, with_unknown_option

COMMAND = r"(?:\./)?patchbench "
NEXT = re.compile(rf'^next: ({COMMAND}.*)$|"(?:next|command)": ?("{COMMAND}(?:[^"\\]|\\.)*")|`({COMMAND}[^`\n]+)`', re.M)


def printed(text: object) -> set[str]:
    """The commands in what a program wrote: its last line, a field of its document, words in backticks."""
    found = NEXT.findall(text) if isinstance(text, str) else []
    return {plain or (json.loads(field) if field else ticked) for plain, field, ticked in found}


@pytest.fixture(scope="module", autouse=True)
def _commands_are_taken() -> Iterator[None]:
    commands: set[str] = set()
    run = subprocess.run

    def heard(*args: object, **words: object) -> subprocess.CompletedProcess:
        done = run(*args, **words)
        commands.update(printed(done.stdout), printed(done.stderr))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", heard)
        yield
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        done = run([PROGRAM, *with_unknown_option(words)], capture_output=True, text=True, timeout=60)
        assert complaint_of(done) == "", command
