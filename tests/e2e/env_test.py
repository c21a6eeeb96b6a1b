"""`env doctor`, `cache verify` and `cache prune`, on caches and PATHs of the test's own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "bin" / "patchbench"


def run(cache: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The program with a cache of the test's own."""
    given = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "XDG_CACHE_HOME": str(cache)} | env
    return subprocess.run([PROGRAM, *words], env=given, capture_output=True, text=True, timeout=120)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of one fetched file."""
    data = b"a release"
    folder = tmp_path / "patchbench" / "files" / hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True)
    (folder / "toy.whl").write_bytes(data)
    return tmp_path


def test_doctor_names_each_part_and_the_command_that_brings_it(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("python3", "sh", "dpkg-query"):
        if Path("/usr/bin", name).exists():
            (bare / name).symlink_to(Path("/usr/bin", name))
    done = run(tmp_path, "env", "doctor", "--json", PATH=str(bare))
    assert done.returncode == 0, done.stderr
    found = {f["part"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["sandbox process"]["there"] and found["python"]["there"]
    assert not found["sandbox podman"]["there"] and found["sandbox podman"]["get"] == "apt-get install -y podman runc"
    assert not found["sandbox bwrap"]["there"] and found["sandbox bwrap"]["get"] == "apt-get install -y bubblewrap"
    assert found["compiler"] == {"part": "compiler", "there": False, "detail": "g++ is not on PATH", "get": "apt-get install -y g++"}
    wheels = next(f for part, f in found.items() if part.startswith("wheels"))
    assert not wheels["there"] and "fetch.py env" in wheels["get"]
    table = run(tmp_path, "env", "doctor", PATH=str(bare)).stdout
    assert "To get what is missing:" in table and "apt-get install -y bubblewrap" in table


def test_cache_verify_finds_a_changed_file_and_removes_it_when_told(cache: Path) -> None:
    done = run(cache, "cache", "verify")
    assert (done.returncode, done.stdout) == (0, "1 entries checked, 0 damaged\n")
    file = next(cache.rglob("toy.whl"))
    file.write_bytes(b"another")
    done = run(cache, "cache", "verify")
    assert done.returncode == 1 and "toy.whl: its digest is not the one it was fetched by" in done.stdout
    assert file.exists()
    assert json.loads(run(cache, "--json", "cache", "verify", "--remove").stdout)["damaged"][0]["removed"]
    assert not file.exists()
    assert run(cache, "cache", "verify").returncode == 0


def test_cache_prune_keeps_what_is_young_or_fetched(cache: Path) -> None:
    folder = cache / "patchbench"
    old, young = folder / "runs" / "old", folder / "runs" / "young"
    for run_folder in (old, young):
        run_folder.mkdir(parents=True)
        (run_folder / "outputs").write_bytes(b"x" * 3_000_000)
    long_ago = time.time() - 30 * 86400
    os.utime(old, (long_ago, long_ago))
    assert run(cache, "cache", "prune").stdout == "1 entries removed, 2 MiB freed\n"
    assert young.exists() and not old.exists()
    assert list(cache.rglob("toy.whl"))
