"""`pip install ./mitigations` with no network and nothing but pip: the wheel is whole, and what it installs runs."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "mitigations"
ASK = """import json, patchbench_mitigations as p; from patchbench_mitigations import registry
print(json.dumps([p.__file__, registry.known()]))"""


def test_the_wheel_holds_every_file_under_its_digest(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("build_wheel", SOURCE / "build_wheel.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    name = backend.build_wheel(str(tmp_path))
    first = (tmp_path / name).read_bytes()
    assert backend.build_wheel(str(tmp_path)) == name and (tmp_path / name).read_bytes() == first
    wheel = zipfile.ZipFile(io.BytesIO(first))
    record = next(n for n in wheel.namelist() if n.endswith("RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(wheel.read(record).decode()))}
    assert set(rows) == set(wheel.namelist())
    for path, digest in rows.items():
        if path != record:
            wanted = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(path)).digest()).rstrip(b"=").decode()
            assert digest == f"sha256={wanted}", path
    source = {str(f.relative_to(SOURCE)) for f in (SOURCE / "patchbench_mitigations").rglob("*") if f.suffix in (".py", ".json")}
    assert source <= set(wheel.namelist())


def test_pip_installs_it_without_a_network(tmp_path: Path) -> None:
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        pytest.skip("this interpreter has no pip")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", tmp_path, SOURCE]
    done = subprocess.run(words, env=os.environ | nowhere, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(tmp_path)}
    file, known = json.loads(subprocess.run([sys.executable, "-c", ASK], env=env, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert Path(file).is_relative_to(tmp_path) and len(known) == 8
