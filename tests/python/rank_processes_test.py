"""Cases at two ranks, with subjects of our own: what comes back of each, and that no rank is waited for in vain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

HARNESS = Path(__file__).parents[2] / "repro" / "harness"
sys.path.insert(0, str(HARNESS))
import rank_processes  # noqa: E402
import subject_runtime  # noqa: E402

HEAD = """
import os, signal, time
import torch
import torch.distributed as dist
from subject_runtime import Unsupported
PACKAGE = "torch"
def joined(case):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
def run(case):
"""
MEAN = (
    HEAD
    + """
    joined(case)
    own = case.tensors["x"][case.rank].clone()
    dist.all_reduce(own)
    return {"sum": own, "ranks": torch.tensor(case.num_ranks)}
"""
)


def told(
    tmp_path: Path, subject: str, axes: list[dict[str, Any]], plan: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """subject.json, the outputs and the log of one process over cases "0", "1", … with these axes."""
    work = tmp_path / "work"
    work.mkdir()
    subject_runtime.write_safetensors(work / "inputs.safetensors", {"x": torch.arange(6.0)})
    view = {"storage": "x", "sizes": [2, 3], "strides": [3, 1], "offset": 0}
    cases = [{"name": str(i), "axes": one, "inputs": {"x": view}} for i, one in enumerate(axes)]
    (work / "cases.json").write_text(json.dumps({"device": "cpu", "cases": cases, **(plan or {})}))
    (tmp_path / "subject.py").write_text(subject)
    command = [sys.executable, str(HARNESS / "subject_runtime.py"), str(tmp_path / "subject.py"), str(work)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, check=True, env=env, capture_output=True, text=True)
    return json.loads((work / "subject.json").read_text()), subject_runtime.read_safetensors(work / "outputs.safetensors"), done.stderr


def failing(line: str) -> str:
    """The subject with a line that the second rank alone runs, in the cases that ask for it."""
    return MEAN.replace("    joined(case)", f'    joined(case)\n    if case.rank == 1 and case.axes.get("is_bad"):\n        {line}')


def test_each_rank_has_its_part_and_one_answer_comes_back(tmp_path: Path) -> None:
    report, outputs, _ = told(tmp_path, MEAN, [{"ranks": 2}, {"ranks": 2}])
    for name in ("0", "1"):
        assert report["cases"][name]["status"] == "ok"
        assert outputs[f"{name}/sum"].tolist() == [3.0, 5.0, 7.0] and outputs[f"{name}/ranks"].item() == 2


def test_a_case_without_ranks_runs_after_them_in_the_process_itself(tmp_path: Path) -> None:
    report, outputs, _ = told(tmp_path, HEAD + '    return {"rank": torch.tensor(len(os.environ.get("RANK", "")))}', [{}, {"ranks": 2}])
    assert {one["status"] for one in report["cases"].values()} == {"ok"}
    assert outputs["0/rank"].item() == 0 and outputs["1/rank"].item() == 1


def test_a_subject_may_have_ranks_in_every_case(tmp_path: Path) -> None:
    _, outputs, _ = told(tmp_path, MEAN.replace('PACKAGE = "torch"', 'PACKAGE = "torch"\nRANKS = 2'), [{}])
    assert outputs["0/ranks"].item() == 2


def test_what_one_rank_alone_gets_wrong_is_not_a_number(tmp_path: Path) -> None:
    subject = MEAN.replace("    return {", "    own[1] += case.rank\n    return {")
    report, outputs, _ = told(tmp_path, subject, [{"ranks": 2}])
    assert report["cases"]["0"]["status"] == "ok"
    first, second, third = outputs["0/sum"].tolist()
    assert (first, third) == (3.0, 7.0) and second != second


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('return {"sum": own} if case.rank else {"sum": own, "more": own}', "rank 1 gives other outputs than rank 0: 0/more"),
        ('return {"sum": own[: 3 - case.rank]}', "rank 1 gives 0/sum in another shape or dtype than rank 0"),
        ('return {"sum": torch.tensor(case.rank)}', "rank 1 gives other values of 0/sum than rank 0"),
    ],
)
def test_other_differences_of_ranks_are_an_error(tmp_path: Path, line: str, said: str) -> None:
    report, outputs, _ = told(tmp_path, MEAN.replace("    return {", f"    {line}\n    return {{"), [{"ranks": 2}])
    assert (report["cases"]["0"]["status"], report["cases"]["0"]["reason"]) == ("raised", said) and not outputs


def test_the_rank_that_raises_is_quoted_and_the_next_case_runs(tmp_path: Path) -> None:
    """The other waits in a collective for it."""
    subject = failing('raise ArithmeticError("of rank 1")')
    start = time.monotonic()
    report, outputs, _ = told(tmp_path, subject, [{"ranks": 2, "is_bad": True}, {"ranks": 2}])
    assert time.monotonic() - start < 60
    bad = report["cases"]["0"]
    assert (bad["status"], bad["reason"], bad["exception"]["type"]) == ("raised", "of rank 1", "ArithmeticError")
    assert outputs["1/sum"].tolist() == [3.0, 5.0, 7.0]


def test_a_rank_that_dies_leaves_its_case_without_an_answer(tmp_path: Path) -> None:
    subject = failing("os.kill(os.getpid(), signal.SIGKILL)")
    report, outputs, log = told(tmp_path, subject, [{"ranks": 2, "is_bad": True}, {"ranks": 2}])
    assert list(report["cases"]) == ["1"] and "rank 1 ended without an answer" in log
    assert outputs["1/sum"].tolist() == [3.0, 5.0, 7.0]


def test_a_rank_that_waits_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_processes, "PATIENCE_S", 1.0)

    def work(rank: int) -> tuple[dict[str, Any], int]:
        if rank == 1:
            time.sleep(600)
        return {"status": "ok"}, rank

    with pytest.raises(rank_processes.NoAnswer, match="rank 1 gave no answer in 1 s"):
        rank_processes.together(work, 2, lambda _: "cpu")


def test_unsupported_is_an_answer(tmp_path: Path) -> None:
    report, _, _ = told(tmp_path, HEAD + '    raise Unsupported("no such thing")\n', [{"ranks": 2}])
    assert report["cases"]["0"]["status"] == "unsupported"


def test_a_backend_that_is_wrong_gives_no_answer(tmp_path: Path) -> None:
    """After every case the gradient of a control net must be the mean over the ranks."""
    doubled = "torch.nn.init.constant_ = lambda w, _: w.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(2), None)[1])"
    report, _, log = told(tmp_path, MEAN.replace("    return {", f"    {doubled}\n    return {{"), [{"ranks": 2}])
    assert report["cases"] == {} and "gloo is wrong: a mean of 1.5 over the ranks came out as 3.0" in log


def test_lines_and_arguments_of_every_rank_count(tmp_path: Path) -> None:
    (tmp_path / "pkg.py").write_text("def f(rank, k):\n    if rank:\n        k += 1\n    else:\n        k += 2\n    return k\n")
    subject = MEAN.replace("    joined(case)", "    import pkg\n    pkg.f(case.rank, 5)\n    joined(case)")
    plan = {"changed": {"pkg.py": {"lines": [2, 3, 5], "gaps": []}}, "functions": {"pkg.py": ["f"]}}
    report, _, _ = told(tmp_path, subject, [{"ranks": 2}], plan)
    assert report["lines"] == {"num": 3, "missed": [], "text": 0}
    assert report["arguments"] == {"f(k)": ["5"], "f(rank)": ["0", "1"]}
    assert sorted(report["cases"]["0"]["lines"]) == ["pkg.py:2", "pkg.py:3", "pkg.py:5"]
