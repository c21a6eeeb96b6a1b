"""`stage --container`: a folder whose subjects run in the base image by the carried runc, or in bubblewrap where that cannot be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT

SLUG = "dsa_graph_capture"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A staged folder, its plan cut down to one reproduction of the red pin."""
    if os.geteuid() != 0 or not shutil.which("runc"):
        pytest.skip("needs root and runc")
    images = subprocess.run([PROGRAM, "env", "images", "--json"], capture_output=True, text=True, check=True)
    if "podman" not in {image["engine"] for image in json.loads(images.stdout)}:
        pytest.skip("no base image; patchbench env images --ensure builds it")
    folder = tmp_path_factory.mktemp("stage") / "staged"
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT)}
    subprocess.run([PROGRAM, "stage", SLUG, folder, "--container", "--device", "cpu"], env=env, check=True)
    lines = (folder / "run").read_text().splitlines()
    plan = [line for line in lines if line.startswith(("patchbench reproduce", "patchbench validate"))]
    (folder / "run").write_text("\n".join(line for line in lines if line not in plan[1:]) + "\n")
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed interpreter that has torch, as a GPU machine has one."""
    venv = tmp_path_factory.mktemp("stack") / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    cache = (PROGRAM.parents[1] / "CMakeCache.txt").read_text()
    site = re.search(r"^PATCHBENCH_TORCH_SITE:PATH=(.*)$", cache, re.MULTILINE)[1]
    (next(venv.glob("lib/python3*/site-packages")) / "torch.pth").write_text(site + "\n")
    return venv / "bin" / "python3"


def sandboxes(folder: Path, python: Path, **changes: str) -> tuple[set[str], str]:
    """The kinds of sandbox that the verdicts of a staged run name, and what the run said."""
    (folder / "ledger.db").unlink(missing_ok=True)
    bare = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PATCHBENCH_DEVICE": "cpu"}
    done = subprocess.run([folder / "run", python], env=bare | changes, capture_output=True, text=True)
    assert (folder / "records.jsonl").exists(), done.stderr
    statements = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    kinds = [re.findall(r'"sandbox": \{[^}]*"kind": "(\w+)"', json.dumps(one)) for one in statements]
    return {kind for some in kinds for kind in some}, done.stderr


def test_a_build_without_cuda_stages_nothing_for_a_gpu(tmp_path: Path) -> None:
    if PROGRAM.parents[1].name == "cuda":
        pytest.skip("this build has CUDA")
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT)}
    done = subprocess.run([PROGRAM, "stage", SLUG, tmp_path / "staged"], env=env, capture_output=True, text=True)
    assert done.returncode == 4 and not (tmp_path / "staged").exists(), done.stderr
    assert done.stderr.count("\n") == 1 and f"repro_{SLUG} was built without CUDA" in done.stderr


def test_a_staged_run_is_isolated_by_the_carried_runc(staged: Path, python: Path) -> None:
    assert (staged / "bin" / "runc").exists() and any((staged / "lib").glob("libseccomp*"))
    kinds, said = sandboxes(staged, python)
    assert kinds == {"runc"}, said
    bundle = staged / "cache" / "patchbench" / "bundle"
    assert bundle.stat().st_mode & 0o077 == 0, "programs that are set-uid can be reached by others"
    assert (bundle / "rootfs" / "etc" / "debian_version").read_text().startswith("12")


def test_where_the_container_cannot_start_bubblewrap_is_announced(staged: Path, python: Path) -> None:
    runc = staged / "bin" / "runc"
    kept = runc.read_bytes()
    runc.write_text("#!/bin/sh\necho broken on purpose >&2\nexit 1\n")
    try:
        kinds, said = sandboxes(staged, python)
    finally:
        runc.write_bytes(kept)
    assert kinds == {"bwrap"} and "runc cannot be used here (runc: broken on purpose" in said, said
