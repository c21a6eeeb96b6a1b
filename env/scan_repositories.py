#!/usr/bin/env python3
"""Scans public training repositories as `patchbench scan .` does, and writes reports/REPOSITORIES.md: the releases that each names.

  scan_repositories.py [--program FILE] OWNER/NAME=GIT_DIRECTORY ...

GIT_DIRECTORY is a clone, bare or not; its HEAD is read. Nothing of a repository is run, and only names, versions, files and lines are
kept. The page says of which commit and day each table is, and what could not be known.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "reports" / "REPOSITORIES.md"
WORDS = {"hit": "hit", "unknown": "open", "not_hit": "not hit"}
HEAD = """<!-- Written by env/scan_repositories.py; do not edit. -->
# Releases that public trainers name

`patchbench scan .` over {num} public repositories, at the commit that is named, verdicts of {verdicts}. A hit is a release with the
bug; whether the repository meets its condition is [another question](../docs/am_i_hit.md). Of a range the newest release that it admits
decides; open is what was not measured, or where older releases of the range are hit. Only what a file of the repository names is here.
"""


def git(folder: str, *words: str) -> str:
    return subprocess.run(["git", f"--git-dir={folder}", *words], check=True, capture_output=True, text=True).stdout.strip()


def scanned(folder: str, program: Path) -> tuple[dict[str, Any], float]:
    with tempfile.TemporaryDirectory() as tree:
        archive = subprocess.run(["git", f"--git-dir={folder}", "archive", "HEAD"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", tree], input=archive, check=True)
        started = time.monotonic()
        done = subprocess.run([program, "scan", ".", "--json"], cwd=tree, capture_output=True, text=True)
        seconds = time.monotonic() - started
    if not done.stdout:
        raise SystemExit(f"{folder}: {done.stderr}")
    return json.loads(done.stdout), seconds


def release_of(one: dict[str, Any]) -> str:
    if one["source"] == "copy":
        return f"{one['package']}, a copy"
    asked = "" if one["range"] in ("", ">=0") else f" {one['range']}"
    version = f" {one['version']}" if one["version"] and not one["range"] else ""
    newest = f" ({one['version']} is its newest)" if one["version"] and one["range"] else ""
    return one["package"] + version + asked + newest


def rows_of(found: dict[str, Any]) -> list[str]:
    """A row for each package, release and answer: the packs, and the first file that names it."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found["answers"]:
        if one["state"] != "not_installed":
            groups.setdefault((release_of(one), one["state"]), []).append(one)
    order = list(WORDS)
    rows = []
    for (release, state), answers in sorted(groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))):
        places = sorted({f"{one['file']}:{one['line']}" if one["line"] else "the folder itself" for one in answers})
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        packs = ", ".join(sorted({one["slug"] for one in answers}))
        rows.append(f"| `{release}` | {WORDS[state]} | {packs} | `{places[0].removeprefix('./')}`{more} |")
    return rows


def section(name: str, folder: str, program: Path) -> tuple[str, str]:
    found, seconds = scanned(folder, program)
    commit, day = git(folder, "log", "-1", "--format=%H %cs").split()
    states = Counter(one["state"] for one in found["answers"])
    text = f"\n## {name}\n\nCommit `{commit[:12]}` of {day}, read in {seconds:.1f} s: {states['hit']} hits, {states['unknown']} open.\n"
    rows = rows_of(found)
    if rows:
        text += "\n| release | answer | packs | named in |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    unread = found["unread"]
    images = [line for line in unread if "the base image" in line]
    pins = [line for line in unread if "not pinned" in line]
    others = len(unread) - len(images) - len(pins)
    said = [
        f"{len(images)} base images" if images else "",
        pins[0].partition(", and")[0] if pins else "",
        f"{others} other lines" if others else "",
    ]
    if any(said):
        text += f"\nNot known: {'; '.join(filter(None, said))}.\n"
    return text, found["verdicts_of"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/cpu/bin/patchbench")
    parser.add_argument("repositories", nargs="+", metavar="OWNER/NAME=GIT_DIRECTORY")
    given = parser.parse_args()
    pairs = [one.partition("=") for one in given.repositories]
    sections = [section(name, folder, given.program.resolve()) for name, _, folder in sorted(pairs)]
    PAGE.write_text(HEAD.format(num=len(sections), verdicts=sections[0][1]) + "".join(text for text, _ in sections), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
