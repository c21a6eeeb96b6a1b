#!/usr/bin/env python3
"""Writes what the packs' pages show of the records: the block of figures in packs/<slug>/README.md, what
to do (at its head) and reports/evidence/<slug>/window.svg. Who is hit and who is not, the first two lines, are written by hand.

  pack_figures.py           write every page and drawing, and the table of packs in README.md
  pack_figures.py --check   write nothing; exit 1 and name the files that are not what the records say

The verdicts and the windows are the program's (`status SLUG --summary`, `status windows SLUG`), from committed evidence alone; the program
is $PATCHBENCH_BUILD/bin/patchbench, else build/cpu/bin/patchbench. packs/<slug>/figures.json, where a pack has one, says which numbers
of its bench files are shown:

  {"tables": [{"what": sentence, "file": bench file, "columns": [names], "rows": [[cell, ...], ...]}]}

A cell is a text, or a number of the file: the list of keys and indices that leads to it ("*": the mean over a list; an object: the one
element that has these values), or {"at": list, "file": another file, "in": "GiB" | "us" | "TB/s"}, or {"ratio": [cell, cell]}.
Numbers have three digits. The same records give the same bytes. A number that its file withdraws cannot be shown:

  {"withdrawn": [{"at": the keys that lead to it, or to what holds it, "why": sentence}]}
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

import mitigation_data

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD", ROOT / "build/cpu")) / "bin" / "patchbench"
BEGIN, END = "<!-- figures: written by env/pack_figures.py -->\n", "<!-- /figures -->\n"
ANSWER_BEGIN, ANSWER_END = "<!-- answer: written by env/pack_figures.py -->\n", "<!-- /answer -->\n"
STATUS_BEGIN, STATUS_END = "<!-- status -->\n", "<!-- /status -->\n"
SCALES = {"": 1.0, "GiB": 2.0**-30, "us": 1e3, "TB/s": 1e-3}
# Of a drawing: its width, a release, a device, what is left of the releases, what is above them.
WIDTH, COLUMN, ROW, LEFT, NAMES = 900, 24, 22, 132, 58
# The failure classes, in the manifest's order, again from the first where a pack has more.
COLOURS = ["#b22222", "#e08214", "#7b3294", "#8c510a", "#c51b7d", "#2166ac", "#e7298a", "#666600"]
# What the impact of a failure class means to who trains.
EFFECTS = {
    "silent_wrong": "silently wrong",
    "memory_corruption": "memory corruption",
    "crash": "an error",
    "memory": "more memory",
    "speed": "slower",
    "claim": "none",
}
HARMLESS = ("memory", "speed", "claim")  # impacts that do not fail a scan
SILENT = ["silent_wrong", "memory_corruption", "crash", "memory", "speed", "claim"]  # what nobody notices comes first
# Upstreams of README's table; of more people's jobs first.
REACH = ["transformers", "deepspeed", "liger-kernel", "transformer-engine", "megatron-core", "mamba-ssm", "tilelang"]
MOST_INTERVALS = 3  # of releases, in a sentence or a cell; reports/STATUS.md and mitigations/README.md have them all
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


def covers(withdrawn: list[Any], keys: list[Any]) -> bool:
    """Whether these keys lead to what is withdrawn, or into it."""

    def is_of(one: Any, key: Any) -> bool:
        return one == "*" or (one.items() <= key.items() if isinstance(one, dict) and isinstance(key, dict) else one == key)

    return len(withdrawn) <= len(keys) and all(map(is_of, withdrawn, keys))


def kept(file: Path, keys: list[Any]) -> int | float:
    """The number of a bench file that these keys lead to. Raises ValueError if it is withdrawn."""
    for one in bench(file).get("withdrawn", []):
        if covers(one["at"], keys):
            raise ValueError(f"{file.name}: {keys} is withdrawn: {one['why']}")
    return found(bench(file), keys)


def number(cell: Any, evidence: Path, file: str) -> int | float:
    if isinstance(cell, list):
        return kept(evidence / file, cell)
    if "ratio" in cell:
        over, under = (number(part, evidence, file) for part in cell["ratio"])
        return over / under
    return kept(evidence / cell.get("file", file), cell["at"]) * SCALES[cell.get("in", "")]


def shown(cell: Any, evidence: Path, file: str) -> str:
    if isinstance(cell, str):
        return cell
    value = number(cell, evidence, file)
    if value == int(value) and value < 1000:
        return str(int(value))
    return f"{value:.2e}".replace("e-0", "e-") if value < 1e-2 else f"{value:#.3g}".rstrip(".")


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table without the columns that are empty in each row."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return line([head[i] for i in kept]) + "|" + "---|" * len(kept) + "\n" + "".join(line([row[i] for i in kept]) for row in rows)


def tables(slug: str) -> str:
    spec = ROOT / "packs" / slug / "figures.json"
    if not spec.is_file():
        return ""
    evidence, text = ROOT / "reports" / "evidence" / slug, ""
    for table in json.loads(spec.read_text())["tables"]:
        assert all(len(row) == len(table["columns"]) for row in table["rows"]), spec
        rows = [[shown(cell, evidence, table["file"]) for cell in row] for row in table["rows"]]
        text += f"\n{table['what']} (`{table['file']}`)\n\n" + markdown(table["columns"], rows)
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


class Releases:
    """What the windows say of one upstream's releases, over all kinds of devices."""

    def __init__(self, upstream: str, windows: list[dict[str, Any]]) -> None:
        self.upstream = upstream
        self.windows = [window for window in windows if window["upstream"] == upstream]
        self.known = [release["version"] for release in self.windows[0]["releases"]]
        states: dict[str, set[str]] = {}
        for release in itertools.chain.from_iterable(window["releases"] for window in self.windows):
            states.setdefault(release["version"], set()).add(release["state"])
        self.hit = {version for version, seen in states.items() if seen - set(OTHERS)}
        self.right = {version for version, seen in states.items() if "absent" in seen} - self.hit
        last = max(self.known.index(version) for version in self.hit)
        self.right_after = {version for version in self.right if self.known.index(version) > last}

    def in_class(self, name: str) -> set[str]:
        versions: set[str] = set()
        for one in itertools.chain.from_iterable(window["classes"].get(name, []) for window in self.windows):
            versions |= set(self.known[self.known.index(one["first_bad"]) : self.known.index(one["last_bad"]) + 1])
        return versions

    def text(self, versions: set[str]) -> str:
        """ "liger-kernel 0.3.0 to 0.8.1"; "" of none."""
        found, known = {short(version) for version in versions}, [short(version) for version in self.known]
        shown = mitigation_data.ranges(found, known)
        if shown.count(",") >= MOST_INTERVALS:
            first, *_, last = [version for version in known if version in found]
            shown = f"{first} to {last}, {len(found)} of {known.index(last) - known.index(first) + 1} releases"
        return f"{self.upstream} {shown}" if shown else ""


