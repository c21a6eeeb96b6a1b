#!/usr/bin/env python3
"""Judges the candidate fixes of patches/*/{wrong,right}-*.edit by `patchbench validate` and keeps what came out.

  candidates.py [--draw N] [--program FILE] [SLUG | EDIT ...]   judge these, by default those whose row is missing or of another text
  candidates.py --pair WITHOUT,IN,CONTROL EDIT   judge one, or a mutant, on three cases: IN is WITHOUT in a scenario, which
                                                 alone shows the fault

A row of reports/evidence/spine/candidates.json has the verdict, what it says, the seconds it took on this machine, the random cases that
were asked for (left out: the manifest's) and the SHA-256 of the edit. A wrong fix has to be FIX_REJECTED or
NONE, a right one FIX_VALIDATED. A row of a pair has what was seen in each case, and its
seconds. tests/python/candidates_test.py holds the rows against the tree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import json_rows

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "reports" / "evidence" / "spine" / "candidates.json"


def candidates(*more: str) -> list[Path]:
    """The wrong and the right ones, and edits of `more` kinds."""
    return sorted(edit for kind in ("wrong", "right", *more) for edit in (ROOT / "patches").glob(f"*/{kind}-*.edit"))


def name_of(edit: Path) -> str:
    return f"{edit.parent.name}/{edit.stem}"


def digest_of(edit: Path) -> str:
    return hashlib.sha256(edit.read_bytes()).hexdigest()


def upstream_of(edit: Path) -> str:
    return next(line.split(": ")[1] for line in edit.read_text(encoding="utf-8").splitlines() if line.startswith("Upstream: "))


def read_table() -> dict[str, dict[str, object]]:
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}


def write_table(rows: dict[str, dict[str, object]]) -> None:
    TABLE.write_text(json_rows.text_of(dict(sorted(rows.items()))) + "\n", encoding="utf-8")


def judged(edit: Path, program: Path, more: list[str], cases: list[str], ledger: str) -> dict[str, object]:
    """The row of one candidate; raises where `validate` gives no answer."""
    words = [str(program), "validate", edit.parent.name, upstream_of(edit), "--edit", str(edit), "-j", "2"]
    words += ["--device", "cpu", "--ledger", ledger, "--json", *more, *(word for case in cases for word in ("--case", case))]
    started = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"candidates: {name_of(edit)}: validate ended in {done.returncode}")
    answer = json.loads(done.stdout)
    row = {"verdict": answer["sentinel"], "why": answer["why"], "seconds": round(time.monotonic() - started)}
    return row | ({"cases": [outcome_of(answer, case) for case in cases]} if cases else {}) | {"sha256": digest_of(edit)}


def outcome_of(answer: dict[str, Any], case: str) -> dict[str, object]:
    """What was seen of the candidate in one case, and the seconds that the case took by its own word; one that raised says none."""
    every = [one for subject in answer["subjects"] for one in subject["observations"]]
    one = next(one for one in every if (one["case"], one["subject"]) == (case, "patched"))
    seconds = one["self_reported"].get("wall_s")
    return {"case": case, "seen": one["seen"]} | ({} if seconds is None else {"seconds": round(seconds, 3)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, help="random cases of each space")
    parser.add_argument("--pair", type=lambda text: text.split(","), default=[], help="three cases of the pack, the second in a scenario")
    parser.add_argument("--program", type=Path, default=ROOT / "patchbench", help="a patchbench that is built")
    parser.add_argument("names", nargs="*", metavar="SLUG | EDIT", help="packs, or slug/wrong-name")
    given = parser.parse_args()
    rows = read_table()
    every = candidates("mutant") if given.pair else candidates()
    chosen = [e for e in every if not given.names or {e.parent.name, name_of(e)} & set(given.names)]
    if given.pair and (len(given.pair) != 3 or len(chosen) != 1):
        parser.error("--pair takes three cases and one candidate")
    if not chosen:
        parser.error(f"no candidate of {', '.join(given.names)}")
    with tempfile.TemporaryDirectory() as folder:
        for edit in chosen:
            if not given.names and rows.get(name_of(edit), {}).get("sha256") == digest_of(edit):
                continue
            cases = given.pair or [one["case"] for one in rows.get(name_of(edit), {}).get("cases", [])]
            draw = 0 if cases else given.draw
            row = judged(edit, given.program, ["--draw", str(draw)] if draw is not None else [], cases, f"{folder}/ledger.db")
            rows[name_of(edit)] = row | ({"draw": draw} if draw is not None else {})
            write_table(rows)
            print(f"{name_of(edit)}: {rows[name_of(edit)]['verdict']}: {rows[name_of(edit)]['why']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
