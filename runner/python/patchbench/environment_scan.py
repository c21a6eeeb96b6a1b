"""Which bugs an environment is hit by, from the installed files and the records; nothing of it is imported or run."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any

from patchbench.program import PathText, ask


class State(Enum):
    """What is known of one release: `UNKNOWN` is one that no record measured, or whose files are changed."""

    HIT = "hit"
    NOT_HIT = "not_hit"
    UNKNOWN = "unknown"
    NOT_INSTALLED = "not_installed"


@dataclass(frozen=True)
class Answer:
    """What is known of one pack on one installed release.

    `why` says what goes wrong, or why nothing is known; `next` is the command that would find out. `record` is the
    digest of the record behind the answer. `mitigation`: whether the runtime fix acts on this release. Of a hit, `impact`
    is silent_wrong, memory_corruption, crash, memory, speed or claim, and `right_release` the next one measured right.
    """

    slug: str
    upstream: str
    package: str
    version: str
    state: State
    why: str
    next: str
    record: str
    mitigation: str
    impact: str = ""
    right_release: str = ""


@dataclass(frozen=True)
class Scan:
    """All answers about one environment. `command` switches on every mitigation that acts; empty if none does."""

    answers: tuple[Answer, ...]
    command: str
    unread: tuple[str, ...]

    @property
    def hits(self) -> tuple[Answer, ...]:
        """The answers that are hits."""
        return tuple(a for a in self.answers if a.state is State.HIT)

    def of(self, slug: str) -> tuple[Answer, ...]:
        """The answers about one pack: one for each release that is installed or listed."""
        return tuple(a for a in self.answers if a.slug == slug)


def _answer(row: dict[str, Any]) -> Answer:
    keys = ("why", "next", "record", "mitigation", "impact", "right_release")
    return Answer(row["slug"], row["upstream"], row["package"], row["version"], State(row["state"]), *(row[key] for key in keys))


def scan(path: PathText | None = None) -> Scan:
    """Looks at one environment: a venv or an interpreter, a lock file or a requirements file; by default this process's own.

    Needs no network. Raises UsageError for a path in which no package can be read.
    """
    document = ask(["scan", os.fspath(path) if path is not None else sys.prefix], answers=(0, 1, 3))
    return Scan(tuple(map(_answer, document["answers"])), document["command"], tuple(document["unread"]))