def joined(texts: list[str]) -> str:
    return "; ".join(text for text in texts if text)


def verified(slug: str, data: dict[str, Any], one: Releases) -> str:
    """On which releases the mitigation was verified, by device; where the other hit releases leave it."""
    devices: dict[str, set[str]] = {}
    for verdict in mitigation_data.verdicts(slug):
        version = verdict["context"]["pin"]["version"]
        if verdict["sentinel"] == "MITIGATION_VERIFIED" and version in one.hit:
            devices.setdefault(device_name(verdict["context"]["machine"]["device"]), set()).add(version)
    by_releases: dict[str, list[str]] = {}
    for device, versions in sorted(devices.items()):
        by_releases.setdefault(one.text(versions), []).append(device)
    where = "; ".join(f"{releases} on {' and '.join(names)}" for releases, names in by_releases.items())
    acts = {version for version, release in data["releases"].items() if "mitigated" in release}
    return f"verified for {where}" + ("; elsewhere it acts only where the code is a verified release's" if one.hit - acts else "")


def upgrade(slug: str, one: Releases, hits: dict[str, list[Releases]], packs: str) -> str:
    """Which releases of an upstream to upgrade to, and which other packs hit one of them; "" of none. `packs`: the path to their folder."""
    if not one.right_after:
        return ""
    names = [
        other
        for other, found in hits.items()
        if other != slug and any(each.upstream == one.upstream and each.hit & one.right_after for each in found)
    ]
    links = ", ".join(f"[{name}]({packs}/{name}/README.md)" for name in names)
    return f"upgrade to {one.text(one.right_after)}" + (f". These are hit by {links}" if links else "")


def advice(slug: str, found: list[Releases], is_harmless: bool, hits: dict[str, list[Releases]]) -> str:
    data = json.loads((ROOT / f"mitigations/patchbench_mitigations/data/{slug}.json").read_text())
    if "not_needed" in data:
        return f"{'nothing for a release as it is' if is_harmless else 'no mitigation acts'}: {data['not_needed']['why']}."
    (target,) = [one for one in found if one.upstream == data["package"]]
    command = f"`PATCHBENCH_MITIGATE={slug} python -m patchbench_mitigations train.py`"
    use = f"[the mitigation](../../docs/keep_training.md): {command} ({verified(slug, data, target)})."
    older = f"Of the releases only older ones are right: {target.text(target.right)}." if target.right else "No measured release is right."
    to = upgrade(slug, target, hits, "..")
    said = [f"{to}. Or use {use}" if to else f"use {use} {older}"]
    others = [one for one in found if one is not target]
    left = [one.upstream for one in others if not one.right_after]
    said += [f"The mitigation acts in {target.upstream} alone: for {', '.join(left)} see below."] if left else []
    return " ".join([*said, *(f"For {one.upstream} {upgrade(slug, one, hits, '..')}." for one in others if one.right_after)])


def releases_of(windows: list[dict[str, Any]]) -> list[Releases]:
    return [Releases(upstream, windows) for upstream in dict.fromkeys(window["upstream"] for window in windows)]


