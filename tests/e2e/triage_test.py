"""`job triage` on logs that torch itself wrote in this test, and on what breaks a reader of logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "bin" / "patchbench"
ENV = os.environ | {"PATCHBENCH_ROOT": str(ROOT)}

TRAIN = """
import torch

@torch.compile(backend="eager")
def noisy(x):
    y = x + 1
    print("step")
    return y * 2

class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0
    def forward(self, x):
        self.step += 1
        return x * self.step

noisy(torch.ones(3))
model = torch.compile(Counted(), backend="eager", dynamic=False)
for i in range(10):
    model(torch.ones(3))
    print(f"step_time={0.1 + i / 1000:.3f}")
"""


def triage(*words: str | Path, given: bytes | None = None) -> tuple[int, dict]:
    """Exit status and report."""
    done = subprocess.run([PROGRAM, "--json", "job", "triage", *words], env=ENV, input=given, capture_output=True, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a run of torch: train.py, its log, its structured trace."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(TRAIN)
    env = os.environ | {"TORCH_LOGS": "graph_breaks,recompiles", "TORCH_TRACE": str(folder / "trace")}
    with open(folder / "train.log", "wb") as log:
        subprocess.run([sys.executable, folder / "train.py"], env=env, stdout=log, stderr=log, check=True)
    return folder


def sites(report: dict, what: str) -> dict[str, int]:
    return {s["site"].rpartition("/")[2]: s["count"] for s in report[what]}


def test_a_real_log_gives_sites_counts_and_the_limit(run: Path) -> None:
    status, report = triage(run / "train.log")
    assert status == 1 and [a["rule"] for a in report["alerts"]] == ["recompile_limit"]
    alert = report["alerts"][0]
    assert "hit config.recompile_limit (8)" in alert["text"] and any("function: 'forward'" in line for line in alert["after"])
    line = (run / "train.log").read_text().splitlines()[alert["line"] - 1]
    assert "hit config.recompile_limit" in line
    assert sites(report, "graph_breaks") == {"train.py:7": 1} and sites(report, "recompiles")["train.py:14"] == 8
    assert report["unknown"] == [] and report["lines"] == len((run / "train.log").read_text().splitlines())


def test_the_structured_trace_of_the_same_run_tells_the_same_sites(run: Path) -> None:
    status, report = triage(*(run / "trace").iterdir())
    assert status == 0
    assert sites(report, "graph_breaks") == {"train.py:7": 1} and sites(report, "recompiles")["train.py:14"] >= 7


def test_the_total_of_a_rank_counts_each_frame_once_in_a_log_and_in_a_trace(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pieces = "".join(f"    print({i})\n    x = x + {i}\n" for i in range(18))
    (tmp_path / "train.py").write_text(
        f"import torch\n\n@torch.compile(backend='eager')\ndef forward(x):\n{pieces}    return x\n\n"
        "forward(torch.ones(3))\nforward(torch.ones(3).double())\n"
    )
    env = os.environ | {"TORCH_LOGS": "graph_breaks", "TORCH_TRACE": str(tmp_path / "trace")}
    with open(tmp_path / "train.log", "wb") as log:
        subprocess.run([sys.executable, tmp_path / "train.py"], env=env, stdout=log, stderr=log, check=True)
    for logs in ([tmp_path / "train.log"], list((tmp_path / "trace").iterdir())):
        status, report = triage(*logs)
        assert status == 1 and [a["rule"] for a in report["alerts"]] == ["graph_break_total"]
        assert report["graph_break_totals"] == [{"rank": "-", "count": 18, "budget": 16, "over": True}]
        assert not any(s["over"] for s in report["graph_breaks"])


def test_a_users_rule_settles_the_alert_and_a_budget_holds(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    rule = {"name": "known", "action": "count", "regex": r"hit config\.recompile_limit", "bound": 1, "reason": "the counter is known"}
    mine.write_text(json.dumps({"rules": [rule]}))
    assert triage("--rules", mine, run / "train.log")[0] == 0
    log = (run / "train.log").read_bytes()
    assert triage("--rules", mine, "-", given=log * 2)[0] == 1
    status, report = triage("--rules", mine, "-", given=log.replace(b"hit config.recompile", b"") * 3)
    assert status == 1 and {a["rule"] for a in report["alerts"]} == {"recompile_budget"}


def test_interleaved_ranks_carriage_returns_and_binary_junk(run: Path) -> None:
    lines = (run / "train.log").read_bytes().splitlines()
    mixed = b"".join(b"[rank%d]:%s\r\n" % (rank, line) for line in lines for rank in (0, 1))
    status, report = triage("-", given=os.urandom(4096).replace(b"\n", b"") + b"\n" + mixed + b"\xff\xfe\0\n")
    assert status == 1 and {a["rank"] for a in report["alerts"]} == {"0", "1"}
    counts = {s["site"].rpartition("/")[2]: s["ranks"] for s in report["graph_breaks"]}
    assert counts == {"train.py:7": {"0": 1, "1": 1}}
    assert all(line.startswith(f"[rank{a['rank']}]") for a in report["alerts"] for line in a["before"] + a["after"])


def test_a_line_of_ten_megabytes_is_one_line() -> None:
    line = b"x" * 10_000_000 + b" torch.OutOfMemoryError " + b"y" * 1_000_000
    status, report = triage("-", given=b"first\n" + line + b"\nlast")
    assert status == 1 and report["lines"] == 3 and report["alerts"][0]["line"] == 2 and report["num_cut_lines"] == 0
    assert len(report["alerts"][0]["text"]) < 500


def peak_kib(pieces: Iterator[bytes]) -> int:
    """The most memory that one triage of a pipe took."""
    process = subprocess.Popen([PROGRAM, "job", "triage", "-"], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin
    for piece in pieces:
        process.stdin.write(piece)
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


def test_memory_does_not_grow_with_the_log() -> None:
    piece = b"".join(b"[rank%d]:a.py:%d: UserWarning: lost %d\n" % (i % 8, i, i * i) for i in range(20_000))
    small, large = peak_kib(iter([piece])), peak_kib(piece for _ in range(250))
    assert len(piece) * 250 > 200_000_000 and large < small + 16_000, (small, large)


def test_following_tells_an_alert_as_it_comes_and_ends_with_the_report(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("start\n")
    words = [PROGRAM, "--json", "job", "triage", "--follow", log]
    with subprocess.Popen(words, env=ENV, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        with open(log, "a") as out:
            out.write("torch.OutOfMemoryError: half a li")
            out.flush()
            out.write("ne\n")
        first = json.loads(process.stdout.readline())
        assert (first["alert"], first["line"]) == ("out_of_memory", 2) and first["text"].endswith("half a line")
        log.rename(tmp_path / "train.log.1")
        log.write_text("CUDA error: an illegal memory access\n")
        second = json.loads(process.stdout.readline())
        assert (second["alert"], second["line"]) == ("cuda_error", 1)
        process.send_signal(signal.SIGTERM)
        report = json.loads(process.stdout.readline())
    assert process.returncode == 1 and report["num_alerts"] == 2 and report["lines"] == 3


def test_wrong_words_get_one_line(tmp_path: Path) -> None:
    for words in (["none.log"], [tmp_path], ["--rules", tmp_path / "none.json", "-"]):
        done = subprocess.run([PROGRAM, "job", "triage", *words], env=ENV, input=b"", capture_output=True, timeout=60)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    bad = tmp_path / "bad.json"
    bad.write_text('{"rules": [{"name": "a", "action": "count", "regex": "(a", "reason": "r"}]}')
    done = subprocess.run([PROGRAM, "job", "triage", "--rules", bad, "-"], env=ENV, input=b"", capture_output=True, timeout=60)
    assert done.returncode == 2 and b"rule a: (a: " in done.stderr
    assert subprocess.run([PROGRAM, "job", "triage", "-"], env=ENV, input=b"", capture_output=True, timeout=60).returncode == 0
