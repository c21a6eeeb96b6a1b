"""The ledger: an append-only file of records, chained by SHA-256."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from patchbench.program import PathText, ask, run_bytes


@dataclass(frozen=True)
class LedgerReport:
    """What a check found. `where` names the first row that does not hold; empty where all hold.

    `count` and `head` are worth a note: a later check with them sees a truncated end.
    """

    file: str
    ok: bool
    count: int
    head: str
    where: str
    note: str


@dataclass(frozen=True)
class RecordLine:
    """One record in short. `is_counted`: false for an unsigned import."""

    row: int
    date: str
    record: str
    type: str
    about: str
    says: str
    is_counted: bool


class Ledger:
    """One ledger file; without a path the user's own (PATCHBENCH_LEDGER, else the user's state folder).

    Any number of processes may write at once. Nothing is ever changed or deleted.
    """

    def __init__(self, path: PathText | None = None) -> None:
        self.path = None if path is None else str(path)

    def __repr__(self) -> str:
        return f"Ledger({self.path!r})"

    def _words(self, *words: str) -> list[str]:
        return [*([] if self.path is None else ["--ledger", self.path]), "ledger", *words]

    def verify(self, expect: tuple[int, str] | None = None) -> LedgerReport:
        """Recomputes digests, the chain, signatures and every sentinel. `expect`: (count, head) noted earlier.

        A ledger that does not hold is an answer (`ok` is false), not an exception.
        """
        words = self._words("verify", *([] if expect is None else ["--expect", f"{expect[0]}:{expect[1]}"]))
        row = ask(words, answers=(0, 1))
        return LedgerReport(row["file"], row["ok"], row["count"], row["head"], row.get("where", ""), row["note"])

    @staticmethod
    def _selection(slug: str | None, since: str | None) -> list[str]:
        return [*([] if slug is None else [slug]), *([] if since is None else ["--since", since])]

    def records(self, slug: str | None = None, since: str | None = None) -> list[RecordLine]:
        """One line a record. `since`: a day or a UTC time. Raises UsageError if none matches."""
        document = ask(self._words("list", *self._selection(slug, since)))
        return [
            RecordLine(int(row["row"]), row["date"], row["record"], row["type"], row["about"], row["says"], counted)
            for key, counted in (("records", True), ("unsigned_imports", False))
            for row in document[key]
        ]

    def statements(self, slug: str | None = None, since: str | None = None) -> Iterator[dict[str, Any]]:
        """Each record whole, as an in-toto Statement, in the order of the chain."""
        for line in run_bytes(self._words("export", "--whole", *self._selection(slug, since))).splitlines():
            yield json.loads(line)

    def show(self, digest: str) -> dict[str, Any]:
        """One record with its place in the chain. `digest`: 4 hex digits or more. Raises UsageError if none or several match."""
        return ask(self._words("show", digest))

    def export(self, file: PathText, slug: str | None = None, since: str | None = None) -> tuple[int, str]:
        """Writes the records as JSON lines; (count, head), which `verify` takes."""
        row = ask(self._words("export", "-o", str(file), *self._selection(slug, since)))
        return row["count"], row["head"]

    def import_records(self, *files: PathText) -> int:
        """Takes in exported records of other machines, all or none; how many were new. Raises IntegrityError or UsageError."""
        return ask(self._words("import", *map(str, files)))["new"]

    def evict(self, digest: str, why: str) -> str:
        """Takes one record out of use by a further record; the digest of that one."""
        return ask(self._words("evict", digest, "--why", why))["record"]
