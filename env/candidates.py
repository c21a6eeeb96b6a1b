#!/usr/bin/env python3
"""Judges the candidate fixes of patches/*/{wrong,right}-*.edit by `patchbench validate` and keeps what came out.

  candidates.py [--draw N] [--program FILE] [SLUG | EDIT ...]   judge these, by default those whose row is missing or of another text
  candidates.py --pair WITHOUT,IN EDIT   judge one on two cases: IN is WITHOUT in a scenario, which alone shows the fault

A row of reports/evidence/spine/candidates.json has the verdict, what it says, the seconds it took on this machine, the random cases that
were asked for (left out: the manifest's) and the SHA-256 of the edit. A wrong fix has to be FIX_REJECTED or
NONE, a right one FIX_VALIDATED. A row of a pair has the verdict of each case and its seconds, and
WITHOUT has to be validated. tests/python/candidates_test.py holds the rows against the tree.
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

import json_rows

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "reports" / "evidence" / "spine" / "candidates.json"


def candidates() -> list[Path]:
    return sorted(edit for kind in ("wrong", "right") for edit in (ROOT / "patches").glob(f"*/{kind}-*.edit"))


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


def answer_of(edit: Path, program: Path, more: list[str], ledger: str) -> dict[str, object]:
    """The verdict on one candidate, why, and the seconds; raises where `validate` gives no answer."""
    words = [str(program), "validate", edit.parent.name, upstream_of(edit), "--edit", str(edit), "-j", "2"]
    words += ["--device", "cpu", "--ledger", ledger, "--json", *more]
    started = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"candidates: {name_of(edit)}: validate ended in {done.returncode}")
    answer = json.loads(done.stdout)
    return {"verdict": answer["sentinel"], "why": answer["why"], "seconds": round(time.monotonic() - started)}


def judged(edit: Path, program: Path, draw: int | None, pair: list[str], ledger: str) -> dict[str, object]:
    """The row of one candidate."""
    if pair:
        cases = [{"case": case} | answer_of(edit, program, ["--draw", "0", "--case", case], ledger) for case in pair]
        return cases[1] | {"without": cases[0], "sha256": digest_of(edit)}
    row = answer_of(edit, program, ["--draw", str(draw)] if draw is not None else [], ledger)
    return row | ({"draw": draw} if draw is not None else {}) | {"sha256": digest_of(edit)}


def pair_of(row: dict[str, object]) -> list[str]:
    """The two cases of a row that has them."""
    return [row["without"]["case"], row["case"]] if "without" in row else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, help="random cases of each space")
    parser.add_argument("--pair", type=lambda text: text.split(","), default=[], help="two cases of the pack, the second in a scenario")
    parser.add_argument("--program", type=Path, default=ROOT / "patchbench", help="a patchbench that is built")
    parser.add_argument("names", nargs="*", metavar="SLUG | EDIT", help="packs, or slug/wrong-name")
    given = parser.parse_args()
    rows = read_table()
    chosen = [e for e in candidates() if not given.names or {e.parent.name, name_of(e)} & set(given.names)]
    if given.pair and (len(given.pair) != 2 or len(chosen) != 1):
        parser.error("--pair takes two cases and one candidate")
    if not chosen:
        parser.error(f"no candidate of {', '.join(given.names)}")
    with tempfile.TemporaryDirectory() as folder:
        for edit in chosen:
            if not given.names and rows.get(name_of(edit), {}).get("sha256") == digest_of(edit):
                continue
            pair = given.pair or pair_of(rows.get(name_of(edit), {}))
            rows[name_of(edit)] = judged(edit, given.program, given.draw, pair, f"{folder}/ledger.db")
            write_table(rows)
            print(f"{name_of(edit)}: {rows[name_of(edit)]['verdict']}: {rows[name_of(edit)]['why']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
