"""What the records say: packs, windows and verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from patchbench.program import PathText, ask


@dataclass(frozen=True)
class Upstream:
    """A project that carries the bug, and the only release on which the bug is expected."""

    name: str
    red_pin: str


@dataclass(frozen=True)
class Pack:
    """One bug: its slug names it everywhere. `kind`: bug, refactor, memory or claim."""

    slug: str
    number: int
    kind: str
    title: str
    upstreams: tuple[Upstream, ...]


@dataclass(frozen=True)
class Release:
    """What one device showed on one release. `state`: a failure class, absent, unsupported, unresolved or not_measured.

    `verdict` is the digest of the record; empty without one.
    """

    version: str
    state: str
    verdict: str


@dataclass(frozen=True)
class Interval:
    """Neighbouring releases that show the bug. The two `good` versions are the measured neighbours; empty without one."""

    failure_class: str
    first_bad: str
    last_bad: str
    last_good_before: str
    first_good_after: str
    has_gap: bool


@dataclass(frozen=True)
class Window:
    """The releases of one upstream in which a bug was measured, on one kind of device."""

    slug: str
    upstream: str
    device: str
    is_open: bool
    intervals: tuple[Interval, ...]
    releases: tuple[Release, ...]


@dataclass(frozen=True)
class Verdict:
    """The newest verdict of one question about one version. `record` is its digest, `started` a UTC time.

    `is_isolated`: the subject ran in a sandbox. `is_counted`: false for an unsigned import.
    """

    slug: str
    upstream: str
    version: str
    question: str
    device: str
    sentinel: str
    started: str
    is_isolated: bool
    is_counted: bool
    record: str


def _status(slug: str | None, ledger: PathText | None) -> dict[str, Any]:
    words = [] if ledger is None else ["--ledger", str(ledger)]
    return ask([*words, "status", *([] if slug is None else [slug])])


def packs() -> list[Pack]:
    """Every pack, by number."""
    return [
        Pack(row["slug"], row["number"], row["kind"], row["title"], tuple(Upstream(u["name"], u["red_pin"]) for u in row["upstreams"]))
        for row in ask(["list"])
    ]


def _window(slug: str, row: dict[str, Any]) -> Window:
    intervals = tuple(
        Interval(i["class"], i["first_bad"], i["last_bad"], i["last_good_before"], i["first_good_after"], i["has_gap"])
        for i in row["intervals"]
    )
    releases = tuple(Release(r["version"], r["state"], r["verdict"]) for r in row["releases"])
    return Window(slug, row["upstream"], row["device"], row["is_open"], intervals, releases)


def windows(slug: str | None = None, *, ledger: PathText | None = None) -> list[Window]:
    """The measured windows of one pack, or of all.

    From the shipped records and the user's ledger; `ledger` names another. Raises UsageError for an unknown pack.
    """
    return [_window(pack["slug"], row) for pack in _status(slug, ledger)["packs"] for row in pack["windows"]]


def verdicts(slug: str | None = None, *, ledger: PathText | None = None) -> list[Verdict]:
    """The newest verdict of each question, version and device, of one pack or of all.

    From the shipped records and the user's ledger; `ledger` names another. Raises UsageError for an unknown pack.
    """
    return [
        Verdict(
            row["slug"],
            row["upstream"],
            row["version"],
            row["question"],
            row["device"],
            row["sentinel"],
            row["started"],
            row["is_isolated"],
            row["is_counted"],
            row["verdict"],
        )
        for row in _status(slug, ledger)["cells"]
    ]
