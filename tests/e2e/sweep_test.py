"""`sweep`: a matrix of real runs by local workers and by a real Slurm, with what is killed on the way."""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from scan_test import install
from slurm_cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(os.environ["PATCHBENCH_BUILD"]) / "bin" / "patchbench")
PACK = "dsa_graph_capture"
REJECTING = ["0.17.0", "0.17.1", "0.18.0", "0.18.2"]  # each a few seconds
MATRIX = ["--packs", PACK, "--upstreams", ",".join(REJECTING)]


class Sweeps:
    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.dir = str(folder / "sweep")
        self.env = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(folder / "ledger.db")} | env

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([PROGRAM, *words], env=self.env, capture_output=True, text=True, timeout=600)

    def start(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [PROGRAM, "sweep", "--dir", self.dir, *words], env=self.env, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def status(self) -> dict:
        done = self.run("--json", "sweep", "status", "--dir", self.dir)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait(self, is_so, seconds: float = 300) -> dict:
        end, status = time.monotonic() + seconds, {}
        while not (Path(self.dir) / "plan.json").exists() or not is_so(status := self.status()):
            assert time.monotonic() < end, status
            time.sleep(0.3)
        return status

    def verdicts(self) -> collections.Counter:
        """Version -> how many verdicts the ledger has of it."""
        out = self.folder / "all.jsonl"
        out.unlink(missing_ok=True)
        assert self.run("ledger", "export", "--whole", "-o", str(out)).returncode == 0
        assert self.run("ledger", "verify").returncode == 0
        records = [json.loads(line) for line in out.read_text().splitlines()]
        found = [r["predicate"] for r in records if "verdict" in r["predicateType"]]
        assert all(v["sentinel"] == "BUG_REPRODUCED(sentinel_index_rejected)" for v in found)
        return collections.Counter(v["context"]["pin"]["version"] for v in found)


@pytest.fixture
def sweeps(tmp_path: Path) -> Sweeps:
    return Sweeps(tmp_path)


@pytest.fixture
def slurm(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("slurmd starts tasks as root alone")
    if missing := [p for p in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(p) is None]:
        pytest.skip(f"{missing} not here: env/bootstrap.sh --tests installs them")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start_all()
    except AssertionError as e:
        cluster.stop()
        pytest.skip(f"Slurm does not start on this machine: {e}")
    yield cluster
    cluster.stop()


def test_a_killed_sweep_goes_on_where_it_was(sweeps: Sweeps) -> None:
    words = [*MATRIX, "--workers", "2"]
    first = sweeps.start(*words)
    sweeps.wait(lambda s: s["counts"]["done"] >= 1)
    second = sweeps.run("sweep", "--dir", sweeps.dir, *words)
    assert second.returncode == 4 and "another process runs this sweep" in second.stderr
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    last = sweeps.run("--json", "sweep", "--dir", sweeps.dir, *words)
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["counts"] == {"done": 4, "running": 0, "waiting": 0}
    assert sweeps.verdicts() == dict.fromkeys(REJECTING, 1)
    # Another sweep of the same ledger finds every answer there.
    known = json.loads(sweeps.run("--json", "sweep", "--dir", sweeps.dir + "2", *MATRIX).stdout)
    assert {c["why"] for c in known["cells"]} == {"in the ledger"} and sweeps.verdicts().total() == 4
    assert sweeps.run("ledger", "evict", known["cells"][2]["verdict"], "--why", "a broken disk").returncode == 0
    again = json.loads(sweeps.run("--json", "sweep", "--dir", sweeps.dir + "3", *MATRIX).stdout)["cells"]
    assert [c["why"] == "in the ledger" for c in again] == [True, True, False, True]


def test_cancel_ends_a_sweep_and_keeps_what_has_ended(sweeps: Sweeps) -> None:
    running = sweeps.start(*MATRIX, "--workers", "1")
    sweeps.wait(lambda s: s["counts"]["done"] >= 1)
    assert sweeps.run("sweep", "cancel", "--dir", sweeps.dir).returncode == 0
    assert running.wait(timeout=30) != 0
    left = sweeps.status()
    assert left["is_cancelled"] and left["counts"]["running"] == 0 and 1 <= left["counts"]["done"] < 4


def test_a_cell_that_breaks_is_tried_again_and_named(sweeps: Sweeps) -> None:
    words = ["--packs", PACK, "--upstreams", "0.18.2"]
    done = sweeps.run("sweep", "--dir", sweeps.dir, *words, "--sandbox", "nonesuch", "--retries", "1")
    assert done.returncode == 3 and "1 cells have no result" in done.stderr
    assert "nonesuch" in (Path(sweeps.dir) / "logs/0.log").read_text() and sweeps.status()["counts"]["waiting"] == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--packs", "liger_flce"], 2, "no pack"),
        (["--upstreams", "99.9"], 2, "has a version '99.9'"),
        (["--executor", "cloud"], 2, "local or slurm"),
        (["--detach"], 2, "--executor slurm"),
        (["status", "--dir", "/nowhere"], 2, "holds no sweep"),
    ],
)
def test_bad_words_are_one_line(sweeps: Sweeps, words: list[str], status: int, said: str) -> None:
    done = sweeps.run("sweep", *words)
    assert done.returncode == status and said in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_that_others_can_write_to_is_refused(sweeps: Sweeps) -> None:
    Path(sweeps.dir).mkdir()
    Path(sweeps.dir).chmod(0o777)
    done = sweeps.run("sweep", "--dir", sweeps.dir, *MATRIX)
    assert done.returncode == 4 and "other users can write to it" in done.stderr
    Path(sweeps.dir).chmod(0o700)
    assert sweeps.run("sweep", "--dir", sweeps.dir, *MATRIX, "--upstreams", "99").returncode == 2


