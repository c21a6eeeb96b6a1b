"""The downloader against an index of our own on loopback: digests, resuming, tampering, unpacking, locks."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import os
import pty
import re
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FETCH = ROOT / "env" / "fetch.py"


class Index:
    """A PEP 503 index in memory that counts what it serves and can break a connection."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.break_after, self.pause_s, self.is_dead = 0, 0.0, False
        self.held, self.is_free = "", threading.Event()  # a file that is not sent before
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802
                index.answer(self)

            def log_message(self, *_: object) -> None:
                """Silence."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/simple"

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """A project's page, or a file from where the Range says."""
        asked = request.headers.get("Range", "")
        self.requests.append((request.path, asked))
        name = request.path.rsplit("/", 1)[-1]
        if request.path.startswith("/simple/"):
            body = "".join(f'<a href="/files/{n}#sha256={sha(b)}">{n}</a>' for n, b in self.files.items()).encode()
        elif name in self.files:
            body = self.files[name]
        else:
            request.send_error(404)
            return
        start = int(asked[6:-1]) if asked else 0
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(body) - start))
        request.end_headers()
        sent = body[start:]
        if self.held and name == self.held:
            self.is_free.wait(60)
        if self.break_after and request.path.startswith("/files/"):
            sent, self.break_after = sent[: self.break_after], 0
        if self.is_dead and request.path.startswith("/files/"):
            sent = b""
        for at in range(0, len(sent), 1 << 18):
            time.sleep(self.pause_s)
            request.wfile.write(sent[at : at + (1 << 18)])
        request.close_connection = True

    def downloads(self) -> list[tuple[str, str]]:
        return [r for r in self.requests if r[0].startswith("/files/")]


def sha(data: bytes) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(data).hexdigest()


def wheel(entries: dict[str, bytes]) -> bytes:
    """A zip of these entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, data in entries.items():
            z.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "patchbench"


def start(index: Index, cache: Path, *words: object) -> subprocess.Popen[str]:
    """fetch.py on its way, against the index and a cache of the test's own."""
    env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    env |= {"PIP_INDEX_URL": index.url, "XDG_CACHE_HOME": str(cache.parent)}
    return subprocess.Popen([sys.executable, FETCH, *map(str, words)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def fetch(index: Index, cache: Path, *words: object) -> tuple[int, str, str]:
    """(exit status, stdout without its end, stderr)."""
    child = start(index, cache, *words)
    out, err = child.communicate(timeout=60)
    return child.returncode, out.strip(), err


def lock_of(folder: Path, *lines: str) -> Path:
    """A lock file of these lines."""
    path = folder / "toy.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_is_fetched_once_and_its_path_printed(index: Index, cache: Path) -> None:
    index.files["a.whl"] = b"abc"
    status, path, _ = fetch(index, cache, "file", "A.b_c", "a.whl", sha(b"abc"))
    assert (status, Path(path).read_bytes()) == (0, b"abc")
    assert index.requests[0][0] == "/simple/a-b-c/"
    assert fetch(index, cache, "file", "A.b_c", "a.whl", sha(b"abc"))[:2] == (0, path)
    assert len(index.downloads()) == 1


def test_a_file_of_another_digest_is_refused_and_not_kept(index: Index, cache: Path) -> None:
    index.files["a.whl"] = b"evil"
    status, path, err = fetch(index, cache, "file", "a", "a.whl", sha(b"good"))
    assert (status, path) == (3, "") and "is not the locked" in err
    assert not list(cache.rglob("a.whl*"))


def test_a_tampered_cached_file_is_fetched_again(index: Index, cache: Path) -> None:
    index.files["a.whl"] = b"good"
    path = Path(fetch(index, cache, "file", "a", "a.whl", sha(b"good"))[1])
    path.write_bytes(b"evil")
    status, again, err = fetch(index, cache, "file", "a", "a.whl", sha(b"good"))
    assert (status, Path(again).read_bytes()) == (0, b"good")
    assert "digest differs" in err


def test_a_broken_connection_resumes_where_it_broke(index: Index, cache: Path) -> None:
    index.files["a.whl"] = bytes(range(256)) * 4096
    index.break_after = 300_000
    status, path, _ = fetch(index, cache, "file", "a", "a.whl", sha(index.files["a.whl"]))
    assert (status, Path(path).read_bytes()) == (0, index.files["a.whl"])
    assert [r for _, r in index.downloads()] == ["", "bytes=300000-"]


def test_what_a_killed_run_left_is_used_or_thrown_away(index: Index, cache: Path) -> None:
    data = b"0123456789" * 1000
    index.files["a.whl"] = data
    part = cache / "files" / sha(data) / "a.whl.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(data[:4000])
    assert fetch(index, cache, "file", "a", "a.whl", sha(data))[0] == 0
    assert [r for _, r in index.downloads()] == ["bytes=4000-"]
    (part.parent / "a.whl").unlink()
    part.write_bytes(b"x" * 4000)
    status, path, err = fetch(index, cache, "file", "a", "a.whl", sha(data))
    assert (status, Path(path).read_bytes()) == (0, data)
    assert "discarded" in err


def test_two_processes_fetch_one_file_once(index: Index, cache: Path) -> None:
    index.files["a.whl"] = os.urandom(1 << 20)
    words = ("file", "a", "a.whl", sha(index.files["a.whl"]))
    children = [start(index, cache, *words) for _ in range(6)]
    printed = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0] * 6
    assert len(printed) == 1 and len(index.downloads()) == 1


def test_an_index_out_of_reach_or_without_the_file_is_one_line(index: Index, cache: Path) -> None:
    status, _, err = fetch(index, cache, "file", "a", "absent.whl", sha(b""))
    assert status == 1 and "has no file absent.whl" in err
    assert len(err.splitlines()) == 1


def test_an_environment_is_unpacked_as_an_installer_would(index: Index, cache: Path, tmp_path: Path) -> None:
    index.files["toy-1-py2-none-any.whl"] = wheel({"toy/old.py": b""})
    fitting = wheel({"toy/__init__.py": b"x = 1\n", "toy-1.data/purelib/extra.py": b"", "toy-1.data/scripts/run": b"#!"})
    index.files["toy-1-cp311-cp311-manylinux_2_28_x86_64.whl"] = fitting
    index.files["toy-1-cp312-cp312-manylinux_2_28_x86_64.whl"] = wheel({"toy/other.py": b""})
    digests = " ".join(f"--hash=sha256:{sha(b)}" for b in index.files.values())
    status, folder, _ = fetch(index, cache, "env", lock_of(tmp_path, f"toy==1 {digests}"), "--tag", "cp311")
    assert status == 0 and Path(folder).name.startswith("toy-cp311-")
    files = sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())
    assert files == ["bin/run", "extra.py", "patchbench-env.json", "toy/__init__.py"]
    assert os.access(Path(folder, "bin/run"), os.X_OK)
    asked = len(index.requests)
    assert fetch(index, cache, "env", tmp_path / "toy.txt", "--tag", "cp311")[:2] == (0, folder)
    assert len(index.requests) == asked


