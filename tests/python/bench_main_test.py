"""The main function of the benches: what it reads and prints, and every bench's rows at a tiny shape with the CPU in the GPU's place."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("PATCHBENCH_BUILD", ROOT / "build/cpu")) / "bin"
OPS = Path(os.environ.get("PATCHBENCH_OPS_LIB", BIN.parent / "lib/libpatchbench_ops.so"))
PROGRAMS = sorted(f"bench_{path.parent.name}" for path in ROOT.glob("repro/*/bench.cpp"))
FILES = {path.stem: path for path in sorted(ROOT.glob("repro/*/bench_*.py")) if path.parent.name != "bench"}

sys.path.insert(0, str(ROOT / "repro/bench"))
import bench_main  # noqa: E402
import device_time  # noqa: E402
import ratios  # noqa: E402
from bench_main import Bench  # noqa: E402


@pytest.fixture
def bench(name: str, without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The bench of that file; what it imports from its folder is forgotten before and afterwards."""
    folder = FILES[name].parent
    monkeypatch.setattr(sys, "path", [str(folder), str(ROOT / "repro/harness"), *sys.path])
    beside = [path.stem for path in folder.glob("*.py")]
    for one in beside:
        sys.modules.pop(one, None)
    yield importlib.import_module(name).BENCH
    for one in beside:
        sys.modules.pop(one, None)


class OnCpu(TorchFunctionMode):
    """Tensors asked for on "cuda" are made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        return function(*args, **{k: "cpu" if k == "device" else v for k, v in (kwargs or {}).items()})


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of each in the place of the times of a device."""

    def turns(calls: dict, repeats: int) -> dict[str, list[float]]:
        for call in calls.values():
            call(0)
        return {name: [1.0] * repeats for name in calls}

    monkeypatch.setattr(device_time, "turns", turns)
    monkeypatch.setattr(device_time, "hot", lambda calls: {name: times[0] / 2 for name, times in turns(calls, 1).items()})
    for name, value in {"is_available": True, "get_device_name": "a device", "synchronize": None, "memory_allocated": 1,
                        "reset_peak_memory_stats": None, "max_memory_allocated": 3, "empty_cache": None}.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setenv("PATCHBENCH_OPS_LIB", str(OPS))


