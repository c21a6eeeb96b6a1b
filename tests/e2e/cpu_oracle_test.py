"""A subject on a GPU, judged by a judge that has the CPU half of libtorch alone: on a stack whose GPU is emulated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT, need_reproducer

SLUG = "liger_flce_none_bwd"
EMULATED = Path(__file__).parent / "emulated_gpu"
FEW = [w for c in ("none_random", "none_signed", "none_ones", "mean") for w in ("--case", c)]
need_reproducer(SLUG)


def cached(version: str) -> Path:
    """The wheel of one release of Liger-Kernel."""
    releases = json.loads((ROOT / "env/pins.json").read_text())["upstreams"]["liger-kernel"]["releases"]
    release = next(one for one in releases if one["version"] == version)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "patchbench/files" / release["sha256"] / release["file"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with torch, a release that has the bug, and the emulated GPU."""
    venv = tmp_path_factory.mktemp("stack") / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    build = (PROGRAM.parents[1] / "CMakeCache.txt").read_text()
    torch = re.search(r"^PATCHBENCH_TORCH_SITE:PATH=(.*)$", build, re.MULTILINE)[1]
    site = next(venv.glob("lib/python3*/site-packages"))
    zipfile.ZipFile(cached("0.8.0")).extractall(site)
    (site / "emulated_gpu.py").write_bytes((EMULATED / "emulated_gpu.py").read_bytes())
    (site / "stack.pth").write_text(f"{torch}\nimport emulated_gpu\n")
    return venv


def reproduce(python: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ours = {"PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(tmp_path / "ledger.db"), "PATH": f"{EMULATED}:{os.environ['PATH']}"}
    command = [PROGRAM, "--json", "reproduce", SLUG, "--python", python, "--device", "cuda:0", *words]
    return subprocess.run(command, env=os.environ | ours, capture_output=True, text=True, timeout=600)


def test_the_subject_runs_on_the_gpu_and_the_judge_on_the_cpu(python: Path, tmp_path: Path) -> None:
    if PROGRAM.parents[1].name == "cuda":
        pytest.skip("this judge has CUDA of its own")
    done = reproduce(python, tmp_path, *FEW)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["sentinel"] == "BUG_REPRODUCED(wrong_gradients)"
    (subject,) = answer["subjects"]
    assert subject["context"]["machine"]["oracle"] == "cpu" and subject["context"]["machine"]["device"] == "Emulated GPU (sm_90)"
    assert {o["device"] for o in subject["observations"]} == {"cuda:0"}
    assert done.stderr.count("oracle and plain computation on the CPU: torch finds no cuda:0\n") == 1


def test_a_subject_of_the_judges_own_process_is_refused_there(python: Path, tmp_path: Path) -> None:
    if PROGRAM.parents[1].name == "cuda":
        pytest.skip("this judge has CUDA of its own")
    done = reproduce(python, tmp_path, "--subject", "op", *FEW[:2])
    assert done.returncode == 4 and "subject 'op' runs in the judge, which was built without CUDA" in done.stderr.splitlines()[-1]
