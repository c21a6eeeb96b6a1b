"""Cases beyond the declared ones: no false alarm on what is right, a wrong fix that passes every declared case, a trigger by itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT, answer, need_reproducer, takes_minutes

need_reproducer("liger_flce_none_bwd")
MANIFESTS = {m.parent.name: json.loads(m.read_text()) for m in sorted(ROOT.glob("packs/*/manifest.json"))}
SLUG = "liger_flce_none_bwd"


def test_every_pack_says_what_is_drawn() -> None:
    assert all("explore" in manifest for manifest in MANIFESTS.values())


@pytest.mark.parametrize("slug", MANIFESTS)
def test_no_drawn_case_of_a_right_subject_is_red(tmp_path: Path, slug: str) -> None:
    ledger = tmp_path / "ledger.db"
    words = [PROGRAM, "--ledger", str(ledger), "env", "selftest", slug, "--seed", "1", "--draw", "6", "--device", "cpu"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("drawn from ")]
    assert lines and all(" 0 red" in line for line in lines) and "region mutants red" in done.stdout, done.stdout
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 0 and "drawn" not in again.stdout, "what the ledger has is not run again"


def test_conditions_written_to_get_past_the_ranges_are_seen(tmp_path: Path) -> None:
    """This test runs one pack. The run over all packs is recorded in reports/evidence/spine/explore-cpu.json."""
    conditions = json.loads((ROOT / "tests/fixtures/wrong_where.json").read_text())
    assert set(conditions) == set(MANIFESTS)
    slug = "mamba3_mimo_smem_2d"
    words = [PROGRAM, "--ledger", str(tmp_path / "ledger.db"), "env", "selftest", slug, "--seed", "1", "--device", "cpu"]
    where = [word for condition in conditions[slug] for word in ("--where", condition)]
    done = subprocess.run([*words, *where], capture_output=True, text=True)
    num = len(conditions[slug])
    assert done.returncode == 0 and f"{num} of {num} conditions seen" in done.stdout, done.stdout + done.stderr
    done = subprocess.run([*words, "--draw", "20", "--where", "head_dim_qk == 4096"], capture_output=True, text=True)
    assert done.returncode == 3, done.stdout
    assert "not seen: where head_dim_qk == 4096 (no drawn case of any subject is there)" in done.stdout, done.stdout


@takes_minutes
def test_the_trigger_is_found_and_a_red_case_is_small(tmp_path: Path) -> None:
    """grad_output that differs from its first row on a row that counts, in no more than two rows, one hidden unit."""
    named = ("--case", "none_random", "--case", "mean", "--device", "cpu", "--sandbox", "bwrap")
    _, document = answer(tmp_path, "reproduce", SLUG, "--explore", "--explain", "--draw", "12", *named)
    (explained,) = [one for one in document["explained"] if (one["class"], one["space"]) == ("wrong_gradients", "unreduced")]
    assert explained["rules"] and "grad_loss.uniform" in explained["rules"][0], explained
    drawn = [o for s in document["subjects"] for o in s["observations"] if "shrunk" in o.get("drawn", {})]
    (first, *_) = [o for o in drawn if o["class"] == "wrong_gradients"]
    axes = first["drawn"]["axes"]
    assert axes["tokens"] <= 4 and axes["hidden"] == 1, axes
    words = ("reproduce", SLUG, "--seed", str(first["seed"]), "--axes", json.dumps(axes), "--device", "cpu")
    _, again = answer(tmp_path, *words)
    (one,) = [o for s in again["subjects"] for o in s["observations"]]
    assert (one["case"], one["inputs_sha256"], one["class"]) == (first["case"], first["inputs_sha256"], first["class"])
