"""`job cache sync` and `job cache verify DIR` on entries that Triton's own cache manager wrote and reads, and on folders that are unfit."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "bin" / "patchbench"

WRITE = """
from triton.runtime.cache import FileCacheManager
entry = FileCacheManager("a" * 64)
paths = {name: entry.put(b"code of " + name.encode(), name) for name in ("k.cubin", "k.json")}
entry.put_group("k.json", paths)
"""
READ = """
from triton.runtime.cache import FileCacheManager
for name, path in FileCacheManager("a" * 64).get_group("k.json").items():
    print(path, open(path).read())
"""


def run(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    return subprocess.run([PROGRAM, *words], env=env, capture_output=True, text=True, timeout=300)


def sync(tmp_path: Path, *words: str | Path) -> dict:
    done = run(tmp_path, "--json", "job", "cache", "sync", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A cache of the forms that compilers give it, with what they leave while they write."""
    folder = tmp_path / "src"
    for name in ("fxgraph/yl/f1/i1", "ab/c1.py", "ab/c1.so", "locks/c1.lock", "ab/.7.8.tmp", "x/tmp.pid_9_y/part"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 1000)
    (folder / "ab/c1.so").chmod(0o755)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Relative path -> content, without the lock of ours."""
    found = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    found.pop(".patchbench-sync.lock", None)
    return found


def test_what_matches_is_skipped_and_what_compilers_still_write_is_left(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "deep" / "dst"
    assert sync(tmp_path, source, target)["copied"] == 3
    assert set(files(target)) == {"fxgraph/yl/f1/i1", "ab/c1.py", "ab/c1.so"}
    assert os.access(target / "ab/c1.so", os.X_OK) and stat.S_IMODE(target.stat().st_mode) == 0o700
    (target / "ab/c1.py").write_bytes(b"x" * 7000)
    again = sync(tmp_path, source, target)
    assert (again["copied"], again["matched"]) == (1, 2) and (target / "ab/c1.py").read_bytes() == b"ab/c1.py" * 1000
    (source / "ab/link.py").symlink_to("/etc/passwd")
    assert len(sync(tmp_path, source, target)["left_out"]) == 1 and not (target / "ab/link.py").exists()


def test_triton_reads_an_entry_where_it_was_brought(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    for folder, code in (("src", WRITE), ("dst", READ)):
        env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / folder)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        if folder == "src":
            assert sync(tmp_path, tmp_path / "src", tmp_path / "dst")["copied"] == 3
            assert sync(tmp_path, tmp_path / "src", tmp_path / "dst")["matched"] == 3
            (tmp_path / "src").rename(tmp_path / "gone")
    assert sorted(line.split(" ", 1)[1] for line in done.stdout.splitlines()) == ["code of k.cubin", "code of k.json"]
    assert all(line.startswith(str(tmp_path / "dst")) for line in done.stdout.splitlines())


def test_a_destination_that_another_can_write_to_is_refused(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "dst"
    target.mkdir()
    target.chmod(0o777)
    done = run(tmp_path, "job", "cache", "sync", source, target)
    assert done.returncode == 4 and "other users can write to it" in done.stderr and not files(target)
    target.chmod(0o1777)
    assert run(tmp_path, "job", "cache", "sync", source, target).returncode == 4
    target.chmod(0o700)
    (target / "ab").mkdir()
    (target / "ab").chmod(0o775)
    assert len(sync(tmp_path, source, target)["left_out"]) == 2 and set(files(target)) == {"fxgraph/yl/f1/i1"}
    (tmp_path / "up").mkdir()
    (tmp_path / "up").chmod(0o757)
    assert run(tmp_path, "job", "cache", "sync", source, tmp_path / "up" / "dst").returncode == 4
    if os.geteuid() == 0:
        os.chown(target, 12345, 12345)
        assert "belongs to another user" in run(tmp_path, "job", "cache", "sync", source, target).stderr


def test_an_unfit_destination_falls_back_to_a_private_folder_and_says_so(tmp_path: Path, source: Path) -> None:
    done = run(tmp_path, "--json", "job", "cache", "sync", "--or-private", source, "/proc/none")
    own = Path(json.loads(done.stdout)["destination"])
    assert done.returncode == 0 and "cannot be written" in done.stderr and f"goes to {own} instead" in done.stderr
    assert own.is_relative_to(tmp_path / "xdg") and len(files(own)) == 3
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_a_killed_sync_leaves_whole_files_and_the_next_one_ends_it(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    for i in range(120):
        (source / f"{i:03}").mkdir(parents=True)
        (source / f"{i:03}" / "k.cubin").write_bytes(i.to_bytes(4, "big") * 50_000)
    wanted, is_cut = files(source), False
    for _ in range(6):
        process = subprocess.Popen(
            [PROGRAM, "job", "cache", "sync", source, target], env=os.environ | {"PATCHBENCH_ROOT": str(ROOT)}, stdout=subprocess.DEVNULL
        )
        seen = len(list(target.glob("*/k.cubin")))
        while process.poll() is None and len(list(target.glob("*/k.cubin"))) < seen + 10:
            time.sleep(0)
        process.kill()
        is_cut |= process.wait() == -9
        got = {k: v for k, v in files(target).items() if ".patchbench-sync." not in k}
        assert all(wanted[name] == content for name, content in got.items())
    assert is_cut
    sync(tmp_path, source, target)
    assert files(target) == wanted


def test_two_syncs_at_once_end_with_one_whole_copy(tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "dst"
    source.mkdir()
    for i in range(200):
        (source / f"{i}.so").write_bytes(os.urandom(20_000))
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT)}
    both = [subprocess.Popen([PROGRAM, "job", "cache", "sync", source, target], env=env, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [p.wait(timeout=120) for p in both] == [0] * 4
    assert files(target) == files(source)


def test_wrong_words_get_one_line(tmp_path: Path, source: Path) -> None:
    for words in ([tmp_path / "none", tmp_path / "dst"], [source, source / "in"], [source, source]):
        done = run(tmp_path, "job", "cache", "sync", *words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert run(tmp_path, "job", "cache", "verify", tmp_path / "none").returncode == 2


INF = float("inf")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "e/k.autotune.json",
            {"key": [1], "configs_timings": [[{"n": 1}, [INF, INF]], [{"n": 2}, [0.5, 0.6]]]},
            {"key": [1], "configs_timings": [[{"n": 1}, [INF, INF]], [{"n": 2}, [INF, INF]]]},
        ),
        (
            "cache/ab12",
            {"cache": {"mm": {"in": {"high": {'a "Infinity': 1.5, "b": INF}}}}},
            {"cache": {"mm": {"in": {"high": {"a": INF, "b": INF}}}}},
        ),
        ("t/latency.json", {"latency": 0.25, "ref_latency": None}, {"latency": INF, "ref_latency": None}),
    ],
)
def test_a_pick_of_inf_ms_is_refused_and_removed(tmp_path: Path, name: str, good: dict, bad: dict) -> None:
    file = tmp_path / "cache_dir" / name
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(good))
    assert run(tmp_path, "job", "cache", "verify", tmp_path / "cache_dir").stdout == "1 entries checked, 0 damaged\n"
    file.write_text(json.dumps(bad))
    done = run(tmp_path, "job", "cache", "verify", tmp_path / "cache_dir")
    assert done.returncode == 1 and "its pick took inf ms" in done.stdout and file.exists()
    run(tmp_path, "job", "cache", "verify", "--remove", tmp_path / "cache_dir")
    assert not file.exists() and run(tmp_path, "job", "cache", "verify", tmp_path / "cache_dir").returncode == 0
