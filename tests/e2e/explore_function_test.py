"""`patchbench explore` on functions with one planted fault each: it is found, explained, and repeated by the printed command.

Programs are those of $PATCHBENCH_BUILD (default build/cpu); the interpreter is the one of this test, which has torch.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "bin" / "patchbench"
FUNCTIONS = """
import os

import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, fault):
        ctx.save_for_backward(x, weight)
        ctx.fault, ctx.calls = fault, 0
        y = x * weight
        if fault == "odd" and x.shape[1] > 64 and x.shape[1] % 2:
            y[:, -1] = 0
        return y * 1.05 if fault == "half" and x.dtype == torch.float16 else y

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.calls += 1
        if ctx.fault == "stride" and 0 in grad.stride():
            held = torch.tensor([], dtype=grad.dtype).set_(grad.untyped_storage())
            flat = torch.zeros(grad.numel(), dtype=grad.dtype)
            flat[: held.numel()] = held[: grad.numel()]
            grad = flat.view(grad.shape)
        if ctx.fault == "second":
            grad = grad * ctx.calls
        return grad * weight, (grad * x).sum(0), None


def reference(x, weight):
    return x * weight


def stride(x, weight):
    return Scale.apply(x, weight, "stride")


def odd(x, weight):
    return Scale.apply(x, weight, "odd")


def half(x, weight):
    return Scale.apply(x, weight, "half")


def second(x, weight):
    return Scale.apply(x, weight, "second")


def large(x, weight):
    return x * weight * (0.5 if x.float().square().mean() > 6 else 1)


def raises(x, weight):
    if x.shape[0] > 20:
        raise ValueError("too many rows")
    return x * weight


def ends(x, weight):
    if x.shape[1] == 7:
        os._exit(9)
    return x * weight


def picky(x, weight):
    if x.shape[0] % 2:
        raise NotImplementedError("odd rows")
    return Scale.apply(x, weight, "")


def overflows(x, weight):
    return x * weight / (0 if x.shape[0] > 20 else 1)
