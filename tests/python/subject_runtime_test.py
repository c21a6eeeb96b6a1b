"""The Python half of the harness: its safetensors, views, structured exceptions and answers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

HARNESS = Path(__file__).parents[2] / "repro" / "harness"
SPEC = importlib.util.spec_from_file_location("subject_runtime", HARNESS / "subject_runtime.py")
runtime = importlib.util.module_from_spec(SPEC)
sys.modules["subject_runtime"] = runtime
SPEC.loader.exec_module(runtime)


def test_safetensors_round_trip(tmp_path: Path) -> None:
    tensors = {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "turned": torch.rand(3, 2).t(),
        "expanded": torch.ones(1).expand(4),
    }
    tensors |= {str(d): torch.arange(6).remainder(2).reshape(2, 3).to(d) for d in runtime.NAMES}
    runtime.write_safetensors(tmp_path / "t.safetensors", tensors)
    back = runtime.read_safetensors(tmp_path / "t.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor), name


def test_written_header_tiles_the_data(tmp_path: Path) -> None:
    runtime.write_safetensors(tmp_path / "t.safetensors", {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.float64)})
    data = (tmp_path / "t.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header["a"]["data_offsets"] == [0, 12] and header["b"]["data_offsets"] == [12, 28]
    assert len(data) == 8 + length + 28 and length % 8 == 0


def make_work(folder: Path, names: list[str], device: str = "cpu") -> Path:
    """A work folder with one stride-0 view and one strided view with an offset per case."""
    work = folder / "work"
    work.mkdir()
    runtime.write_safetensors(work / "inputs.safetensors", {"s": torch.arange(12.0), "one": torch.tensor([3.0])})
    inputs = {
        "strided": {"storage": "s", "sizes": [2, 3], "strides": [6, 2], "offset": 1},
        "expanded": {"storage": "one", "sizes": [4], "strides": [0], "offset": 0},
    }
    cases = [{"name": n, "axes": {"kind": n}, "inputs": inputs} for n in names]
    (work / "cases.json").write_text(json.dumps({"device": device, "cases": cases}))
    return work


def test_views_are_rebuilt(tmp_path: Path) -> None:
    work = make_work(tmp_path, ["one"])
    (entry,) = json.loads((work / "cases.json").read_text())["cases"]
    case = runtime.case_of(entry, runtime.read_safetensors(work / "inputs.safetensors"), "cpu")
    assert case.device == "cpu" and case.axes == {"kind": "one"}
    assert case.tensors["expanded"].stride() == (0,) and case.tensors["expanded"].tolist() == [3.0] * 4
    assert case.tensors["strided"].tolist() == [[1.0, 3.0, 5.0], [7.0, 9.0, 11.0]]


def run(tmp_path: Path, names: list[str], subject: str, device: str = "cpu") -> tuple[dict, dict]:
    """subject.json and the outputs of a whole run in a process of its own."""
    work = make_work(tmp_path, names, device)
    (tmp_path / "subject.py").write_text(subject)
    command = [sys.executable, str(HARNESS / "subject_runtime.py"), str(tmp_path / "subject.py"), str(work)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    return json.loads((work / "subject.json").read_text()), runtime.read_safetensors(work / "outputs.safetensors")


SUBJECT = """
from subject_runtime import Unsupported
PACKAGE = "torch"
def fail():
    raise ZeroDivisionError("by nothing\\nat all")
def run(case):
    if case.name == "old":
        raise Unsupported("no such feature")
    if case.name == "raises":
        fail()
    case.numbers["parts"] = 2
    return {"sum": case.tensors["strided"].sum()}
