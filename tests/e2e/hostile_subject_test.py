"""A hostile subject, seen from the inside: what it can reach and do in each sandbox that this machine has.

The plain process claims neither network nor file isolation; the tests show that it has none, so the same probes are known to
be able to see a hole. Programs are those of $PATCHBENCH_BUILD (default build/cpu).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "bin"
KINDS = ("podman", "runc", "bwrap", "process")
ISOLATED = ("podman", "runc", "bwrap")


def findings() -> dict[str, dict[str, object]]:
    """What `patchbench env doctor` found, by part."""
    out = subprocess.run([BIN / "patchbench", "env", "doctor", "--json"], capture_output=True, text=True, check=True).stdout
    return {f["part"]: f for f in json.loads(out)["findings"]}


@pytest.fixture(scope="session")
def images() -> dict[str, dict[str, str]]:
    """Engine -> base image; only what is built already."""
    done = subprocess.run([BIN / "patchbench", "env", "images", "--json"], capture_output=True, text=True, check=True)
    return {i["engine"]: i for i in json.loads(done.stdout)}


@pytest.fixture(scope="session")
def usable() -> dict[str, str]:
    """Kind -> why it cannot be used here, "" if it can."""
    found = findings()
    said = {k: "" if found[f"sandbox {k}"]["there"] else str(found[f"sandbox {k}"]["detail"]) for k in KINDS if k != "runc"}
    return said | {"runc": "" if os.geteuid() == 0 and shutil.which("runc") else "needs root and runc"}


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, images: dict[str, dict[str, str]]) -> Path:
    """A cache that holds podman's base image as a bundle, as the `run` of a staged folder unpacks it."""
    if "podman" not in images:
        pytest.skip("runc: no base image; patchbench env images --ensure builds it")
    cache = tmp_path_factory.mktemp("bundle")
    rootfs = cache / "patchbench" / "bundle" / "rootfs"
    rootfs.mkdir(parents=True)
    (rootfs.parent / "image.json").write_text(json.dumps({"tree_digest": "0", "python": images["podman"]["python"], "tag": "cp311"}))
    name = subprocess.run(["podman", "create", images["podman"]["id"], "true"], capture_output=True, text=True, check=True).stdout.strip()
    try:
        subprocess.run(["sh", "-c", 'podman export "$0" | tar -C "$1" -xpf -', name, rootfs], check=True)
    finally:
        subprocess.run(["podman", "rm", name], stdout=subprocess.DEVNULL)
    return cache


class Sandbox:
    """One kind; `run` starts a Python text inside and returns (exit status, report, log)."""

    def __init__(self, kind: str, folder: Path, images: dict[str, dict[str, str]]):
        self.kind, self.folder, self.work = kind, folder, folder / "work"
        self.work.mkdir()
        (folder / "upstream").mkdir()
        (folder / "upstream" / "module.py").write_text("value = 1\n")
        self.image = images.get(kind, {}).get("id", "")
        self.python = images.get("podman" if kind == "runc" else kind, {}).get("python", "/usr/bin/python3")

    def spec(self, script: str, **changes: object) -> Path:
        """Writes a spec that runs a script, with tight limits."""
        spec = {
            "kind": self.kind, "image": self.image, "python": self.python, "argv": [self.python, "-c", script],
            "env": {"PATH": "/usr/bin:/bin", "HOME": "/work/home", "UPSTREAM": "/upstream", "WORK": "/work"},
            "mounts": [
                {"host": str(self.work), "inside": "/work", "writable": True},
                {"host": str(self.folder / "upstream"), "inside": "/upstream", "writable": False},
            ],
            "cwd": "/work", "wants_gpu": False, "memory_bytes": 512 << 20, "max_processes": 64, "timeout_s": 60,
            "log": str(self.folder / "log"), "report": str(self.folder / "report.json"),
        }  # fmt: skip
        path = self.folder / "spec.json"
        path.write_text(json.dumps(spec | changes))
        return path

    def run(self, script: str, **changes: object) -> tuple[int, dict[str, object], str]:
        """Runs a script to its end."""
        done = subprocess.run([BIN / "patchbench-sandbox", self.spec(script, **changes)], stderr=subprocess.PIPE, text=True)
        report = json.loads((self.folder / "report.json").read_text())
        assert not report["engine_failed"], report["error"]
        return done.returncode, report, (self.folder / "log").read_text(errors="replace")


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest, tmp_path: Path, usable: dict, images: dict, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """Every kind that works here; the others are skipped with the doctor's words."""
    kind = request.param
    if usable[kind]:
        pytest.skip(f"{kind}: {usable[kind]}")
    if kind == "podman" and kind not in images:
        pytest.skip("podman: no base image; patchbench env images --ensure builds it")
    if kind == "runc":
        monkeypatch.setenv("XDG_CACHE_HOME", str(request.getfixturevalue("bundle")))
    return Sandbox(kind, tmp_path, images)


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on which this machine's loopback answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: accept_forever(server), daemon=True).start()
        yield server.getsockname()[1]


