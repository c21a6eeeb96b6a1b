"""A page of docs/: its blocks, its commands and what they print. Standard library alone: env/try_wheels.sh uses it in a bare root.

A block whose first line is a comment that names a file is that file. In a block `console` each line with `$ ` is run by bash; what follows
is its output, standard error included. `console PACKAGE==VERSION` runs with that release.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
# Digests, days, measured numbers, sizes and the sandbox depend on the machine or the run.
VARIES = {
    r"\b[0-9a-f]{12,64}\b": "RECORD",
    r"\b20\d\d-\d\d-\d\d\b": "DAY",
    r"\b\d(\.\d+)?e[-+]\d+\b": "NUMBER",
    r"· (podman|docker|bwrap|runc|process( \(unisolated\))?)$": "· SANDBOX",
    r"\b\d+(\.\d+)? (s|MiB|bytes|records)\b": r"AMOUNT \2",
    r" +$": "",
}


def settled(text: str) -> str:
    """The text without what depends on the machine or the run."""
    for pattern, word in VARIES.items():
        text = re.sub(pattern, word, text, flags=re.M)
    return re.sub(r" {2,}", "  ", text)


def without_progress(said: str, more: tuple[str, ...] = ()) -> str:
    """What a command printed, without the program's lines of progress and those that begin with one of `more`."""
    return "".join(line for line in said.splitlines(keepends=True) if not line.startswith(("patchbench: ", "sandbox: ", *more)))


def followed(page: str, folder: Path, printed: Callable[[str, str, str], str]) -> str:
    """The page with the output that its commands give: printed(command, PACKAGE==VERSION or "", the output that the page shows)."""

    def block(found: re.Match[str]) -> str:
        kind, requirement, inside = found.groups()
        if kind != "console":
            name = inside.partition("\n")[0][2:]  # after "# "
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(inside)
            return found[0]
        text = ""
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", inside, re.M):
            text += f"$ {command}\n{printed(command, requirement or '', output)}"
        return f"```console{' ' + requirement if requirement else ''}\n{text}```"

    return BLOCK.sub(block, page)
