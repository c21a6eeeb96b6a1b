"""Reads committed evidence (reports/evidence/*/*.jsonl) and exported ledgers, in either format of runner/ledger/shared_values.h."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

REFERENCE = re.compile(r'\{"\$":(\d+)\}')
DEFINITION = re.compile(r'\{"\$":(\d+),"value":(.*)\}')


def records_in(text: str) -> Iterator[str]:
    """The records of a file's text, each as its RFC 8785 text; their digests are SHA-256 over that.

    A file without the line {"patchbench_evidence":2} holds whole records. Raises ValueError on a later format and KeyError
    on a reference that nothing above it defines.
    """
    values: dict[str, str] | None = None

    def whole(part: str) -> str:
        return REFERENCE.sub(lambda found: values[found[1]], part) if values is not None else part

    for line in text.splitlines():
        if line.startswith('{"patchbench_evidence":'):
            if line != '{"patchbench_evidence":2}':
                raise ValueError(f"evidence of another format than 2: {line}")
            values = {}
        elif values is not None and (found := DEFINITION.fullmatch(line)):
            values[found[1]] = whole(found[2])
        else:
            yield whole(line)


def records_of(path: Path) -> list[str]:
    """The records of one file."""
    return list(records_in(path.read_text()))