"""
AXES = {
    "axes": {"rows": {"from": 2, "to": 40}, "cols": {"from": 2, "to": 200}, "dtype": ["float32", "bfloat16", "float16"]},
    "tensors": {"x": {"shape": ["rows", "cols"]}, "weight": {"shape": ["cols"]}},
    "gradients": ["x", "weight"],
    "output": {"shape": ["rows", "cols"]},
}
FORWARD = {"axes": {"rows": AXES["axes"]["rows"], "cols": {"from": 2, "to": 12}}, "tensors": AXES["tensors"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scaled.py").write_text(FUNCTIONS)
    (tmp_path / "axes.json").write_text(json.dumps(AXES))
    (tmp_path / "forward.json").write_text(json.dumps(FORWARD))
    return tmp_path


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "OMP_NUM_THREADS": "1", "PATCHBENCH_LEDGER": str(folder / "ledger.db")} | more
    return subprocess.run([PROGRAM, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def explored(folder: Path, name: str, *more: str, axes: str = "axes.json", **env: str) -> dict:
    """The JSON document of a search, with its exit code as `code`."""
    words = ["explore", f"scaled:{name}", "--against", "scaled:reference", "--axes", axes, "--python", sys.executable, "--device", "cpu"]
    done = run(folder, "--json", *words, *more, **env)
    assert done.stdout, done.stderr
    return json.loads(done.stdout) | {"code": done.returncode}


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("stride", [["red where grad_output.has_stride_0", "green"]]),
        ("odd", [[f"red where cols > {most} and 2 does not divide cols", "green"] for most in range(59, 65)]),
        ("half", [["red where dtype is float16", "green"]]),
        ("second", [["red where backwards is given", "green"]]),
        ("large", [[f"red where input_times {comparison}", "green"] for comparison in ("== 8", "> 0.125")]),
    ],
)
def test_a_planted_fault_is_found_and_explained(folder: Path, name: str, rules: list[list[str]]) -> None:
    found = explored(folder, name)
    assert found["code"] == 1 and found["red"] > 0 and found["is_whole"]
    assert [one["class"] for one in found["explained"]] == ["wrong result"]
    assert found["explained"][0]["rules"] in rules
    assert found["wall_s"] < 60
    assert not (folder / "ledger.db").exists()


def test_a_right_function_is_not_red_and_what_is_not_judged_is_counted(folder: Path) -> None:
    words = ["explore", "scaled:picky", "--against", "scaled:overflows", "--axes", "axes.json", "--python", sys.executable]
    done = run(folder, *words, "--device", "cpu")
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing red was found." in said and "BUG" not in said
    assert " 0 red, " in said and "not supported by the function" in said
    assert "not judged (the reference in fp64 is not finite)" in said


def test_the_printed_command_repeats_the_smallest_case(folder: Path) -> None:
    found = explored(folder, "raises", "--draw", "60", axes="forward.json")
    (smallest,) = found["smallest"]
    assert smallest["kind"] == "raised ValueError" and smallest["axes"] == {"rows": 21, "cols": 2}
    assert found["explained"][0]["rules"] == ["red where rows > 20", "green"]
    words = shlex.split(smallest["command"])
    again = run(folder, *words[1:])
    assert words[0] == "patchbench" and again.returncode == 1 and "red: raised ValueError: " in again.stdout


def test_a_process_that_ends_is_red_for_that_case_alone(folder: Path) -> None:
    found = explored(folder, "ends", "--draw", "30", axes="forward.json")
    assert found["code"] == 1 and found["smallest"][0]["kind"] == "its process ended"
    assert found["explained"][0]["rules"] == ["red where cols == 7", "green"]


def test_what_was_found_becomes_the_first_files_of_a_pack(folder: Path) -> None:
    root = folder / "copy"
    for part in ("packs", "env", "repro/function", "repro/harness"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    words = ["--draw", "60", "--save-pack", "first_rows", "liger-kernel@0.8.5=liger_kernel/ops/jsd.py"]
    found = explored(folder, "stride", *words, PATCHBENCH_ROOT=str(root))
    assert found["code"] == 1 and "repro/first_rows/repro.cpp" in found["written"]
    manifest = json.loads((root / "packs/first_rows/manifest.json").read_text())
    assert manifest["title"] == "scaled:stride is red where grad_output.has_stride_0"
    trigger, control = manifest["cases"]
    assert trigger["axes"] == found["smallest"][0]["axes"] and control["role"] == "control"
    assert manifest["explore"]["spaces"][0]["axes"]["rows"] == AXES["axes"]["rows"]
    assert 'draw("weight").normal({harness::extent(item, "cols")})' in (root / "repro/first_rows/repro.cpp").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["scaled:hal"], 2, "scaled:hal: no 'hal' in scaled; it has Scale, ends"),
        (["scald:half"], 2, "scald:half: no module 'scald' in "),
        (["half"], 2, "explore half: want module:function"),
        (["scaled:half", "--axes", "none.json"], 2, "none.json"),
        (["scaled:half", "--case", '{"rows": 3}'], 2, "axis 'cols' is missing"),
        (["scaled:half", "--python", "/nowhere"], 2, "--python /nowhere: neither an interpreter nor a virtual environment"),
    ],
)
def test_wrong_words_are_one_clear_line(folder: Path, words: list[str], code: int, said: str) -> None:
    default = {"--against": "scaled:reference", "--axes": "axes.json", "--python": sys.executable, "--device": "cpu"}
    given = [word for option, value in default.items() if option not in words for word in (option, value)]
    done = run(folder, "explore", *words, *given)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("patchbench: starts ")]
    assert done.returncode == code and len(lines) == 1 and said in lines[0], done.stderr


def test_an_interpreter_without_torch_cannot_run_it(folder: Path) -> None:
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "PYTHONPATH": ""}
    words = [PROGRAM, "explore", "scaled:half", "--against", "scaled:reference", "--axes", "axes.json", "--python", sys.executable]
    done = subprocess.run([*words, "--device", "cpu"], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4 and "name an interpreter or venv that has torch" in done.stderr