"""


def test_each_case_gets_its_answer(tmp_path: Path) -> None:
    report, outputs = run(tmp_path, ["fine", "old", "raises"], SUBJECT)
    assert list(outputs) == ["fine/sum"] and outputs["fine/sum"].item() == 36.0
    assert report["package"] == {"name": "torch", "version": importlib.metadata.version("torch")}
    assert report["cases"]["fine"]["status"] == "ok" and report["cases"]["fine"]["wall_s"] >= 0
    assert report["cases"]["fine"]["numbers"] == {"parts": 2}
    assert report["cases"]["old"] == {"status": "unsupported", "reason": "no such feature"}
    raised = report["cases"]["raises"]
    assert raised["status"] == "raised" and raised["reason"] == "by nothing"
    assert raised["exception"]["type"] == "ZeroDivisionError" and raised["exception"]["cuda_code"] is None
    assert raised["exception"]["frames"][-1] == {"file": "subject.py", "line": 5, "function": "fail"}


def test_a_collection_of_garbage_within_a_case_passes_by_what_was_imported(tmp_path: Path) -> None:
    subject = 'import gc\nPACKAGE = "torch"\ndef run(case):\n    case.numbers["seen"] = len(gc.get_objects())\n    return {}\n'
    report, _ = run(tmp_path, ["one"], subject)
    assert report["cases"]["one"]["numbers"]["seen"] < 10_000  # torch alone makes more than 100,000


def test_cases_after_a_broken_device_are_left_unanswered(tmp_path: Path) -> None:
    # The meta device cannot be synchronised, as a CUDA device cannot whose context an error has broken.
    report, outputs = run(tmp_path, ["old", "raises", "fine"], SUBJECT, "meta")
    assert list(report["cases"]) == ["old", "raises"] and outputs == {}


def test_subject_that_cannot_be_imported_is_an_answer_to_every_case(tmp_path: Path) -> None:
    report, outputs = run(tmp_path, ["one", "two"], "import no_such_package\n")
    assert outputs == {}
    for name in ("one", "two"):
        assert report["cases"][name]["exception"]["type"] == "ModuleNotFoundError"


def test_cuda_code_of_an_exception_is_kept() -> None:
    class AcceleratorError(RuntimeError):
        error_code = 700

    try:
        raise AcceleratorError("illegal access")
    except AcceleratorError as e:
        assert runtime.structured(e)["cuda_code"] == 700


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_words_exit_with_2(count: int) -> None:
    command = [sys.executable, str(HARNESS / "subject_runtime.py"), *["x"] * count]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 2


def test_guard_bands_come_back_as_the_subject_left_them(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    runtime.write_safetensors(tmp_path / "work" / "inputs.safetensors", {"s": torch.arange(7.0)})
    view = {"storage": "s", "sizes": [3], "strides": [1], "offset": 2, "guard": 2}
    plan = {"device": "cpu", "cases": [{"name": "a", "axes": {}, "inputs": {"x": view}}]}
    (tmp_path / "work" / "cases.json").write_text(json.dumps(plan))
    past = "torch.as_strided(case.tensors['x'], [1], [1], case.tensors['x'].storage_offset() + 3).fill_(9.0)"
    (tmp_path / "subject.py").write_text(
        f"import torch\nPACKAGE = 'torch'\ndef run(case):\n    {past}\n    return {{'y': case.tensors['x'].clone()}}\n"
    )
    subprocess.run([sys.executable, HARNESS / "subject_runtime.py", tmp_path / "subject.py", tmp_path / "work"], check=True)
    outputs = runtime.read_safetensors(tmp_path / "work" / "outputs.safetensors")
    assert outputs["a/y"].tolist() == [2, 3, 4] and outputs["a/guard/x"].tolist() == [[0, 1], [9, 6]]


TRITON = """
from subject_runtime import Unsupported
PACKAGE = "torch"
def run(case):
    try:
        import triton
        import triton.language as tl
    except ImportError:
        raise Unsupported("no Triton") from None
    import torch
    @triton.jit
    def scale(X, factor, n, size: tl.constexpr):
        for first in range(0, n, size):
            at = first + tl.arange(0, size)
            tl.store(X + at, tl.load(X + at, mask=at < n) * tl.load(factor), mask=at < n)
    x = torch.arange(40.0)
    scale[(1,)](x, torch.tensor(0.5), 40, size=16)
    block = tl.block_type(tl.float32, [4, 2])
    case.numbers["kept"] = float(tl.block_type.__init__.__module__ == "triton_interpreter")
    case.numbers["is_one"] = float(block == tl.block_type(tl.float32, [4, 2]) and block.shape == (4, 2) and block.numel == 8)
    case.numbers["types"] = float(len(tl.tuple([1, tl.float32]).type.types))
    return {"x": x}
"""


def test_tritons_interpreter_keeps_types(tmp_path: Path) -> None:
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
        report, outputs = run(tmp_path, ["first", "second"], TRITON)
    if report["cases"]["first"]["status"] == "unsupported":
        pytest.skip("no Triton")
    for name, is_kept in (("first", 0.0), ("second", 1.0)):  # imported in the first case
        assert report["cases"][name]["numbers"] == {"kept": is_kept, "is_one": 1.0, "types": 2.0}, report
        assert torch.equal(outputs[f"{name}/x"], torch.arange(40.0) / 2)
