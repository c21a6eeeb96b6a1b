"""env/sanitize.py with a stand-in for compute-sanitizer: what is run, and what counts as clean."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "env"))
import sanitize  # noqa: E402

TOOL = """#!/usr/bin/env python3
import os, subprocess, sys, time
words = sys.argv[1:]
if "--version" in words or "--kernel-name" in words:
    sys.exit(1)
tool, log = (words[words.index(option) + 1] for option in ("--tool", "--log-file"))
command = words[next(i for i, word in enumerate(words) if word.startswith("/") and word != log) :]
name = os.path.basename(command[0])
errors = int(tool != os.environ.get("BLIND") if name == "sanitizer_control" else name == "bad_test" and tool == "racecheck")
time.sleep(60 * (name == "slow_test"))
summary = f"RACECHECK SUMMARY: {errors} hazards displayed" if tool == "racecheck" else f"ERROR SUMMARY: {errors} error"
with open(log, "w") as f:
    print("========= COMPUTE-SANITIZER", *["========= Error: race at 0x10"] * errors, f"========= {summary}", sep="\\n", file=f)
sys.exit(subprocess.run(command).returncode)
"""
PROGRAM = """#!/bin/sh
if [ "$1" = --gtest_list_tests ]; then
  printf '%s\\n' 'Running main()' Cases/Op. '  Runs/a_cpu  # x' '  Runs/a_cuda  # x' '  Runs/a_cuda_plain' '  Graph/a_cuda'
  exit 0
fi
echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $@" >>"$0.calls"
echo '[       OK ] Cases/Op.Runs/a_cuda (1 ms)'
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Test programs, the control and the stand-in, which is first on the PATH."""
    for name, text in (
        ("good_test", PROGRAM),
        ("sanitizer_control", PROGRAM),
        ("compute-sanitizer", TOOL),
        ("nvidia-smi", "#!/bin/sh\necho a GPU, 1\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "libpatchbench_ops.so").write_bytes(b"library")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def rows_of(folder: Path, *words: str) -> tuple[int, dict[str, object]]:
    status = sanitize.main([str(folder), str(folder / "out.json"), *words])
    return status, json.loads((folder / "out.json").read_text())


def test_every_tool_runs_over_the_cuda_tests(folder: Path) -> None:
    status, said = rows_of(folder)
    assert status == 0 and [(row["tool"], row["passed"], row["errors"]) for row in said["rows"]] == [
        (tool, 1, 0) for tool in sanitize.TOOLS
    ]
    # The first option that the tool takes.
    assert said["filter"] == ["--kernel-regex", "kns=patchbench"]
    calls = sorted((folder / "good_test.calls").read_text().splitlines())
    everything = "--gtest_filter=Cases/Op.Runs/a_cuda:Cases/Op.Graph/a_cuda"
    assert calls == [f" {everything}"] * 2 + ["1 --gtest_filter=Cases/Op.Runs/a_cuda"] * 2


def test_an_error_is_a_red_row_with_its_report(folder: Path) -> None:
    (folder / "good_test").rename(folder / "bad_test")
    status, said = rows_of(folder)
    assert status == 1 and [row["errors"] for row in said["rows"]] == [0, 1, 0, 0]
    assert said["rows"][1]["report"] == ["Error: race at 0x10"]


def test_a_lane_that_does_not_see_its_control_is_red(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIND", "synccheck")
    status, said = rows_of(folder)
    assert status == 1 and all(row["errors"] == 0 for row in said["rows"])


def test_what_does_not_end_in_time_is_recorded_so(folder: Path) -> None:
    (folder / "good_test").rename(folder / "slow_test")
    status, said = rows_of(folder, "--seconds", "4")
    assert status == 1 and {(row["errors"], row["ended"]) for row in said["rows"]} == {(None, "stopped")}