def test_two_environments_may_share_a_wheel(index: Index, cache: Path, tmp_path: Path) -> None:
    """Each throws its wheels away once they are unpacked; the other fetches what is gone again. Names with dots are two folders."""
    shared, index.held = "a-1-py3-none-any.whl", "b-1-py3-none-any.whl"
    index.files = {shared: wheel({"a.py": b""}), index.held: wheel({"b.py": b""})}
    rows = [f"{name[0]}==1 --hash=sha256:{sha(body)}" for name, body in index.files.items()]
    both, one = (lock_of(tmp_path, *lines).rename(tmp_path / name) for name, lines in (("toy-2.11.txt", rows), ("toy-2.15.txt", rows[:1])))
    first = start(index, cache, "env", both, "--tag", "cp311")
    kept = cache / "files" / sha(index.files[shared]) / shared
    while not kept.exists():
        assert first.poll() is None
    assert fetch(index, cache, "env", one, "--tag", "cp311")[0] == 0 and not kept.exists()
    assert [path.name.startswith("toy-2.11-cp311-") for path in (cache / "env").glob("*.tmp")] == [True]
    index.is_free.set()
    folder = Path(first.communicate(timeout=60)[0].strip())
    assert first.returncode == 0 and (folder / "a.py").exists() and (folder / "b.py").exists()


def test_an_environment_shows_how_far_it_is_and_goes_on_after_a_break(index: Index, cache: Path, tmp_path: Path) -> None:
    body = wheel({"a/big.bin": os.urandom(3 << 20)})
    index.files["a-1-py3-none-any.whl"], index.break_after, index.pause_s = body, 1 << 20, 0.05
    lock = lock_of(tmp_path, f"# Size: {len(body)} bytes to fetch", f"a==1 --hash=sha256:{sha(body)}")
    screen, terminal = pty.openpty()
    env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    env |= {"PIP_INDEX_URL": index.url, "XDG_CACHE_HOME": str(cache.parent)}
    with subprocess.Popen([sys.executable, FETCH, "env", lock], env=env, stdout=subprocess.PIPE, stderr=terminal) as child:
        os.close(terminal)
        said = b""
        with contextlib.suppress(OSError):  # a terminal that nobody holds any more reads as an error
            while data := os.read(screen, 4096):
                said += data
        folder = Path(child.communicate()[0].decode().strip())
    assert child.returncode == 0 and (folder / "a/big.bin").stat().st_size == 3 << 20
    assert re.search(rb"\[#+\.*\] \d+ of 3 MiB, \d+\.\d MiB/s, \d+ s left", said), said
    assert b"interrupted at" in said and index.downloads()[1][1] == f"bytes={1 << 20}-"