def test_slurm_runs_each_cell_once_though_a_node_dies(tmp_path: Path, slurm: Cluster) -> None:
    sweeps = Sweeps(tmp_path, SLURM_CONF=slurm.env["SLURM_CONF"])
    # Slurm itself lets a task of a dead node wait for two minutes; without that the sweep has to submit it again.
    words = [*MATRIX, "--devices", "cpu,h200", "--executor", "slurm", "--sbatch=--no-requeue"]
    assert sweeps.run("sweep", "--dir", sweeps.dir, *words, "--detach").returncode == 0
    running = sweeps.start(*words)
    sweeps.wait(lambda s: s["counts"]["running"] >= 2)
    victim = next(node for node, state in slurm.states().items() if node != "g0" and state != "idle")
    slurm.kill_node(victim)
    slurm.wait(lambda: "down" in slurm.states()[victim], 120)
    assert running.wait(timeout=600) == 0
    cells = sweeps.status()["cells"]
    assert all(c["state"] == "done" for c in cells)
    assert {c["sentinel"] for c in cells if c["device"] == "cpu"} == {"BUG_REPRODUCED(sentinel_index_rejected)"}, cells
    # The node of the GPU type has none to show: said, and no record made.
    assert {c["sentinel"] for c in cells if c["device"] == "h200"} == {"NOT_RUN:not_runnable_here"}
    assert sweeps.verdicts() == dict.fromkeys(REJECTING, 1)


def test_an_image_is_scanned_from_inside_where_a_task_starts_it(tmp_path: Path, slurm: Cluster) -> None:
    """bwrap gives the task its image and its mounts, in place of a plugin of Slurm."""
    image = tmp_path / "image"
    install(image / "opt/venv", "liger-kernel", "0.8.0")
    for name in ("bin", "lib64", "patchbench"):
        (image / name).mkdir()
    mounts = [
        "--bind",
        image,
        "/",
        "--ro-bind",
        "/lib64",
        "/lib64",
        "--symlink",
        "usr/lib",
        "/lib",
        "--ro-bind",
        PROGRAM,
        "/bin/patchbench",
    ]
    mounts += ["--ro-bind", "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "--ro-bind", ROOT, "/patchbench"]
    scan = ["/bin/patchbench", "scan", "--root", "/", "--pack", "liger_flce_none_bwd", "--format", "json"]
    words = ["srun", "-N1", "bwrap", *map(str, mounts), "--setenv", "PATCHBENCH_ROOT", "/patchbench", *scan]
    done = subprocess.run(words, env=slurm.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert {(one["input"], one["state"]) for one in json.loads(done.stdout)["answers"]} >= {("/opt/venv", "hit")}


def test_slurm_cancels_what_it_runs(tmp_path: Path, slurm: Cluster) -> None:
    sweeps = Sweeps(tmp_path, SLURM_CONF=slurm.env["SLURM_CONF"])
    running = sweeps.start(*MATRIX, "--executor", "slurm", "--workers", "1")
    sweeps.wait(lambda s: s["counts"]["running"] >= 1)
    assert sweeps.run("sweep", "cancel", "--dir", sweeps.dir).returncode == 0
    assert running.wait(timeout=60) == 3
    slurm.wait(lambda: slurm.words("squeue", "-h") == "", 60)
    assert sweeps.status()["counts"]["done"] < 4
