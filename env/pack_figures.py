#!/usr/bin/env python3
"""Writes what the packs' pages show of the records: the block of figures in packs/<slug>/README.md and reports/evidence/<slug>/window.svg.

  pack_figures.py           write every page and drawing, and the table of packs in README.md
  pack_figures.py --check   write nothing; exit 1 and name the files that are not what the records say

The verdicts and the windows are the program's (`status SLUG --summary`, `status windows SLUG`), from committed evidence alone; the program
is $PATCHBENCH_BUILD/bin/patchbench, else build/cpu/bin/patchbench. packs/<slug>/figures.json, where a pack has one, says which numbers
of its bench files are shown:

  {"tables": [{"what": sentence, "file": bench file, "columns": [names], "rows": [[cell, ...], ...]}]}

A cell is a text, or a number of the file: the list of keys and indices that leads to it ("*": the mean over a list; an object: the one
element that has these values), or {"at": list, "file": another file, "in": "GiB" | "us" | "TB/s"}, or {"ratio": [cell, cell]}.
Numbers have three digits. The same records give the same bytes.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD", ROOT / "build/cpu")) / "bin" / "patchbench"
BEGIN, END = "<!-- figures: written by env/pack_figures.py -->\n", "<!-- /figures -->\n"
STATUS_BEGIN, STATUS_END = "<!-- status -->\n", "<!-- /status -->\n"
SCALES = {"": 1.0, "GiB": 2.0**-30, "us": 1e3, "TB/s": 1e-3}
# Of a drawing: its width, a release, a device, what is left of the releases, what is above them.
WIDTH, COLUMN, ROW, LEFT, NAMES = 900, 24, 22, 132, 58
# The failure classes, in the manifest's order, again from the first where a pack has more.
COLOURS = ["#b22222", "#e08214", "#7b3294", "#8c510a", "#c51b7d", "#2166ac", "#e7298a", "#666600"]
OTHERS = {"absent": "right", "unsupported": "no such code", "unresolved": "no answer", "not_measured": "not measured"}


def ask(*words: str) -> str:
    """What the program prints, from committed evidence alone."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": f"{folder}/ledger.db"}
        return subprocess.run([PROGRAM, *words], env=environment, capture_output=True, text=True, check=True).stdout


# ---- The numbers of a pack's bench files.


@functools.cache
def bench(path: Path) -> Any:
    return json.loads(path.read_text())


def found(value: Any, keys: list[Any]) -> int | float:
    """The number at the end of these keys. Raises LookupError where there is none, or several for one key."""
    for i, key in enumerate(keys):
        if key == "*":
            return sum(found(element, keys[i + 1 :]) for element in value) / len(value)
        if isinstance(key, dict):
            (value,) = [element for element in value if key.items() <= element.items()]
        else:
            value = value[key]
    return value


def number(cell: Any, evidence: Path, file: str) -> int | float:
    if isinstance(cell, list):
        return found(bench(evidence / file), cell)
    if "ratio" in cell:
        over, under = (number(part, evidence, file) for part in cell["ratio"])
        return over / under
    return found(bench(evidence / cell.get("file", file)), cell["at"]) * SCALES[cell.get("in", "")]


def shown(cell: Any, evidence: Path, file: str) -> str:
    if isinstance(cell, str):
        return cell
    value = number(cell, evidence, file)
    if value == int(value) and value < 1000:
        return str(int(value))
    return f"{value:.2e}".replace("e-0", "e-") if value < 1e-2 else f"{value:#.3g}".rstrip(".")


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def tables(slug: str) -> str:
    spec = ROOT / "packs" / slug / "figures.json"
    if not spec.is_file():
        return ""
    evidence, text = ROOT / "reports" / "evidence" / slug, ""
    for table in json.loads(spec.read_text())["tables"]:
        text += f"\n{table['what']} (`{table['file']}`)\n\n" + line(table["columns"]) + "|" + "---|" * len(table["columns"]) + "\n"
        for row in table["rows"]:
            assert len(row) == len(table["columns"]), f"{spec}: {row}"
            text += line([shown(cell, evidence, table["file"]) for cell in row])
    return text


# ---- The window as a strip of releases.


def short(version: str) -> str:
    return version.removeprefix("git:")[:8] if version.startswith("git:") else version


def cell_path(x: float, y: float, state: str) -> str:
    """One release on one device. States differ by form, not by colour alone: full, low, a line, a cross, a point."""
    forms = {"absent": "v7h20v-7", "unsupported": "v2h20v-2", "unresolved": "l4 9h4l-4 -9", "not_measured": "v3h3v-3"}
    down = {"absent": 4.5, "unsupported": 7, "unresolved": 3, "not_measured": 6.5}
    if state in forms:
        return f"M{x + (8 if state == 'not_measured' else 0):g} {y + down[state]:g}{forms[state]}z"
    return f"M{x:g} {y:g}h20v16h-20z"


def device_name(device: str) -> str:
    words = [word for word in device.split() if not word.startswith("(")]
    return words[1] if words[0] == "NVIDIA" else device