def test_a_connection_that_never_brings_anything_ends(index: Index, cache: Path) -> None:
    index.files["a.whl"], index.is_dead = b"abc", True
    status, _, err = fetch(index, cache, "file", "a", "a.whl", sha(b"abc"))
    assert status == 1 and "run the command again to resume" in err and len(index.downloads()) == 5


def test_a_wheel_that_leaves_its_folder_is_refused(index: Index, cache: Path, tmp_path: Path) -> None:
    index.files["toy-1-py3-none-any.whl"] = wheel({"../../planted.py": b""})
    lock = lock_of(tmp_path, f"toy==1 --hash=sha256:{sha(index.files['toy-1-py3-none-any.whl'])}")
    status, _, err = fetch(index, cache, "env", lock, "--tag", "cp311")
    assert status == 3 and "leaves the folder" in err
    assert not list(tmp_path.rglob("planted.py"))


def test_a_lock_without_a_wheel_for_the_interpreter_says_so(index: Index, cache: Path, tmp_path: Path) -> None:
    index.files["toy-1-cp312-cp312-manylinux_2_28_x86_64.whl"] = wheel({"a": b""})
    lock = lock_of(tmp_path, f"toy==1 --hash=sha256:{sha(next(iter(index.files.values())))}")
    status, _, err = fetch(index, cache, "env", lock, "--tag", "cp311")
    assert status == 1 and "toy==1 has no locked wheel for cp311" in err


def test_a_lock_over_another_holds_its_own_wheels_alone(index: Index, cache: Path, tmp_path: Path) -> None:
    index.files["toy-1-py3-none-any.whl"] = wheel({"toy.py": b"x = 1"})
    lock = lock_of(tmp_path, "-r base.txt", f"toy==1 --hash=sha256:{sha(index.files['toy-1-py3-none-any.whl'])}")
    status, out, _ = fetch(index, cache, "env", lock, "--tag", "cp311")
    assert status == 0 and sorted(p.name for p in Path(out.strip()).iterdir()) == ["patchbench-env.json", "toy.py"]


@pytest.mark.parametrize("line", ["toy==1", "toy>=1 --hash=sha256:" + "0" * 64, "toy==1 --hash=md5:00", "-r ../other.txt"])
def test_a_lock_line_without_version_and_digest_is_refused(index: Index, cache: Path, tmp_path: Path, line: str) -> None:
    status, _, err = fetch(index, cache, "env", lock_of(tmp_path, "# head", line), "--tag", "cp311")
    assert status == 2 and "toy.txt:2: want NAME==VERSION" in err


def test_files_of_an_archive_are_read_without_unpacking_it(index: Index, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "toy.whl").write_bytes(wheel({"toy-1.data/purelib/toy/a.py": "x = 'é'\r\n".encode(), "toy/b.py": b"y"}))
    status, out, _ = fetch(index, cache, "read", tmp_path / "toy.whl", "toy/a.py", "toy/c.py")
    assert status == 0 and json.loads(out) == {"toy/a.py": "x = 'é'\r\n", "toy/c.py": None}
    with tarfile.open(tmp_path / "toy-1.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "toy.whl", "toy-1/binary.py")
        (tmp_path / "a.py").write_text("x = 1\n")
        tar.add(tmp_path / "a.py", "toy-1/toy/a.py")
    status, out, _ = fetch(index, cache, "read", tmp_path / "toy-1.tar.gz", "toy-1/toy/a.py", "toy-1/toy")
    assert status == 0 and json.loads(out) == {"toy-1/toy/a.py": "x = 1\n", "toy-1/toy": None}
    for archive, path in (("toy-1.tar.gz", "toy-1/binary.py"), ("a.py", "x"), ("none.whl", "x")):
        status, _, err = fetch(index, cache, "read", tmp_path / archive, path)
        assert status == 2 and "cannot be read" in err


@pytest.mark.parametrize("harm", ["change", "add", "remove", "bytecode", "shipped_bytecode"])
def test_verify_names_what_differs(index: Index, cache: Path, tmp_path: Path, harm: str) -> None:
    index.files["toy-1-py3-none-any.whl"] = wheel({"toy/a.py": b"a", "toy/__pycache__/b.pyc": b"b"})
    lock = lock_of(tmp_path, f"toy==1 --hash=sha256:{sha(index.files['toy-1-py3-none-any.whl'])}")
    folder = Path(fetch(index, cache, "env", lock, "--tag", "cp311")[1])
    assert fetch(index, cache, "verify", folder)[0] == 0
    match harm:
        case "change":
            (folder / "toy/a.py").write_bytes(b"A")
        case "add":
            (folder / "toy/c.py").write_bytes(b"")
        case "remove":
            (folder / "toy/a.py").unlink()
        case "bytecode":
            (folder / "toy/__pycache__/a.cpython-311.pyc").write_bytes(b"")
        case "shipped_bytecode":
            (folder / "toy/__pycache__/b.pyc").write_bytes(b"B")
    status, _, err = fetch(index, cache, "verify", folder)
    if harm == "bytecode":
        assert status == 0
    else:
        named = {"change": "a.py", "add": "c.py", "remove": "a.py", "shipped_bytecode": "b.pyc"}[harm]
        assert status == 3 and named in err


def test_pins_fetches_every_release_that_is_not_there(index: Index, cache: Path, tmp_path: Path) -> None:
    index.files = {f"toy-{n}-py3-none-any.whl": f"release {n}".encode() for n in range(4)}
    releases = [{"file": n, "sha256": sha(b)} for n, b in index.files.items()]
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps({"upstreams": {"toy": {"project": "toy", "releases": releases}}}))
    assert fetch(index, cache, "pins", pins, "toy")[0] == 0
    assert len(index.downloads()) == 4
    asked = len(index.requests)
    assert fetch(index, cache, "pins", pins, "toy")[0] == 0
    assert len(index.requests) == asked
    status, _, err = fetch(index, cache, "pins", pins, "tony")
    assert status == 2 and "one of: toy" in err


