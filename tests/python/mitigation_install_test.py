"""`pip install ./mitigations` with no network: the wheel is whole, and what it installs runs."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "mitigations"
NUM_PACKS = len(list(ROOT.glob("packs/*/manifest.json")))
ASK = """import json, patchbench_mitigations as p; from patchbench_mitigations import registry
print(json.dumps([p.__file__, registry.known()]))"""
BUILD = "import sys, scikit_build_core.build as b; sys.stderr.write(b.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def backend() -> str:
    """The folder of the locked build backend, from the cache."""
    words = [sys.executable, ROOT / "env/fetch.py", "env", ROOT / "env/locks/wheels.txt"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_the_wheel_holds_every_file_under_its_digest(tmp_path: Path, backend: str) -> None:
    def build(folder: Path) -> bytes:
        folder.mkdir()
        words = [sys.executable, "-c", BUILD, folder]
        subprocess.run(words, env=os.environ | {"PYTHONPATH": backend}, cwd=SOURCE, capture_output=True, check=True)
        (made,) = folder.glob("patchbench_mitigations-*-py3-none-any.whl")
        return made.read_bytes()

    first = build(tmp_path / "a")
    assert build(tmp_path / "b") == first
    wheel = zipfile.ZipFile(io.BytesIO(first))
    record = next(n for n in wheel.namelist() if n.endswith("RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(wheel.read(record).decode()))}
    assert set(rows) == set(wheel.namelist())
    for path, digest in rows.items():
        if path != record:
            wanted = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(path)).digest()).rstrip(b"=").decode()
            assert digest == f"sha256={wanted}", path
    source = {str(f.relative_to(SOURCE)) for f in (SOURCE / "patchbench_mitigations").rglob("*") if f.suffix in (".py", ".json")}
    assert source <= set(wheel.namelist()) and not any(name.endswith(".so") for name in wheel.namelist())


def test_pip_installs_it_without_a_network(tmp_path: Path, backend: str) -> None:
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        pytest.skip("this interpreter has no pip")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": backend}
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--target", tmp_path, SOURCE]
    done = subprocess.run(words, env=os.environ | nowhere, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(tmp_path)}
    file, known = json.loads(subprocess.run([sys.executable, "-c", ASK], env=env, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert Path(file).is_relative_to(tmp_path) and len(known) == NUM_PACKS