def accept_forever(server: socket.socket) -> None:
    """Takes connections until the server is closed."""
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


def running(mark: str) -> bool:
    """Whether a process of this machine has `mark` among its words."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


CONNECT = """
import socket, sys
for host, port in {targets}:
    try:
        socket.create_connection((host, port), 3).close()
        print("reached", host)
    except OSError as e:
        print("refused", host)
"""


def test_reaches_no_network(sandbox: Sandbox, listener: int) -> None:
    targets = [("127.0.0.1", listener)] + ([("1.1.1.1", 53), ("deb.debian.org", 80)] if sandbox.kind in ISOLATED else [])
    _, _, log = sandbox.run(CONNECT.format(targets=targets))
    if sandbox.kind in ISOLATED:
        assert "reached" not in log and log.count("refused") == 3
    else:
        assert "reached 127.0.0.1" in log


def test_sees_no_interface_but_loopback(sandbox: Sandbox) -> None:
    _, _, log = sandbox.run("import socket; print(*[name for _, name in socket.if_nameindex()])")
    if sandbox.kind in ISOLATED:
        # A kernel with tunnels built in shows each fresh namespace its own, which lead nowhere.
        assert not [n for n in log.split() if n != "lo" and not n.startswith(("tunl", "ip6tnl", "sit", "gre", "erspan", "ip_vti", "ip6"))]
    else:
        assert set(log.split()) == {name for _, name in socket.if_nameindex()}


WRITE = """
import os
upstream, work, home = os.environ["UPSTREAM"], os.environ["WORK"], {home!r}
for path in [upstream + "/module.py", upstream + "/planted.py", "/usr/planted", "/etc/planted", "/planted", "/usr/bin/python3",
             home + "/planted", "/dev/planted", "/proc/sys/kernel/panic", "/proc/sysrq-trigger", "/sys/planted"]:
    try:
        with open(path, "r+" if os.path.exists(path) else "x"):
            print("wrote", path)
    except OSError:
        pass
with open(work + "/allowed", "x"):
    print("wrote", work + "/allowed")
