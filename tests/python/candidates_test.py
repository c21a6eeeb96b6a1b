"""Each candidate fix of patches/ is judged as what it is; the rows are env/candidates.py's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "env"))

from candidates import candidates, digest_of, name_of, read_table  # noqa: E402

# NONE earns nothing: a fix that raises where the release computes, or whose lines no case runs.
WANTED = {"wrong": ["FIX_REJECTED", "NONE"], "right": ["FIX_VALIDATED", "FIX_VALIDATED(few_drawn)", "EQUIVALENCE_SHOWN"],
          "mutant": ["FIX_REJECTED"]}  # fmt: skip
ROWS = read_table()
EDITS = {name_of(edit): edit for edit in candidates("mutant") if edit in candidates() or name_of(edit) in ROWS}


def test_no_row_is_of_a_candidate_that_is_gone() -> None:
    assert ROWS and set(ROWS) <= set(EDITS)


@pytest.mark.parametrize("name", sorted(EDITS))
def test_is_judged_as_what_it_is(name: str) -> None:
    assert name in ROWS, f"run env/candidates.py {name}"
    row, edit = ROWS[name], EDITS[name]
    assert row["sha256"] == digest_of(edit), f"run env/candidates.py {name}"
    assert row["verdict"] in WANTED[edit.stem.partition("-")[0]], row["why"]


@pytest.mark.parametrize("name", sorted(name for name in ROWS if "cases" in ROWS[name]))
def test_is_red_in_its_scenario_alone(name: str) -> None:
    manifest = json.loads((ROOT / "packs" / name.split("/")[0] / "manifest.json").read_text(encoding="utf-8"))
    axes = {case["name"]: case["axes"] for case in manifest["cases"]}
    without, within, control = ROWS[name]["cases"]
    assert axes[within["case"]] == axes[without["case"]] | {"scenario": axes[within["case"]]["scenario"]}
    assert [without["seen"], within["seen"], control["seen"]] == ["absent", "present", "absent"]
    assert ROWS[name]["verdict"] == "FIX_REJECTED"
