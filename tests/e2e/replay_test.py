"""`patchbench replay`: a recorded run made again, from a record that holds, one that was tampered with and one that has no place here."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, answer, need_reproducer

SLUG = "liger_flce_none_bwd"
CASES = ("--case", "none_one_hot", "--case", "mean")
need_reproducer(SLUG)


@pytest.fixture(scope="module", params=["model", "upstream"])
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    """The subject of one run and its records as lines, the verdict last."""
    folder = tmp_path_factory.mktemp("run")
    status, document = answer(folder, "reproduce", SLUG, "--subject", request.param, "--device", "cpu", *CASES)
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(wrong_gradients)"), document["why"]
    return request.param, start(folder, "ledger", "export", "--whole").stdout.splitlines()


def start(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words], env=os.environ | {"PATCHBENCH_LEDGER": str(folder / "ledger.db")}, capture_output=True, text=True
    )


def imported(folder: Path, *records: str) -> list[dict]:
    """What the ledger lists once these records alone are in it."""
    lines = folder / "records.jsonl"
    lines.write_text("".join(record + "\n" for record in records))
    done = start(folder, "ledger", "import", lines)
    assert done.returncode == 0, done.stderr
    return json.loads(start(folder, "--json", "ledger", "list").stdout)["unsigned_imports"]


def changed(records: list[str], pattern: str, by: str) -> str:
    """The first observation with one place of its text replaced."""
    observation = next(record for record in records if '"urn:patchbench:observation:v1"' in record)
    text, count = re.subn(pattern, by, observation, count=1)
    assert count == 1
    return text


def test_a_verdict_comes_out_again(tmp_path: Path, run: tuple[str, list[str]]) -> None:
    listed = imported(tmp_path, *run[1])
    status, document = answer(tmp_path, "ledger", "replay", next(row["record"] for row in listed if row["type"] == "verdict"))
    assert (status, document["same"], document["verdict"]) == (0, True, "as recorded"), document
    assert [o["replayed"] for o in document["observations"]] == ["bitwise"] * 2
    after = json.loads(start(tmp_path, "--json", "ledger", "list").stdout)["unsigned_imports"]
    assert after == listed, "a replay writes nothing"


TAMPERED = {
    "an error": (r'(\["\w+","\w+",)[^,]+', r"\g<1>7.25"),
    "the inputs": (r'"inputs_sha256":"\w+"', f'"inputs_sha256":"{"0" * 64}"'),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_record_differs(tmp_path: Path, run: tuple[str, list[str]], what: str) -> None:
    listed = imported(tmp_path, changed(run[1], *TAMPERED[what]))
    status, document = answer(tmp_path, "ledger", "replay", listed[0]["record"])
    assert (status, document["same"]) == (1, False)
    assert [o["replayed"] for o in document["observations"]] == ["differs"] and document["observations"][0]["why"]


LOST = {
    "device": (r'("observation":\{"case":"\w+",("class":"\w+",)?"device":")cpu', r"\1cuda:7"),
    "case": (r'("observation":\{"case":")\w+', r"\1no_such_case"),
    "environment": (r'"environment":"torch[^"]+"', '"environment":"torch-2.11-cp311-000000000000"'),
    "edit": (r'"environment":"torch[^"]+",', rf'"edits":["{"1" * 64}"],\g<0>'),
}


@pytest.mark.parametrize("what", LOST)
def test_what_is_not_here_is_not_runnable(tmp_path: Path, run: tuple[str, list[str]], what: str) -> None:
    subject, records = run
    if subject == "model" and what in ("edit", "environment"):
        pytest.skip("a model runs no release")
    listed = imported(tmp_path, changed(records, *LOST[what]))
    done = start(tmp_path, "ledger", "replay", listed[0]["record"])
    assert (done.returncode, done.stdout) == (4, "") and what in done.stderr.splitlines()[-1], done.stderr


def test_bad_words_are_usage(tmp_path: Path) -> None:
    done = start(tmp_path, "ledger", "replay", "deadbeefdeadbeef")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "no record 'deadbeefdeadbeef'" in done.stderr