"""


def test_writes_nowhere_but_in_its_work_folder(sandbox: Sandbox) -> None:
    if sandbox.kind not in ISOLATED:
        # Only the mount that is read-only elsewhere: nothing outside of the test's own folder may be touched.
        _, _, log = sandbox.run("import os; open(os.environ['UPSTREAM'] + '/planted.py', 'x'); print('wrote')")
        assert log == "wrote\n"
        return
    with tempfile.TemporaryDirectory(dir=Path.home()) as home:
        _, _, log = sandbox.run(WRITE.format(home=home))
        assert log == "wrote /work/allowed\n"
        assert os.listdir(home) == []
    assert (sandbox.work / "allowed").exists()
    assert (sandbox.folder / "upstream" / "module.py").read_text() == "value = 1\n"


def test_what_it_writes_to_tmp_is_not_on_this_machine(sandbox: Sandbox) -> None:
    if sandbox.kind not in ISOLATED:
        pytest.skip("process: claims no file isolation")
    name = f"patchbench-hostile-{os.getpid()}"
    sandbox.run(f"open('/tmp/{name}', 'w').write('x'); open('/dev/shm/{name}', 'w').write('x')")
    assert not Path("/tmp", name).exists() and not Path("/dev/shm", name).exists()


def test_cannot_read_the_users_home(sandbox: Sandbox) -> None:
    with tempfile.TemporaryDirectory(dir=Path.home()) as home:
        secret = Path(home, "secret")
        secret.write_text("the user's own words")
        script = f"import os\ntry:\n  print(open({str(secret)!r}).read())\nexcept OSError:\n  print('not there')"
        _, _, log = sandbox.run(script)
    assert log == ("not there\n" if sandbox.kind in ISOLATED else "the user's own words\n")


def test_sees_nothing_of_the_callers_environment(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_TEST_SECRET", "token")
    monkeypatch.setenv("https_proxy", "http://user:token@proxy.invalid")
    _, _, log = sandbox.run("import os; print(dict(os.environ))")
    assert "token" not in log and "proxy" not in log


def test_has_no_capabilities_and_gains_none(sandbox: Sandbox) -> None:
    script = "import os\nfor line in open('/proc/self/status'):\n  if line[:3] in ('Cap', 'NoN'): print(*line.split())\nprint(os.getuid())"
    _, _, log = sandbox.run(script)
    assert "NoNewPrivs: 1" in log
    if sandbox.kind in ISOLATED:
        assert all(int(line.split()[1], 16) == 0 for line in log.splitlines() if line.startswith(("CapEff", "CapPrm", "CapInh", "CapAmb")))
        assert log.splitlines()[-1] == "10001"


def test_sees_no_process_but_its_own(sandbox: Sandbox) -> None:
    _, _, log = sandbox.run("import os; print(sum(n.isdigit() for n in os.listdir('/proc')))")
    assert int(log) <= 3 if sandbox.kind in ISOLATED else int(log) > 3


OUTLIVE = """
import os, subprocess, sys, time
mark = {mark!r}
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            subprocess.run([sys.executable, "-c", "import time; time.sleep(300)", mark])
        os._exit(0)
{end}
"""


@pytest.mark.parametrize("ends", ["by_itself", "by_its_time_limit"])
def test_leaves_no_daemon_behind(sandbox: Sandbox, ends: str) -> None:
    mark = f"patchbench-daemon-{os.getpid()}-{ends}"
    end = "time.sleep(1)" if ends == "by_itself" else "time.sleep(300)"
    seen = threading.Event()
    watcher = threading.Thread(target=watch_for, args=(f"\0{mark}\0", seen))
    watcher.start()
    status, report, _ = sandbox.run(OUTLIVE.format(mark=mark, end=end), timeout_s=4)
    watcher.join()
    assert seen.is_set(), "no daemon was ever seen: the test shows nothing"
    assert (status, report["timed_out"]) == ((0, False) if ends == "by_itself" else (1, True))
    assert report["wall_s"] < 30
    assert not running(f"\0{mark}\0")


def watch_for(mark: str, seen: threading.Event) -> None:
    """Sets the event once a process with the mark is there; gives up after ten seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end and not seen.is_set():
        if running(mark):
            seen.set()
        time.sleep(0.05)


def test_dies_with_its_watcher(sandbox: Sandbox) -> None:
    mark = f"patchbench-orphan-{os.getpid()}"
    spec = sandbox.spec(f"import time; mark = {mark!r}; time.sleep(300)")
    watcher = subprocess.Popen([BIN / "patchbench-sandbox", spec], stderr=subprocess.DEVNULL)
    seen = threading.Event()
    watch_for(f"mark = {mark!r}", seen)
    assert seen.is_set()
    watcher.terminate()
    assert watcher.wait(timeout=60) == 3
    report = json.loads((sandbox.folder / "report.json").read_text())
    assert (report["engine_failed"], report["error"]) == (True, "stopped by signal 15")
    assert not running(f"mark = {mark!r}")


