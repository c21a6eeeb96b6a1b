"""reports/evidence/trainer_grad_accumulation/families.json, and the program that writes it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACK = "trainer_grad_accumulation"
PROGRAM = ROOT / "env/model_families.py"
ROWS = json.loads((ROOT / f"reports/evidence/{PACK}/families.json").read_text())["rows"]


def test_each_row_names_classes_of_the_pack_that_its_cases_bear_out() -> None:
    known = {one["name"] for one in json.loads((ROOT / f"packs/{PACK}/manifest.json").read_text())["classes"]} | {"unexplained"}
    assert ROWS and len({(row["release"], row["family"]) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        cases = row["cases"].values()
        assert set(row["classes"]) <= known
        is_right = all(one["off"] < 1e-3 and abs(one.get("loss", 1) - 1) < 2e-3 for one in cases)
        assert is_right == (not row["classes"]) and row["off"] == max(one["off"] for one in cases), row


def test_the_page_says_what_the_table_says() -> None:
    page = " ".join((ROOT / f"packs/{PACK}/README.md").read_text().split())
    assert len({row["family"] for row in ROWS}) == 30 and "Of 30 small classes" in page
    right = {release: sum(row["release"] == release and not row["classes"] for row in ROWS) for release in {row["release"] for row in ROWS}}
    said = re.search(r"25 are right in (.*?), where", page)
    assert said and set(re.findall(r"\d+\.\d+\.\d+", said[1])) == {release for release, count in right.items() if count == 25}
    assert sorted(right.values()) == [0] * 8 + [25] * 3 and "the eight measured releases from 4.46.3 to 5.9.0" in page
    wrong = {row["family"] for row in ROWS if row["release"] == "5.24.0" and row["classes"]}
    assert set(re.findall(r"`(\w+)`", page.split("in 5.24.0 ")[1].split(", and a `forward`")[0])) == wrong
    assert "**Not hit:** in 5.24.0 `LlamaForCausalLM` and 24 more classes" in page


def test_the_program_says_what_it_needs() -> None:
    for words, said in ((["measure"], "model_families.py measure"), (["measure", "1.0"], "1.0 is no release of env/pins.json")):
        found = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, check=False)
        assert found.returncode != 0 and said in found.stderr and "Traceback" not in found.stderr
