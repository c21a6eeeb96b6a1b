"""Pack 05 on the real mamba-ssm host functions, on the CPU: refused group numbers, the edit, the op's wrong forms."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD", ROOT / "build/cpu")) / "bin/patchbench"
SLUG = "mamba3_mimo_gqa_bwd"

if not (PROGRAM.parent / f"repro_{SLUG}").exists():
    pytest.skip("the reproducer is not built", allow_module_level=True)


def answer(tmp_path: Path, *words: str) -> tuple[int, dict]:
    """Exit status and the JSON document of one command, on a ledger of its own."""
    done = subprocess.run(
        [PROGRAM, "--json", *words], env=os.environ | {"PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")}, capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def seen(document: dict, subject: str) -> dict[str, str]:
    """case -> "absent", "unsupported" or the failure class."""
    rows = [o for s in document["subjects"] for o in s["observations"] if o["subject"] == subject]
    return {o["case"]: o.get("class", o["seen"]) for o in rows}


def test_the_release_refuses_groups_and_the_edit_reduces_them(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "validate", SLUG)
    assert (status, document["sentinel"]) == (0, "FIX_VALIDATED"), document["why"]
    before = seen(document, "upstream")
    assert before["dense_2_groups"] == before["packed_4_groups"] == "groups_refused"
    assert before["dense_1_groups"] == before["packed_8_groups"] == "absent"
    assert before["half_bias_1_group"] == "bias_in_input_dtype"
    assert set(seen(document, "patched").values()) == {"absent"}


def test_a_release_without_the_layer_has_no_verdict(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--upstream", "2.3.1")
    assert status == 3 and set(seen(document, "upstream").values()) == {"unsupported"}


def test_the_op_holds(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "op")
    assert (status, document["sentinel"]) == (0, "OP_VALIDATED"), document["why"]


@pytest.mark.parametrize("mutant", ["strided_groups", "rounded_biases"])
def test_a_wrong_op_is_red(tmp_path: Path, mutant: str) -> None:
    cases = json.loads((ROOT / f"packs/{SLUG}/manifest.json").read_text())["cases"]
    case = next(c for c in cases if c["name"] == "reduce_4_groups_half")
    document = {"slug": SLUG, "classes": ["groups_refused"], "cases": [{k: case[k] for k in ("name", "role", "axes", "judged_on")}]}
    (tmp_path / "cases.json").write_text(json.dumps(document))
    words = ["--subject", f"op_mutant:{mutant}", "--device", "cpu", "--seed", "1", "--work", tmp_path, "--records-fd", "1"]
    done = subprocess.run([PROGRAM.parent / f"repro_{SLUG}", "--cases", tmp_path / "cases.json", *words], capture_output=True, text=True)
    assert json.loads(done.stdout)["seen"] == "present", done.stderr