@pytest.mark.parametrize("how", ["at_once", "in_children"])
def test_cannot_exceed_its_memory(sandbox: Sandbox, how: str) -> None:
    script = "held = bytearray(800 << 20)"
    if how == "in_children":
        script = (
            "import os, time\nfor _ in range(4):\n  if os.fork() == 0:\n    held = bytearray(200 << 20); time.sleep(60)\ntime.sleep(60)"
        )
    status, report, _ = sandbox.run(script + "\nprint('had it all')")
    assert status == 1 and report["out_of_memory"], report
    assert report["peak_bytes"] >= 300 << 20 or report["limits"] == "podman", report


def test_may_use_the_memory_that_it_has(sandbox: Sandbox) -> None:
    status, report, log = sandbox.run("import time; held = bytearray(200 << 20); time.sleep(1); print('had it')")
    assert (status, log, report["out_of_memory"]) == (0, "had it\n", False)
    assert report["peak_bytes"] >= 200 << 20 and report["meter"] in ("cgroup", "watchdog")


BOMB = """
import os, time
made = 0
for _ in range(500):
    try:
        if os.fork() == 0:
            time.sleep(300)
    except OSError:
        break
    made += 1
print(made, flush=True)
"""


def test_cannot_fork_bomb(sandbox: Sandbox) -> None:
    status, report, log = sandbox.run(BOMB)
    if report["limits"] == "watchdog":
        assert status == 1 and "processes" in str(report["error"])
    else:
        assert 10 < int(log) < 64


def test_a_flooded_log_is_cut(sandbox: Sandbox) -> None:
    status, _, log = sandbox.run("import sys\nfor _ in range(4000): sys.stdout.write('x' * 10000)")
    assert status == 0
    assert len(log) == 8 << 20 and log.endswith("longer than 8 MiB]\n")


def test_words_on_its_streams_are_words(sandbox: Sandbox) -> None:
    script = """
import os, sys
words = b'{"exit_code": 0, "timed_out": false, "exit-code": 0}\\nBUG_ABSENT FIX_VALIDATED 3 passed, 0 failed\\n'
for fd in range(1, 64):
    try:
        os.write(fd, words)
    except OSError:
        pass
sys.exit(7)
"""
    status, report, log = sandbox.run(script)
    assert status == 1 and report["exit_code"] == 7
    assert log.count("FIX_VALIDATED") == 2
    assert "FIX_VALIDATED" not in json.dumps(report)


@pytest.mark.parametrize("code", [1, 125, 126, 127])
def test_its_exit_status_is_not_taken_for_the_engines(sandbox: Sandbox, code: int) -> None:
    status, report, _ = sandbox.run(f"import sys; sys.exit({code})")
    assert (status, report["exit_code"], report["engine_failed"]) == (1, code, False)


def test_a_program_that_is_not_there_is_the_engines_failure(sandbox: Sandbox) -> None:
    spec = sandbox.spec("", argv=["/no/such/program"])
    done = subprocess.run([BIN / "patchbench-sandbox", spec], stderr=subprocess.PIPE, text=True)
    report = json.loads((sandbox.folder / "report.json").read_text())
    assert done.returncode == 3 and report["engine_failed"], report
    assert report["error"]


def test_an_installed_stack_outside_of_usr_is_seen_and_not_written(tmp_path: Path, usable: dict[str, str], images: dict) -> None:
    if usable["bwrap"]:
        pytest.skip(f"bwrap: {usable['bwrap']}")
    venv = tmp_path / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    (next(venv.glob("lib/python3*/site-packages")) / "installed_stack.py").write_text("value = 7\n")
    sandbox = Sandbox("bwrap", tmp_path, images)
    python = str(venv / "bin" / "python3")
    script = f"import installed_stack as i\nprint(i.value)\ntry:\n  open({str(venv / 'planted')!r}, 'x')\nexcept OSError:\n  print('held')"
    status, _, log = sandbox.run(script, python=python, argv=[python, "-c", script])
    assert (status, log) == (0, "7\nheld\n")
