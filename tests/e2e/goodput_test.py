"""`job goodput` on run reports of the test's own: what it gains, what it refuses, and how often its interval is wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "bin" / "patchbench"


def report(seed: int, step_s: float = 1.0, num_steps: int = 200, compile_s: float = 0.0, **changed: object) -> dict:
    """A run whose step times drift, so that neighbours are alike."""
    noise, drift, steps = random.Random(seed), 0.0, []
    for i in range(num_steps):
        drift = 0.8 * drift + noise.gauss(0, 0.03)
        extra = compile_s if i == 0 else 0.0
        steps.append({"tokens": 4096, "wall_s": max(0.2, step_s + drift) + extra, "compile_s": extra})
    made = {
        "model": "toy 1B",
        "batch": {"sequences": 4, "seqlen": 1024},
        "hardware": {"device": "NVIDIA H200 (sm_90)", "num_devices": 1},
        "backend": {"family": "triton", "adapter": "released"},
        "revisions": {"liger-kernel": "0.8.0"},
        "steps": steps,
        "wall_s": sum(s["wall_s"] for s in steps) + 10,
        "failures": [],
        "peak_memory_bytes": 1 << 34,
    }
    return made | changed


def goodput(tmp_path: Path, before: dict, after: dict, *words: str | Path) -> subprocess.CompletedProcess[str]:
    for name, made in (("before", before), ("after", after)):
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT)}
    words = (PROGRAM, *words, "job", "goodput", tmp_path / "before.json", tmp_path / "after.json")
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)


def compared(tmp_path: Path, before: dict, after: dict) -> dict:
    done = goodput(tmp_path, before, after, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_gain_a_loss_and_no_difference_are_told_apart(tmp_path: Path) -> None:
    assert compared(tmp_path, report(1), report(2, 0.8))["keep"] == "keep"
    assert compared(tmp_path, report(1), report(2, 1.25))["keep"] == "drop"
    same = compared(tmp_path, report(1), report(1))
    assert same["ratio"] == 1 and same["keep"] == "conditional" and same["interval"][0] < 1 < same["interval"][1]


def test_the_whole_run_is_judged_not_its_steps(tmp_path: Path) -> None:
    slow_start = compared(tmp_path, report(1), report(2, 0.95, compile_s=60.0))
    assert slow_start["keep"] != "keep" and slow_start["after"]["share_compile"] == pytest.approx(
        60 / report(2, 0.95, compile_s=60.0)["wall_s"]
    )
    lost = report(2, 0.9)
    for step in lost["steps"][50:120]:
        step["tokens"] = 0
    lost["failures"] = [{"step": 120, "reason": "out of memory"}]
    got = compared(tmp_path, report(1), lost)
    assert got["keep"] == "drop" and got["after"]["num_failures"] == 1 and got["after"]["share_lost"] > 0.3


def test_the_interval_misses_a_known_ratio_about_as_often_as_it_says(tmp_path: Path) -> None:
    misses = 0
    for seed in range(40):
        low, high = compared(tmp_path, report(seed), report(1000 + seed, 0.9))["interval"]
        misses += not low < (200 * 1.0 + 10) / (200 * 0.9 + 10) < high
    # 2 of 40 at 95 %; blocks of 14 steps see most of the drift.
    assert misses <= 7


def test_the_evidence_holds_both_digests_and_is_the_same_each_time(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.json"
    texts = set()
    for _ in range(2):
        done = goodput(tmp_path, report(1), report(2, 0.8))
        env = os.environ | {"PATCHBENCH_ROOT": str(ROOT)}
        words = [PROGRAM, "job", "goodput", "--evidence", evidence, tmp_path / "before.json", tmp_path / "after.json"]
        assert subprocess.run(words, env=env, capture_output=True).returncode == 0
        texts.add(evidence.read_text())
    assert len(texts) == 1 and "keep, the run gains" in done.stdout
    written = json.loads(texts.pop())
    assert written["keep"] == "keep" and len(written["before"]["digest"]) == 64 != written["after"]["digest"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "toy 2B"}, "/model"),
        ({"batch": {"sequences": 8, "seqlen": 1024}}, "/batch"),
        ({"hardware": {"device": "cpu", "num_devices": 1}}, "/hardware"),
        ({"backend": {"family": "cutlass", "adapter": "released"}}, "/backend/family"),
        ({"wall_s": 1.0}, "the steps take longer than the run"),
        ({"steps": [{"tokens": 1, "wall_s": 0.1}]}, "at least 20 steps"),
        ({"notes": "x"}, "notes"),
    ],
)
def test_unlike_or_wrong_reports_are_refused_in_one_line(tmp_path: Path, changed: dict, words: str) -> None:
    done = goodput(tmp_path, report(1), report(1) | changed)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_another_adapter_is_what_is_compared(tmp_path: Path) -> None:
    other = report(2, 0.8, backend={"family": "triton", "adapter": "patched"})
    assert compared(tmp_path, report(1), other)["after"]["adapter"] == "patched"
