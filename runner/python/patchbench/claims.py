"""Every number of a text must be stated by a record that the text cites."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass

from patchbench.program import PathText, ask


@dataclass(frozen=True)
class ClaimProblem:
    """A number that no cited record states, or a citation that names none. `line` counts from 1."""

    line: int
    what: str
    todo: str


def lint_claims(file: PathText | None = None, *, text: str | None = None) -> list[ClaimProblem]:
    """The problems of one Markdown file, or of a text; none: every number is held by a record.

    Records are looked up in the shipped evidence and in the user's ledger. Raises ValueError unless exactly one of
    `file` and `text` is given, UsageError if the file cannot be read.
    """
    if (file is None) == (text is None):
        raise ValueError("lint_claims: give either a file or text=")
    if text is not None:
        with tempfile.TemporaryDirectory() as folder:
            written = os.path.join(folder, "text.md")
            with open(written, "w", encoding="utf-8") as out:
                out.write(text)
            return lint_claims(written)
    return [ClaimProblem(row["line"], row["what"], row["todo"]) for row in ask(["ledger", "lint", str(file)], answers=(0, 1))]
