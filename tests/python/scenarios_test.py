"""Each scenario: right code passes it, and code that is wrong in it alone does not."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "repro" / "harness"))

import subject_runtime as runtime  # noqa: E402
from scenarios import MODULES, SCENARIOS, fill  # noqa: E402

HELD: dict[str, Any] = {}
PARENT = os.getpid()
BARRIER = threading.Barrier(2)


class Product(torch.autograd.Function):
    """`(x * w).sum(-1)`, with one fault by name."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, fault: str) -> torch.Tensor:
        ctx.fault, ctx.shape = fault, x.shape
        ctx.save_for_backward(x, w)
        num_calls = HELD["calls"] = HELD.get("calls", 0) + 1
        if fault == "counts_calls" and num_calls > 1 or fault == "child" and os.getpid() != PARENT:
            return x.sum(-1)
        if fault == "keeps_shape" and HELD.setdefault("shape", x.shape) != x.shape:
            return x.sum(-1)
        if fault == "last_forward":
            HELD["saved"] = (x.detach().clone(), w.detach().clone())
        if fault == "thread" and threading.current_thread() is not threading.main_thread():
            is_case = bool(x.sum() > 18)  # the other thread, with half its values, is the last
            for is_mine in (is_case, not is_case):
                BARRIER.wait()
                if is_mine:
                    HELD["saved"] = (x.detach().clone(), w.detach().clone())
            BARRIER.wait()
        if fault == "open_forward":
            HELD["open"] = HELD.get("open", 0) + 1
        if fault == "overwrites":
            ctx.save_for_backward(x.clone(), w)
            x.data.mul_(2)
            return (x * w).sum(-1) / 2
        if fault == "wants_a_gradient" and not (x.requires_grad or w.requires_grad):
            return x.sum(-1)
        if fault == "wants_no_inference" and torch.is_inference_mode_enabled():
            return x.sum(-1)
        if fault == "host_value":
            return x.new_tensor([float(row @ other) for row, other in zip(x.detach(), w.detach(), strict=True)])
        if fault == "stream_0" and x.is_cuda:
            with torch.cuda.stream(torch.cuda.default_stream(x.device)):
                return (x * w).sum(-1)
        if fault == "compiled" and torch.compiler.is_compiling():
            return x.sum(-1)
        if fault == "wants_no_autocast" and torch.is_autocast_enabled("cpu"):
            return x.sum(-1)
        return (x * w).sum(-1)

    @staticmethod
    def backward(ctx: Any, by: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w = ctx.saved_tensors
        if ctx.fault in ("last_forward", "thread") and "saved" in HELD:
            x, w = HELD["saved"]
        if ctx.fault == "runs_once" and HELD["calls"] > HELD.get("before", 0) + 1:
            x = x * 2
        if ctx.fault == "open_forward":
            HELD["open"] -= 1
            if HELD["open"]:
                x = x * 2
        grad_x, grad_w = by[..., None] * w, by[..., None] * x
        if ctx.fault == "frozen" and not all(ctx.needs_input_grad[:2]):
            grad_x = grad_w = grad_x + grad_w
        return grad_x, grad_w, None


def subject(fault: str) -> Any:
    def run(case: runtime.Case) -> dict[str, torch.Tensor]:
        x, w = (case.tensors[name].detach().requires_grad_() for name in ("x", "w"))
        if fault == "leaf" and not x.is_leaf:
            w = w * 2
        out = Product.apply(x, w, fault)
        grad_x, grad_w = torch.autograd.grad(out, (x, w), torch.ones_like(out))
        if fault == "adds_itself" and x.grad is not None:
            grad_x = grad_x * 2
        return {"out": out, "grad_x": grad_x, "grad_w": grad_w}

    return type("Subject", (), {"run": staticmethod(run), "PACKAGE": "torch"})


class Net(torch.nn.Module):
    """`(x * w).sum(-1)` with w for a parameter, and one fault by name."""

    def __init__(self, w: torch.Tensor, fault: str):
        super().__init__()
        self.fault, self.num_calls, self.w = fault, 0, torch.nn.Parameter(w.clone())
        HELD["made"] = self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.fault == "knows_its_objects" and HELD["made"] is not self or self.fault == "counts_forwards" and self.num_calls > 1:
            return x.sum(-1)
        if self.fault == "writes_to_the_made" and HELD["made"] is not self:
            HELD["made"].w.data.mul_(2)
        return (x * self.w).sum(-1)


def subject_with_a_module(fault: str) -> Any:
    def run(case: runtime.Case) -> dict[str, torch.Tensor]:
        net, x = case.module(Net(case.tensors["w"], fault)), case.tensors["x"].requires_grad_()
        out = net(x)
        grad_x, grad_w = torch.autograd.grad(out, (x, net.w), torch.ones_like(out))
        num_names = len(list(net.named_parameters(remove_duplicate=False))) if fault == "each_name" else 1
        return {"out": out, "grad_x": grad_x, "grad_w": grad_w * num_names}

    return type("Subject", (), {"run": staticmethod(run), "PACKAGE": "torch"})


def answer(fault: str, scenario: str | None, name: str = "case") -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    HELD.clear()
    BARRIER.reset()
    views = {n: {"storage": f"{name}/{n}", "sizes": [3, 4], "strides": [4, 1], "offset": 0} for n in ("x", "w")}
    small = {n: {"storage": f"small/{n}", "sizes": [2, 4], "strides": [4, 1], "offset": 0} for n in ("x", "w")}
    axes = {} if scenario is None else {"scenario": scenario}
    entries = {name: {"name": name, "axes": axes, "inputs": views}, "small": {"name": "small", "axes": {}, "inputs": small}}
    storages = {f"{case}/{n}": torch.linspace(i + 1, i + 3, 12) for case in entries for i, n in enumerate(("x", "w"))}
    if scenario == "autocast":  # its dtype is that of such a tensor
        views["half"] = {"storage": "half", "sizes": [1], "strides": [1], "offset": 0}
        storages["half"] = torch.ones(1, dtype=torch.bfloat16)
    case = runtime.Batch(entries, storages, "cuda:0" if scenario in ON_A_GPU else "cpu").case(name)
    has_module = scenario in MODULES or fault in [FAULTS[name] for name in MODULES]
    report, outputs = runtime.run_case((subject_with_a_module if has_module else subject)(fault), case)
    return report, {output: tensor.cpu() for output, tensor in outputs.items()}


def is_right(fault: str, scenario: str, name: str = "case") -> bool:
    """Whether the outputs in the scenario equal those that right code has alone."""
    wanted = answer("", None, name)[1]
    report, got = answer(fault, scenario, name)
    if report["status"] != "ok":
        return False
    kept = [tensor for output, tensor in got.items() if "/kept/" in output]
    return all(torch.equal(tensor, wanted[output]) for output, tensor in got.items() if "/kept/" not in output) and not any(
        tensor.any() for tensor in kept
    )


def is_right_in_a_new_process(*arguments: str) -> bool:
    """As `is_right`, where no other test has started a thread of autograd."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(is_right, arguments)


ON_A_GPU = ("streams", "captured")
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BY_DEVICE = [pytest.param(name, marks=[NEEDS_CUDA] if name in ON_A_GPU else []) for name in SCENARIOS]


@pytest.mark.parametrize("scenario", BY_DEVICE)
def test_right_code_passes(scenario: str) -> None:
    if scenario == "forked":
        assert is_right_in_a_new_process("", scenario)
        return
    for name in ("case", "b", "c", "d", "e", "f"):  # the name chooses the order, and what is frozen
        assert is_right("", scenario, name), (name, answer("", scenario, name)[0])


FAULTS = {
    "twice": "counts_calls", "after": "keeps_shape", "two_live": "last_forward", "inputs_kept": "overwrites", "frozen": "frozen",
    "no_grad": "wants_a_gradient", "inference_mode": "wants_no_inference", "from_op": "leaf", "adds_up": "adds_itself",
    "raised_between": "open_forward", "checkpointed": "runs_once", "threads": "thread", "forked": "child",
    "autocast": "wants_no_autocast", "compiled": "compiled", "copied": "knows_its_objects", "tied": "each_name",
    "evaluated": "counts_forwards", "streams": "stream_0", "captured": "host_value",
}  # fmt: skip


@pytest.mark.parametrize("scenario", BY_DEVICE)
def test_wrong_code_fails_in_its_scenario_alone(scenario: str) -> None:
    report, got = answer(FAULTS[scenario], None)
    assert report["status"] == "ok" and all(torch.equal(got[n], t) for n, t in answer("", None)[1].items())
    is_right_there = is_right_in_a_new_process if scenario == "forked" else is_right
    assert not is_right_there(FAULTS[scenario], scenario)


def test_a_copy_that_changes_its_original_is_seen() -> None:
    report, got = answer("writes_to_the_made", "copied")
    assert report["status"] == "ok" and got["case/kept/module"].item() > 0
    assert answer("", "copied")[1]["case/kept/module"].item() == 0


def test_a_subject_without_a_module_has_no_scenario_of_one() -> None:
    for scenario in MODULES:
        case = runtime.Batch({"a": {"name": "a", "axes": {"scenario": scenario}, "inputs": {}}}, {}, "cpu").case("a")
        report, _ = runtime.run_case(type("Subject", (), {"run": staticmethod(lambda _: {"out": torch.ones(1)})}), case)
        assert report["status"] == "unsupported" and "module" in report["reason"]


def test_values_are_written_under_expanded_and_offset_views() -> None:
    def of(value: float) -> SimpleNamespace:
        flat = torch.full((8,), value)
        return SimpleNamespace(tensors={"expanded": torch.full((1,), value).expand(5), "offset": flat[2:].view(2, 3).t()})

    other, case = of(1.0), of(2.0)
    fill(other, case)
    assert all(torch.equal(tensor, case.tensors[name]) for name, tensor in other.tensors.items())


def test_a_subject_without_a_backward_has_no_such_scenario() -> None:
    case = runtime.Batch({"a": {"name": "a", "axes": {"scenario": "two_live"}, "inputs": {}}}, {}, "cpu").case("a")
    plain = type("Subject", (), {"run": staticmethod(lambda _: {"out": torch.ones(1)})})
    for scenario in ("two_live", "frozen", "from_op", "adds_up", "raised_between", "checkpointed"):
        case.axes["scenario"] = scenario
        report, _ = runtime.run_case(plain, case)
        assert report["status"] == "unsupported" and report["reason"], scenario