def toy_root(folder: Path, index: Index, *upstreams: dict[str, object]) -> Path:
    """env/pins.json of a repository with two packs, one with a reproducer; its upstream "toy" has releases 1 to 6. `upstreams` are
    more rows of that pack's manifest."""
    index.files = {f"toy-{n}-py3-none-any.whl": f"release {n}".encode() for n in range(1, 7)}
    releases = [{"version": n.split("-")[1], "file": n, "sha256": sha(b)} for n, b in index.files.items()]
    for path in ("env", "packs/runs", "packs/waits", "repro/runs", "mitigations/patchbench_mitigations/data"):
        (folder / path).mkdir(parents=True)
    (folder / "repro/runs/repro.cpp").touch()
    for slug, rows in (
        ("runs", [{"name": "toy", "red_pin": "2"}, {"name": "commits", "red_pin": "git:0"}, *upstreams]),
        ("waits", [{"name": "absent", "red_pin": "1"}]),
    ):
        (folder / "packs" / slug / "manifest.json").write_text(json.dumps({"slug": slug, "upstreams": rows}))
    data = {"package": "toy", "releases": {"3": {"seen": "wrong", "mitigated": "00"}, "4": {"seen": "absent"}}}
    (folder / "mitigations/patchbench_mitigations/data/runs.json").write_text(json.dumps(data))
    pins = folder / "env/pins.json"
    toys = {name: {"project": "toy", "releases": releases if name == "toy" else []} for name in ("toy", "commits")}
    pins.write_text(json.dumps({"upstreams": toys}))
    return pins


def test_pins_without_names_are_what_a_first_use_and_the_tests_need(index: Index, cache: Path, tmp_path: Path) -> None:
    pins = toy_root(tmp_path, index, {"name": "toy", "test_releases": ["1"]})
    status, _, err = fetch(index, cache, "pins", pins)
    assert status == 0 and "absent" not in err
    assert sorted(path[-len("1-py3-none-any.whl") :][0] for path, _ in index.downloads()) == ["1", "2", "3", "6"]
    assert "toy: 4 of 4 releases fetched, the others were cached; 2 not needed yet" in err
    assert fetch(index, cache, "pins", pins, "toy")[0] == 0
    assert len(index.downloads()) == 6


def test_tests_may_need_every_release_of_an_upstream(index: Index, cache: Path, tmp_path: Path) -> None:
    assert fetch(index, cache, "pins", toy_root(tmp_path, index, {"name": "toy", "test_releases": ["*"]}))[0] == 0
    assert len(index.downloads()) == 6


@pytest.mark.parametrize(("name", "version"), [("toy", "9"), ("commits", "1")])
def test_a_release_that_tests_need_is_locked(index: Index, cache: Path, tmp_path: Path, name: str, version: str) -> None:
    status, _, err = fetch(index, cache, "pins", toy_root(tmp_path, index, {"name": name, "test_releases": [version]}))
    assert status == 2 and "env/pins.json does not lock" in err and not index.downloads()


def test_words_it_does_not_know_show_its_usage(index: Index, cache: Path) -> None:
    status, out, err = fetch(index, cache, "nonsense")
    assert (status, out) == (2, "") and "fetch.py file PROJECT" in err
