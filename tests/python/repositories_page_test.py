"""reports/REPOSITORIES.md: what env/scan_repositories.py makes of an answer of `scan`, and the page that is committed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "env"))

from scan_repositories import PAGE, rows_of  # noqa: E402


def answer(**fields: object) -> dict[str, object]:
    blank = {"package": "a", "version": "1", "range": "", "source": "", "state": "hit", "slug": "p", "file": "./uv.lock", "line": 3}
    return blank | fields


def test_packs_with_one_answer_are_a_row_and_the_first_file_is_named() -> None:
    answers = [answer(), answer(slug="q", file="./x.txt"), answer(state="not_hit", slug="r"), answer(state="not_installed", slug="s")]
    assert rows_of({"answers": answers}) == ["| `a 1` | hit | p, q | `uv.lock:3` and 1 more |", "| `a 1` | not hit | r | `uv.lock:3` |"]


def test_a_range_and_a_copy_are_said() -> None:
    answers = [answer(range=">=1,<2"), answer(range=">=0", version=""), answer(source="copy", version="", file=".", line=0)]
    releases = [row.split(" | ")[0] for row in rows_of({"answers": answers})]
    assert releases == ["| `a`", "| `a >=1,<2 (1 is its newest)`", "| `a, a copy`"]


def test_each_repository_of_the_page_has_a_commit_and_each_pack_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    packs = {path.parent.name for path in ROOT.glob("packs/*/manifest.json")}
    sections = page.split("\n## ")[1:]
    assert len(sections) >= 10 and all(re.search(r"\nCommit `[0-9a-f]{12}` of \d{4}-\d\d-\d\d, ", one) for one in sections)
    named = {slug for row in page.splitlines() if row.startswith("| `") for slug in row.split(" | ")[2].split(", ")}
    assert named and named <= packs