def impacts_shown(manifest: dict[str, Any], found: list[Releases]) -> dict[str, str]:
    """Failure class -> impact, of those that a release showed, in the manifest's order."""
    shown = [one["name"] for one in manifest["classes"] if any(each.in_class(one["name"]) for each in found)]
    return {name: manifest["impact"].get(name, "silent_wrong") for name in shown}


def answer(slug: str, hits: dict[str, list[Releases]]) -> str:
    """What to do, and a row for each failure class that a release showed. `hits`: what each pack's windows say."""
    manifest, found = json.loads((ROOT / f"packs/{slug}/manifest.json").read_text()), hits[slug]
    impacts = impacts_shown(manifest, found)
    when = {one["class"]: one["words"] for one in reversed(manifest["trigger"])}  # the first of a class is the general one
    rows = [
        [f"`{name}`: {EFFECTS[impact]}", when.get(name, ""), joined([each.text(each.in_class(name)) for each in found])]
        for name, impact in impacts.items()
    ]
    is_harmless = set(impacts.values()) <= set(HARMLESS)
    return f"**Do:** {advice(slug, found, is_harmless, hits)}\n\n" + markdown(["failure class", "when", "releases"], rows)


def known_bugs(hits: dict[str, list[Releases]]) -> str:
    """README's table: a row a pack, those that reach most people first, and of one upstream the most silent."""
    rows: list[tuple[int, int, list[str]]] = []  # by reach and silence
    for slug, found in hits.items():
        manifest = json.loads((ROOT / f"packs/{slug}/manifest.json").read_text())
        worst = min(impacts_shown(manifest, found).values(), key=SILENT.index)
        hit = (ROOT / f"packs/{slug}/README.md").read_text().partition("**You are hit if** ")[2].partition("\n\n")[0]
        use = re.split(r"[.:] ", hit.replace("\n", " "))[0]
        versions = found[0].text(found[0].hit) + (f", and {len(found) - 1} more upstreams" if len(found) > 2 else "")
        versions = joined([each.text(each.hit) for each in found]) if len(found) <= 2 else versions
        do = upgrade(slug, found[0], hits, "packs") or "use [the mitigation](docs/keep_training.md)"
        if "not_needed" in manifest["mitigation"]:
            do = manifest["mitigation"]["not_needed"]["why"].rpartition(": ")[2]
        what = f"[{manifest['title']}](packs/{slug}/README.md): {EFFECTS[worst]}"
        reach = REACH.index(found[0].upstream) if found[0].upstream in REACH else len(REACH)
        rows.append((reach, SILENT.index(worst), [use, what, versions, do]))
    return markdown(["you are hit if", "what happens", "versions", "do"], [row for *_, row in sorted(rows)])


def figures(slug: str) -> str:
    table = ask("status", slug, "--summary").partition("\n\n")[0]
    _, _, *found = [[cell.strip() for cell in row.split("|")[2:-1]] for row in table.splitlines()]
    # The drawing has what a release showed as it is.
    rows = [
        [f"{pin}, {device_name(device)}", release, ", ".join(filter(None, ours))]
        for pin, device, release, *ours in found
        if any(ours) or " with " in pin
    ]
    window = f"![In which releases the bug is](../../reports/evidence/{slug}/window.svg)\n\n"
    head = ["tested release, device", "as it is", "with what is ours ([words](../README.md#words))"]
    return window + markdown(head, rows) + tables(slug)


def page(slug: str, answer: str, figures: str) -> str:
    """The pack's page with its two blocks; a page without one gets what to do before the bug and the figures before the limits."""
    text = (ROOT / "packs" / slug / "README.md").read_text()
    for begin, end, heading, inside in ((ANSWER_BEGIN, ANSWER_END, "## Bug", answer), (BEGIN, END, "## Limits", figures)):
        if begin not in text:
            head, found, tail = text.partition(heading)
            text = f"{head}{begin}{end}\n{found}{tail}"
        head, _, rest = text.partition(begin)
        text = head + begin + inside + end + rest.partition(end)[2]
    return text


def wanted() -> dict[Path, str]:
    """Path -> text of everything that this script writes. A pack without a verdict is left alone."""
    windows, files = {}, {}
    for manifest in sorted((ROOT / "packs").glob("*/manifest.json")):
        found = json.loads(ask("--json", "status", "windows", manifest.parent.name))["windows"]
        windows[manifest.parent.name] = [window for window in found if window["intervals"]]
    hits = {slug: releases_of(found) for slug, found in windows.items() if found}
    head, _, rest = (ROOT / "README.md").read_text().partition(STATUS_BEGIN)
    files[ROOT / "README.md"] = head + STATUS_BEGIN + known_bugs(hits) + STATUS_END + rest.partition(STATUS_END)[2]
    for slug in hits:
        files[ROOT / "reports" / "evidence" / slug / "window.svg"] = drawing(slug, windows[slug])
        files[ROOT / "packs" / slug / "README.md"] = page(slug, answer(slug, hits), figures(slug))
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
