"""The form of the packs' pages, what evidence says of cycles, and what pages call owed, against the list of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "reports" / "evidence"
OWED = EVIDENCE / "OWED.md"
PAGES = sorted(manifest.parent / "README.md" for manifest in (ROOT / "packs").glob("*/manifest.json"))
MOST_CLOCK_HZ, SMS = 1.98e9, 132  # of an H200


def table(page: Path, first_header: str) -> list[list[str]]:
    """The cells of the table whose first column has this name, without its header."""
    lines = page.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_header} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def sparse_mla(name: str) -> list[dict]:
    report = json.loads((EVIDENCE / "sparse_mla_dims" / name).read_text())
    return report["rows"] if "rows" in report else report["runs"]


def test_a_packs_page_says_first_who_is_hit_who_is_not_and_what_to_do() -> None:
    for page in PAGES:
        text = page.read_text()
        head, _, body = text.partition("\n## Bug\n")
        has_records = "<!-- answer" in head
        said = [line.split("**")[1] for line in head.splitlines() if line.startswith("**")]
        assert said == ["You are hit if", "Not hit:", "Do:"][: 3 if has_records else 2], page
        tables = [line for line in head.splitlines() if line.startswith("|")]
        assert bool(tables) == has_records and all(line.count(" | ") <= 2 for line in tables), page
        assert re.findall(r"^## (.+)", text, re.M) == ["Bug", "Cause", "Fix", "Limits", "Retirement"] and "Words: " not in body, page
        assert len(text.splitlines()) <= 80, page


def test_a_page_names_releases_by_three_intervals_at_most() -> None:
    interval = re.compile(r"(?:[\w.]+(?: to [\w.]+)?, ){3,}[\w.]+ to [\d.]+")
    for page in PAGES:
        assert not interval.search(page.read_text().partition("## Bug")[0]), page


def test_a_number_that_the_block_of_figures_has_is_not_in_the_prose() -> None:
    for page in PAGES:
        before, _, rest = page.read_text().partition("<!-- figures")
        block, _, after = rest.partition("<!-- /figures -->")
        measured = {cell for line in block.splitlines() for cell in line.split(" | ") if re.fullmatch(r"[\d.e+-]+", cell) and "." in cell}
        said = {word.strip(".,;:()") for word in (before + after).split()}
        assert not measured & said, f"{page}: {measured & said}"


def test_a_link_of_a_page_leads_to_a_file() -> None:
    links = 0
    for page in [*PAGES, *ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "runner/README.md"]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).is_file(), f"{page}: {link}"
            links += 1
    assert links > len(PAGES)


def cycle_counts(value: object) -> list[int]:
    """The counts of cycles an item that a document's texts give, those that it calls withdrawn left out."""
    if isinstance(value, dict):
        return [count for key, inner in value.items() if key != "withdrawn" for count in cycle_counts(inner)]
    if isinstance(value, list):
        return [count for inner in value for count in cycle_counts(inner)]
    return [int(count) for count in re.findall(r"(\d{4,}) cycles", value)] if isinstance(value, str) else []


def test_no_count_of_cycles_takes_longer_than_the_run_it_speaks_of() -> None:
    of_roles = next(run for run in sparse_mla("bench-h200.json") if "where it goes" in run)
    queries, _, heads, *_ = of_roles["rows"][0]["shape"]
    items_an_sm = queries * heads / 64 / SMS
    most = of_roles["rows"][0]["forward"][0] * 1e-3 * MOST_CLOCK_HZ / items_an_sm
    assert cycle_counts(of_roles) and all(count <= most for count in cycle_counts(of_roles))


def test_the_list_says_what_a_manifest_owes_in_its_words() -> None:
    rows = table(OWED, "command")
    owed = {}
    for manifest in sorted((ROOT / "packs").glob("*/manifest.json")):
        admission = json.loads(manifest.read_text())["lifecycle"]["admission"]
        if admission.startswith("owed: "):
            owed[f"`{manifest.relative_to(ROOT)}`"] = admission.removeprefix("owed: ")
    listed = {place: what for _, what, place in rows if place.endswith("manifest.json`")}
    assert listed and listed.items() <= owed.items()


def test_each_row_of_the_list_names_what_waits_for_it_and_a_page_that_owes_points_to_the_list() -> None:
    waiting = {place.split("`")[1] for *_, place in table(OWED, "command")}
    for place in waiting:
        assert (ROOT / place).is_file(), place
    pages = {str(page.relative_to(ROOT)) for page in ROOT.glob("packs/*/README.md") if "OWED.md" in page.read_text()}
    assert pages >= {place for place in waiting if place.startswith("packs/") and place.endswith("README.md")}
    for page in [*ROOT.glob("packs/*/README.md"), ROOT / "mitigations" / "README.md", ROOT / "env" / "README.md"]:
        assert not re.search(r"\b[Oo]wed\b", page.read_text()), page


@pytest.mark.parametrize("path", re.findall(r"`((?:repro|packs|reports)/[\w/.-]+\.\w+)`", OWED.read_text()))
def test_a_path_of_the_list_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_architecture_page_names_code_and_tests_that_are_there() -> None:
    rows = re.findall(r"\| `(runner/\S+)` \| `(\w+)` \| `(\w+)\.(\w+)` \|", (ROOT / "runner/README.md").read_text())
    assert len(rows) == 7
    tests = "".join(path.read_text() for path in (ROOT / "tests/unit").glob("*_test.cpp"))
    for file, symbol, suite, name in rows:
        assert re.search(rf"\b{symbol}\(", (ROOT / file).read_text()), f"{file}: no {symbol}"
        assert re.search(rf"TEST(_F)?\({suite}, {name}\)", tests), f"no test {suite}.{name}"