def drawing(slug: str, windows: list[dict[str, Any]]) -> str:
    """Every locked version of each upstream, oldest on the left; a row for each kind of device. Upstreams share a line where they fit."""
    classes = [one["name"] for one in json.loads((ROOT / f"packs/{slug}/manifest.json").read_text())["classes"]]
    colours = dict(zip(classes, itertools.cycle(COLOURS), strict=False))
    colours |= {"absent": "#1a7837", "unsupported": "#777777", "unresolved": "#444444", "not_measured": "#aaaaaa"}
    paths: dict[str, str] = {}
    texts, x, y, down, width = [], 0, 8, 0, 0
    for upstream in dict.fromkeys(window["upstream"] for window in windows):
        rows = [window for window in windows if window["upstream"] == upstream]
        versions = [release["version"] for release in rows[0]["releases"]]
        if x + LEFT + len(versions) * COLUMN > WIDTH:
            x, y, down = 0, y + down, 0
        first = x + LEFT
        texts.append(f'<text x="{x + 4}" y="{y + NAMES - 6}" font-weight="bold">{upstream}</text>')
        for i, version in enumerate(versions):
            texts.append(f'<text transform="translate({first + i * COLUMN + 12} {y + NAMES - 4})rotate(-50)">{short(version)}</text>')
        for i_row, row in enumerate(rows):
            at = y + NAMES + i_row * ROW
            texts.append(f'<text x="{first - 8}" y="{at + 12}" text-anchor="end">{device_name(row["device"])}</text>')
            for i, release in enumerate(row["releases"]):
                state = release["state"]
                paths[state] = paths.get(state, "") + cell_path(first + i * COLUMN, at, state)
        x = first + len(versions) * COLUMN + 44
        down, width = max(down, NAMES + len(rows) * ROW), max(width, x)
    y += down + 12
    for state in sorted(paths, key=[*classes, *OTHERS].index):
        paths[state] += cell_path(4, y, state)
        texts.append(f'<text x="32" y="{y + 12}">{OTHERS.get(state, state)}</text>')
        y += ROW
    width = max(width, 320)
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 4}" font-family="sans-serif" font-size="11">']
    drawn.append(f'<rect width="{width}" height="{y + 4}" fill="white"/>')
    for state in sorted(paths, key=[*classes, *OTHERS].index):
        drawn.append(f'<path fill="{colours[state]}" d="{paths[state]}"><title>{OTHERS.get(state, state)}</title></path>')
    return "\n".join([*drawn, *texts, "</svg>", ""])


# ---- The files.


def summary(slug: str, table: str) -> str:
    """Where the pack is hit, what is right, and where its mitigation was verified: its row of README.md's table."""
    for row in table.splitlines():
        cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
        if f"[`{slug}`]" in cells[0]:
            return f"Hit: {cells[2]}. Right: {cells[3]}. Mitigation: {cells[4]}.\n\n"
    return ""


def figures(slug: str, table: str) -> str:
    table_of_pack, _, words = ask("status", slug, "--summary").partition("\n\n")
    rows = [row.split(" | ", 1)[1] for row in table_of_pack.splitlines()[2:]]
    rows = [row for row in rows if not re.search(r"[^|]*\| BUG_REPRODUCED\(\w+\) \|$", row) or " with " in row]  # the drawing has them
    verdicts = "| red pin | device | verdicts (newest committed record) |\n|---|---|---|\n" + "".join(f"| {row}\n" for row in rows)
    window = f"![In which releases the bug is](../../reports/evidence/{slug}/window.svg)\n\n"
    return f"{summary(slug, table)}{window}{verdicts}\n{words}{tables(slug)}"


def page(slug: str, inside: str) -> str:
    """The pack's page with its block of figures; a page without one gets it before its limits."""
    text = (ROOT / "packs" / slug / "README.md").read_text()
    if BEGIN not in text:
        head, limits, tail = text.partition("## Limits")
        text = f"{head}{BEGIN}{END}\n{limits}{tail}"
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + inside + END + rest.partition(END)[2]


def wanted() -> dict[Path, str]:
    """Path -> text of everything that this script writes. A pack without a verdict is left alone."""
    head, _, rest = (ROOT / "README.md").read_text().partition(STATUS_BEGIN)
    table = ask("status", "--summary")
    files = {ROOT / "README.md": head + STATUS_BEGIN + table + STATUS_END + rest.partition(STATUS_END)[2]}
    for manifest in sorted((ROOT / "packs").glob("*/manifest.json")):
        slug = manifest.parent.name
        windows = [window for window in json.loads(ask("--json", "status", "windows", slug))["windows"] if window["intervals"]]
        if windows:
            files[ROOT / "reports" / "evidence" / slug / "window.svg"] = drawing(slug, windows)
            files[ROOT / "packs" / slug / "README.md"] = page(slug, figures(slug, table))
    return files


def main(words: list[str]) -> int:
    if words not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = {path: text for path, text in wanted().items() if not path.is_file() or path.read_text() != text}
    for path, text in stale.items():
        if words:
            print(f"{path.relative_to(ROOT)}: not what the records say; run env/pack_figures.py")
        else:
            path.write_text(text)
    return 1 if words and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
