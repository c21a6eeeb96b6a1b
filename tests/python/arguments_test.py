"""Which arguments of a package's functions had more than one value."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

HARNESS = Path(__file__).resolve().parents[2] / "repro/harness"
SOURCE = """
class Layer:
    def forward(self, x, bias=None, *, scale=1.0, config=None, **rest):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


@triton.jit
def kernel(x):
    return x


def other(y):
    return y
"""


@pytest.fixture
def values(tmp_path, monkeypatch):
    """`values(call)` gives what is reported after call(module)."""
    monkeypatch.syspath_prepend(str(HARNESS))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "package").mkdir()
    path = tmp_path / "package/code.py"
    path.write_text(SOURCE)

    def run(call, names=("Layer.forward", "Layer.backward", "kernel", "absent")):
        looked = importlib.import_module("arguments").Arguments({"package/code.py": list(names), "package/gone.py": ["f"]})
        watch = importlib.import_module("watch").Watch(looked)
        space = {"triton": type("Triton", (), {"jit": staticmethod(lambda f: f)})}
        exec(compile(SOURCE, str(path), "exec"), space)
        before = sys.gettrace()
        watch.start()
        try:
            call(space)
        finally:
            sys.settrace(before)
        return looked.report()

    return run


def test_one_value_is_one_and_two_are_enough(values):
    def call(module):
        layer = module["Layer"]()
        for scale in (1.0, 2.0, 3.0):
            layer.forward(4, scale=scale)

    assert values(call) == {"Layer.forward(bias)": ["None"], "Layer.forward(config)": ["None"],
                            "Layer.forward(scale)": ["1.0", "2.0"], "Layer.forward(x)": ["4"]}  # fmt: skip


def test_a_tensor_is_looked_at_where_it_is_given(values):
    def call(module):
        module["Layer"]().forward(torch.ones(2), bias=torch.ones(2))
        module["Layer"].backward(None, torch.ones(2))

    report = values(call)
    assert [len(report[f"Layer.{name}"]) for name in ("forward(x)", "forward(bias)", "backward(grad)", "forward(scale)")] == [2, 2, 2, 1]


def test_of_a_dict_each_key_is_an_argument(values):
    report = values(lambda module: module["Layer"]().forward(1, dtype=torch.float16))
    assert report["Layer.forward(rest[dtype])"] == ["torch.float16"]


def test_an_object_is_named_without_its_values_and_kernels_and_other_functions_are_not(values):
    def call(module):
        module["Layer"]().forward(1, config=object())
        module["kernel"](1)
        module["other"](1)

    report = values(call)
    assert sorted(report) == ["Layer.forward(bias)", "Layer.forward(config)", "Layer.forward(scale)", "Layer.forward(x)"]
    assert len(report["Layer.forward(config)"]) == 2


def test_a_kernel_that_nobody_looks_at_runs_without_a_trace_function(values, monkeypatch):
    during = []

    class GridExecutor:
        def __call__(self):
            during.append(sys.gettrace())

    interpreter = type(sys)("triton.runtime.interpreter")
    interpreter.GridExecutor = GridExecutor
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", interpreter)
    watch = importlib.import_module("watch").Watch()
    watch.next_case()
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        GridExecutor()()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert during == [None] and after is not None
