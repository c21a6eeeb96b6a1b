"""The wheel patchbench-ops: whole, the same bytes each time, and enough by itself for an op forward and backward.

env/try_ops.sh runs the ops' tests on it under torch 2.11 and 2.15.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
LIBRARY = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "wheel" / "libpatchbench_ops.so"
if not LIBRARY.exists():
    pytest.skip(f"no op library at {LIBRARY}: build patchbench_ops_wheel", allow_module_level=True)
BUILD = "import sys; sys.path.insert(0, sys.argv[1]); import build_wheel; print(build_wheel.build_wheel(sys.argv[2]))"
USE = """import patchbench_ops, torch
q, kv = torch.randn(1, 2, 2, 32, requires_grad=True), torch.randn(1, 4, 1, 32, requires_grad=True)
out, _ = patchbench_ops.sparse_mla(q, kv, torch.zeros(1, 2, 1, 3, dtype=torch.int32), softmax_scale=1.0, head_dim_v=16)
out.sum().backward()
print(patchbench_ops.__file__, patchbench_ops.library.path(), bool((kv.grad != 0).any()), sep="\\n")
"""


def build(folder: Path) -> Path:
    folder.mkdir()
    environment = os.environ | {"PATCHBENCH_OPS_LIB": str(LIBRARY)}
    words = [sys.executable, "-c", BUILD, ROOT / "packs" / "python", folder]
    return folder / subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_the_same_each_time_and_holds_every_file_under_its_digest(tmp_path: Path) -> None:
    first = build(tmp_path / "a")
    assert build(tmp_path / "b").read_bytes() == first.read_bytes()
    wheel = zipfile.ZipFile(first)
    record = next(name for name in wheel.namelist() if name.endswith("RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(wheel.read(record).decode().splitlines())}
    assert set(rows) == set(wheel.namelist())
    for name, digest in rows.items():
        wanted = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
        assert name == record or digest == f"sha256={wanted}", name
    # No path of the machine that built it.
    text = wheel.read("patchbench_ops/lib/libpatchbench_ops.so")
    assert str(ROOT).encode() not in text and str(Path.home()).encode() not in text


def test_pip_installs_it_and_it_runs_without_a_clone(tmp_path: Path) -> None:
    wheel, target = build(tmp_path / "wheel"), tmp_path / "target"
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", target, wheel]
    if subprocess.run([*words[:3], "--version"], capture_output=True).returncode != 0:
        pytest.skip("this interpreter has no pip")
    subprocess.run(words, capture_output=True, check=True)
    site = Path(torch.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "PATCHBENCH_OPS_LIB"} | {"PYTHONPATH": f"{target}:{site}"}
    done = subprocess.run([sys.executable, "-c", USE], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    package, library, is_used = done.stdout.splitlines()
    assert Path(package).is_relative_to(target) and Path(library).is_relative_to(target) and is_used == "True"