def run(bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    monkeypatch.setattr(sys, "argv", ["bench_toy.py", *words])
    with OnCpu(), pytest.raises(SystemExit) as end:
        bench_main.bench_main(bench)
    out = capsys.readouterr().out
    return end.value.code, json.loads(out) if out else {}


def toy_rows(shape: list, options: Namespace) -> list[dict]:
    if shape[0] == 13:
        raise RuntimeError("CUDA error: an illegal memory access\n")
    print("a compiler speaks")
    return [{"shape": shape, "ms": device_time.spread(lambda: None, options.repeats), "only": options.only}]


TOY = Bench("toy", toy_rows, [[1, "a"], [2, "b"]], "number, word", repeats=5, filters={"--only": "these"}, needs_ops=False,
            about=lambda: {"order": "in turn"})  # fmt: skip


def test_a_bench_prints_a_row_for_each_of_its_shapes(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run(TOY, monkeypatch, capsys)
    assert status == 0 and [row["shape"] for row in document.pop("rows")] == TOY.shapes
    assert datetime.date.fromisoformat(document.pop("date"))
    assert document == {"bench": "toy", "device": "a device", "how": bench_main.HOW, "dtype": "bfloat16", "shape_is": "number, word",
                        "repeats": 5, "order": "in turn"}  # fmt: skip


def test_the_options_choose_shapes_repeats_and_rows(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run(TOY, monkeypatch, capsys, "--shape", "3,c", "--shape", "4,d", "--repeats", "7", "--only", "x", "--only", "y")
    assert status == 0 and document["repeats"] == 7
    assert [(row["shape"], row["only"]) for row in document["rows"]] == [([3, "c"], ["x", "y"]), ([4, "d"], ["x", "y"])]


def test_the_document_goes_to_a_file_where_one_is_named(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "document.json"
    assert run(TOY, monkeypatch, capsys, "--out", str(file)) == (0, {})
    assert [row["shape"] for row in json.loads(file.read_text())["rows"]] == TOY.shapes


def test_a_failure_of_the_device_keeps_the_rows_before_it(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run(TOY, monkeypatch, capsys, "--shape", "1,a", "--shape", "13,b", "--shape", "2,c")
    assert status == 1 and [row["shape"] for row in document["rows"]] == [[1, "a"], [13, "b"]]
    assert document["rows"][1]["failed"] == "RuntimeError: CUDA error: an illegal memory access"


def test_what_kills_a_bench_leaves_the_rows_before_it_in_the_file(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def killed(shape: list, options: Namespace) -> list[dict]:
        if shape[0] == 2:
            raise SystemExit(137)
        return toy_rows(shape, options)

    file = tmp_path / "document.json"
    monkeypatch.setattr(sys, "argv", ["bench_toy.py", "--out", str(file)])
    with OnCpu(), pytest.raises(SystemExit, match="137"):
        bench_main.bench_main(TOY._replace(rows_of=killed))
    assert [row["shape"] for row in json.loads(file.read_text())["rows"]] == [[1, "a"]]


def test_ahead_runs_each_shape_once_with_the_same_filters(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    class Process:
        def __init__(self, words: list[str], **_: object) -> None:
            started.append(words)

        def wait(self) -> None:
            assert len(started) == 2  # both run before one is waited for

    monkeypatch.setattr(subprocess, "Popen", Process)
    status, document = run(TOY, monkeypatch, capsys, "--ahead", "--only", "x", "--repeats", "3")
    assert status == 0 and document["repeats"] == 3
    call = [sys.executable, "bench_toy.py", "--repeats", "1", "--out", os.devnull, "--only", "x", "--shape"]
    assert started == [[*call, "1,a"], [*call, "2,b"]]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 4, "bench_toy.py: no CUDA device"),
        (("--shape", "1"), 2, "wants 2 values, got 1"),
        (("--shape", "x,a"), 2, "invalid literal"),
        (("--shapes",), 2, "unrecognized arguments"),
        (("--help",), 0, ""),
    ],
)
def test_wrong_words_and_no_device_have_their_exits(
    words: tuple[str, ...], status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench_toy.py", *words])
    with pytest.raises(SystemExit) as end:
        bench_main.bench_main(TOY)
    assert end.value.code == status and said in capsys.readouterr().err


@pytest.mark.parametrize("name", FILES)
def test_each_shape_of_a_bench_has_the_axes_that_it_names(name: str, bench: Bench) -> None:
    assert bench.shapes and {len(shape) for shape in bench.shapes} == {len(bench.shape_is.split(", "))}


RATIOS = ["bench_cross_entropy", "bench_mimo_bwd", "bench_peers", "bench_siso_backward", "bench_sparse_mla", "bench_topk_to_index_mask"]


@pytest.mark.parametrize("name", RATIOS)
def test_ratios_knows_the_main_axis_of_a_bench(name: str, bench: Bench) -> None:
    (place,) = [main_axis for one, (*_, main_axis) in ratios.BENCHES.items() if bench.name.startswith(one)]
    assert bench.shape_is.split(", ")[place] in ("queries", "tokens", "seqlen", "queries = keys")


def ratios_finds_the_op(document: dict) -> bool:
    curves = ratios.curves_of(document, [])
    return bool(curves) and all(next(iter(one.best)) in one.ms for one in curves)


def test_the_best_peer_is_the_quickest() -> None:
    assert bench_main.best_peer(2.0, {"a": 5.0, "b": 4.0}) == {"peer": "b", "ratio": 0.5}


TINY = {
    "bench_topk_to_index_mask": "32,8",
    "bench_group_reduce": "1,8,4,16,128,8",
    "bench_peers": "128,16,256",
    "bench_sparse_mla": "1,128,256,8,16,64,32,uniform",
}


@pytest.mark.skipif(not OPS.exists(), reason="the op library is not built")
@pytest.mark.parametrize("name", sorted(TINY))
def test_a_bench_measures_a_tiny_shape(
    name: str, bench: Bench, without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--only", "patchbench", "--only", "plain"] if name == "bench_peers" else []
    status, document = run(bench, monkeypatch, capsys, "--shape", TINY[name], "--repeats", "3", *words)
    (row,) = document[bench.rows_are]
    assert status == 0 and "failed" not in row, document
    assert ",".join(map(str, row["shape"])) == TINY[name]
    assert name not in RATIOS or ratios_finds_the_op(document)
    if name in ("bench_peers", "bench_sparse_mla"):
        ours = row["patchbench step"] if name == "bench_sparse_mla" else row["rows"][0]
        assert ours["hot_ms"] == 0.5, "cold and hot"


@pytest.mark.skipif(not OPS.exists(), reason="the op library is not built")
@pytest.mark.parametrize("name", ["bench_cross_entropy"])
def test_cross_entropies_are_held_against_float64(
    name: str, bench: Bench, without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    words = [word for kind in ("mean", "none") for word in ("--shape", f"96,200,float32,{kind}")]
    status, document = run(bench, monkeypatch, capsys, *words, "--repeats", "3")
    rows = [row for row in document["rows"] if "error" in row]
    assert status == 0 and all(row["error"][1] < 1e-5 and row["hot_ms"] == 0.5 for row in rows)
    assert rows[0]["of_best_peer_hot"] == {"peer": "torch", "ratio": 1.0}
    names = ["patchbench_ops", "patchbench_ops, over the logits", "torch", "torch.compile"]
    assert [(row["reduction"], row["name"]) for row in rows] == [(kind, one) for kind in ("mean", "none") for one in names]
    assert ratios_finds_the_op(document)
    missing = [row["not_run"] for row in document["rows"] if "not_run" in row]
    assert [set(one) for one in missing] == [
        {"TransformerEngine", "liger-kernel", "liger-kernel, CuTe DSL", "quack", "quack, over the logits"}
    ] * 2


@pytest.mark.skipif(not OPS.exists(), reason="the op library is not built")
@pytest.mark.parametrize("name", ["bench_cross_entropy"])
def test_libraries_take_turns(
    name: str, bench: Bench, without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Pipe(NamedTuple):
        label: str

        def send(self, ask: tuple[list, int]) -> None:
            asked.append((self.label, *ask))

        def recv(self) -> dict[str, list[float]]:
            return {"patchbench_ops": [float(len(asked))] * asked[-1][2]}

    module = sys.modules[name]
    monkeypatch.setattr(module, "workers", lambda libraries: {label: Pipe(label) for label in ("before", "after")})
    words = ("--shape", "96,200,float32,mean", "--repeats", "20", "--library", "before=a.so", "--library", "after=b.so")
    status, document = run(bench, monkeypatch, capsys, *words)
    assert status == 0 and asked == [(label, [96, 200, "float32", "mean"], 5) for label in ("before", "after")] * 4
    assert [(row["library"], row["ms"]) for row in document["rows"]] == [("before", [4.0, 1.0, 7.0]), ("after", [5.0, 2.0, 8.0])]
    monkeypatch.setattr(module, "BEGAN", -module.LIMIT_SECONDS)
    assert run(bench, monkeypatch, capsys, *words)[1]["rows"][0]["not_run"] == "140 s were over"


@pytest.mark.skipif(not BIN.exists(), reason="nothing is built")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), (["--shape", "1"], 2), (["--repeats", "19"], 2), ([], 4)])
def test_a_program_says_what_it_takes(program: str, words: list[str], status: int) -> None:
    if not (BIN / program).exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run([BIN / program, *words], env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert done.returncode == status
    assert (done.stdout if status == 0 else done.stderr).startswith(program)
