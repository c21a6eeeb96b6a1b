"""Reads committed evidence (reports/evidence/*/*.jsonl) and exported ledgers, in any format of runner/ledger/row_reader.h."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = '{"patchbench_evidence":'


class Number(str):
    """A number as its text: to be the same text again."""


class Section:
    """What the lines of a section define. A text with holes is a list of pieces: a hole is between each two of them."""

    def __init__(self, format_: int) -> None:
        self.format = format_
        self.definitions: dict[str, list[str]] = {}
        self.digests: list[str] = []

    def pieces(self, value: Any) -> list[str]:
        if isinstance(value, Number):
            return [str(value)]
        if isinstance(value, dict) and self.format == 2 and list(value) == ["$"]:
            return self.filled(value["$"], [])
        if isinstance(value, dict):
            return self.joined("{", [append([json.dumps(key, ensure_ascii=False) + ":"], self.pieces(v)) for key, v in value.items()], "}")
        if not isinstance(value, list):
            return [json.dumps(value, ensure_ascii=False)]
        if self.format == 2:
            return self.joined("[", [self.pieces(v) for v in value], "]")
        if not value:
            return ["", ""]
        if value[0] == "0":
            return self.joined("[", [self.pieces(v) for v in value[1:]], "]")
        if value[0].startswith("-"):
            return [f'"{self.digests[int(value[0])]}"']
        return self.filled(value[0], value[1:])

    def filled(self, number: str, values: list[Any]) -> list[str]:
        first, *rest = self.definitions[number]
        out = [first]
        for value, after in zip(values, rest, strict=True):
            out = append(append(out, self.pieces(value)), [after])
        return out

    def joined(self, begin: str, parts: list[list[str]], end: str) -> list[str]:
        out = [begin]
        for i, part in enumerate(parts):
            out = append(append(out, ["," if i else ""]), part)
        return append(out, [end])

    def row(self, line: str) -> str | None:
        """The record of a line; None for one that defines a value."""
        if line.startswith('{"payload":'):
            self.digests.append("")
            return line
        value = json.loads(line, parse_float=Number, parse_int=Number)
        if isinstance(value, dict) and list(value) == ["$", "value"]:
            self.definitions[value["$"]] = self.pieces(value["value"])
            return None
        (text,) = self.pieces(value)
        self.digests.append(hashlib.sha256(text.encode()).hexdigest())
        return text


def append(left: list[str], right: list[str]) -> list[str]:
    """Two texts with holes, one after the other."""
    return [*left[:-1], left[-1] + right[0], *right[1:]]


def records_in(text: str) -> Iterator[str]:
    """The records of a file's text, each as its RFC 8785 text; their digests are SHA-256 over that.

    Raises ValueError on a later format and on a malformed line, KeyError or IndexError on a reference to what is not there.
    """
    section = None
    for line in text.removesuffix("\n").split("\n") if text else []:
        if line.startswith(HEAD):
            number = json.loads(line)["patchbench_evidence"]
            if number not in (2, 3):
                raise ValueError(f"evidence of another format than 1, 2 and 3: {line}")
            section = Section(number)
        elif section is None:
            yield line
        elif (record := section.row(line)) is not None:
            yield record


def records_of(path: Path) -> list[str]:
    """The records of one file."""
    return list(records_in(path.read_text()))
