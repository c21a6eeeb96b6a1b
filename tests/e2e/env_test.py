"""`env doctor` and `env cache verify|list|gc`, on caches and PATHs of the test's own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
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
    assert {"user namespaces", "cgroups", "rlimits"} <= set(found) and found["pack liger_flce_none_bwd"]["there"]
    assert found["sandbox process"]["there"] and found["python"]["there"]
    assert not found["sandbox podman"]["there"] and found["sandbox podman"]["get"] == "apt-get install -y podman runc"
    assert not found["sandbox bwrap"]["there"] and found["sandbox bwrap"]["get"] == "apt-get install -y bubblewrap"
    assert found["compiler"] == {"part": "compiler", "there": False, "detail": "g++ is not on PATH", "get": "apt-get install -y g++"}
    wheels = next(f for part, f in found.items() if part.startswith("torch-2.11 "))
    assert not wheels["there"] and "fetch.py env" in wheels["get"]
    table = run(tmp_path, "env", "doctor", PATH=str(bare)).stdout
    assert "To get what is missing:" in table and "apt-get install -y bubblewrap" in table


def test_doctor_finds_the_headers_in_the_cache(tmp_path: Path) -> None:
    def headers() -> dict:
        done = run(tmp_path, "env", "doctor", "--json", PATH=str(tmp_path))
        return next(f for f in json.loads(done.stdout)["findings"] if f["part"] == "headers")

    assert headers() == {
        "part": "headers", "there": False, "detail": "missing: libvalijson-dev", "get": "env/bootstrap.sh --host-only"
    }  # fmt: skip
    release = subprocess.run(["sh", "-c", '. /etc/os-release; echo "$ID-$VERSION_ID"'], capture_output=True, text=True).stdout.strip()
    (tmp_path / "patchbench/headers" / release / "libvalijson-dev").mkdir(parents=True)
    assert headers()["there"]


def test_cache_verify_finds_a_changed_file_and_removes_it_when_told(cache: Path) -> None:
    done = run(cache, "env", "cache", "verify")
    assert (done.returncode, done.stdout) == (0, "1 entries checked, 0 damaged\n")
    file = next(cache.rglob("toy.whl"))
    file.write_bytes(b"another")
    done = run(cache, "env", "cache", "verify")
    assert done.returncode == 1 and "toy.whl: its digest is not the one it was fetched by" in done.stdout
    assert file.exists()
    assert json.loads(run(cache, "--json", "env", "cache", "verify", "--remove").stdout)["damaged"][0]["removed"]
    assert not file.exists()
    assert run(cache, "env", "cache", "verify").returncode == 0


def test_cache_gc_keeps_what_is_young_or_needed(cache: Path) -> None:
    folder = cache / "patchbench"
    lock = ROOT / "env/locks/torch-2.11.txt"
    names = subprocess.run([sys.executable, ROOT / "env/fetch.py", "names", lock], capture_output=True, text=True, check=True).stdout
    release = json.loads((ROOT / "env/pins.json").read_text())["upstreams"]["liger-kernel"]["releases"][0]["sha256"]
    kept = ["runs/young", f"env/{names.split()[0]}", f"files/{release}"]
    gone = ["runs/old", "env/torch-2.11-cp311-000000000000", "env/x.tmp", f"files/{'ab' * 32}"]
    for entry in kept + gone:
        (folder / entry).mkdir(parents=True)
        (folder / entry / "content").write_bytes(b"x" * 3_000_000)
    for entry in [*kept[1:], *gone]:
        os.utime(folder / entry, (time.time() - 30 * 86400,) * 2)
    listed = {e["path"]: e["needed_by"] for e in json.loads(run(cache, "--json", "env", "cache", "list").stdout)["entries"]}
    assert [listed[str(folder / entry)] for entry in kept] == ["", "lock torch-2.11", "liger-kernel"]
    assert not any(listed[str(folder / entry)] for entry in gone)
    assert "lock torch-2.11" in run(cache, "env", "cache", "list").stdout
    # The fixture's own file belongs to no release and is young.
    assert run(cache, "env", "cache", "gc", "--dry-run").stdout.endswith("4 entries would go, 11.4 MiB\n")
    assert all((folder / entry).exists() for entry in gone)
    assert run(cache, "env", "cache", "gc").stdout == "4 entries removed, 11.4 MiB\n"
    assert all((folder / entry).exists() for entry in kept) and not any((folder / entry).exists() for entry in gone)
    assert list(cache.rglob("toy.whl"))
