"""What `watch` counts at a function, on stand-in upstreams: the place, the step, nested and traced calls; and that it changes nothing."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import install_stand_in  # noqa: E402
from mitigation_liger_flce_none_bwd_test import UPSTREAM  # noqa: E402
from patchbench_mitigations import counting, watch  # noqa: E402

LOSS = "liger_kernel.ops.fused_linear_cross_entropy"
MODULES = {
    f"{LOSS.replace('.', '/')}.py": UPSTREAM.replace("{kind}", "faulty"),
    "transformer_engine/pytorch/cross_entropy.py": """
import torch

class CrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inp, target, label_smoothing=0.0, reduce_loss=False, dist_process_group=None, ignore_idx=-100):
        ctx.save_for_backward(inp)
        return inp.square().sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.saved_tensors[0] * grad_output[..., None], None, None, None, None, None
""",
    "mamba_ssm/modules/mamba3.py": """
import torch

class Mamba3(torch.nn.Module):
    def __init__(self, d_model, d_state=128, expand=2, headdim=64, ngroups=1, *, is_mimo=False):
        super().__init__()
        self.ngroups = ngroups
""",
    "mamba_ssm/ops/triton/mamba3/mamba3_siso_combined.py": """
def mamba3_siso_combined(x, *, cu_seqlens=None):
    \"\"\"Doubles.\"\"\"
    return x + x

def both(x):
    return mamba3_siso_combined(x, cu_seqlens=x)
""",
}
CROSS = "transformer_engine.pytorch.cross_entropy"
SISO = "mamba_ssm.ops.triton.mamba3.mamba3_siso_combined"
Module = Any


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in {file.partition("/")[0] for file in MODULES}]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture(params=["0.8.0"])
def upstreams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Stand-ins on the path; what is yielded starts to watch."""
    for project, version in {"liger-kernel": request.param, "mamba-ssm": "2.3.2.post1", "transformer-engine": "2.10.0"}.items():
        root = project.replace("-", "_")
        install_stand_in(tmp_path, project, version, {file: text for file, text in MODULES.items() if file.startswith(root)})
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    for held in (watch._options, watch._versions, watch._tried):
        held.clear()
    counting._traced_places.clear()
    monkeypatch.setattr(counting, "_watches", [])
    monkeypatch.setattr(counting, "_num_steps", [0])
    monkeypatch.setattr(counting, "_after_steps", [])
    monkeypatch.setattr(watch.atexit, "register", lambda _: None)
    meta_path = list(sys.meta_path)
    yield watch.start
    watch.stop()
    sys.meta_path[:] = meta_path
    forget()


def row(slug: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in watch.summary()["classes"] if (one["slug"], one["class"]) == (slug, name)]
    return found


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(4, 6, generator=generator), torch.randn(9, 6, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.tensor([1, 2, 3, 4])


def loss(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, reduction: str = "none") -> torch.Tensor:
    function = sys.modules[LOSS].LigerFusedLinearCrossEntropyFunction
    return function.apply(hidden, weight, target, None, None, -100, 0.0, 0.0, reduction, None, False, False)[0]


def line_of_apply() -> int:
    lines, first = inspect.getsourcelines(loss)
    return first + next(i for i, text in enumerate(lines) if ".apply(" in text)


def test_a_gradient_that_differs_is_counted_at_the_line_of_its_forward(upstreams: Callable[[], None]) -> None:
    upstreams()
    importlib.import_module(LOSS)
    hidden, weight, target = tensors()
    optimizer = torch.optim.SGD([hidden, weight], lr=0.1)
    for factor in (torch.ones(4), torch.tensor([0.0, 1, 2, 3]), torch.tensor([1.0, 1, 1, 2])):
        (loss(hidden, weight, target) * factor).sum().backward()
        optimizer.step()
    loss(hidden, weight, target).sum().backward()
    loss(hidden, weight, target, "mean").backward()
    found = row("liger_flce_none_bwd", "wrong_gradients")
    assert (found["state"], found["met"], found["calls"]) == ("met", 2, 5)
    place = {"file": __file__, "line": line_of_apply(), "function": f"{LOSS}.LigerFusedLinearCrossEntropyFunction.backward"}
    assert found["places"] == [{**place, "calls": 2, "traced": 0, "first_step": 2}]
    assert row("liger_flce_frozen_hidden", "gradient_missing")["state"] == "not_met"
    assert watch.summary()["steps"] == 3


def test_a_frozen_trunk_is_counted_and_an_evaluation_is_not(upstreams: Callable[[], None]) -> None:
    upstreams()
    importlib.import_module(LOSS)
    hidden, weight, target = tensors()
    with torch.no_grad():
        loss(hidden, weight, target, "mean")
    assert row("liger_flce_frozen_hidden", "gradient_missing")["met"] == 0
    loss(hidden.detach(), weight, target, "mean").backward()
    assert row("liger_flce_frozen_hidden", "gradient_missing")["met"] == 1


@pytest.mark.parametrize("upstreams", ["0.8.5"], indirect=True)
def test_a_release_that_is_not_hit_gives_0_and_says_so(upstreams: Callable[[], None]) -> None:
    upstreams()
    module = importlib.import_module(LOSS)
    hidden, weight, target = tensors()
    (loss(hidden, weight, target) * torch.arange(4)).sum().backward()
    found = row("liger_flce_none_bwd", "wrong_gradients")
    assert (found["state"], found["met"]) == ("not_shown", 0) and found["record"]
    said = "0 calls met the condition of liger_flce_none_bwd/wrong_gradients: no record shows it in liger-kernel 0.8.5, record "
    assert said in watch.text(watch.summary())
    assert "reduction_ignored" not in {one.name for held in watch._placed.values() for one in held[4].watches}, module


@pytest.mark.parametrize("upstreams", ["0.8.0+acme"], indirect=True)
def test_a_release_without_a_record_is_not_known(upstreams: Callable[[], None]) -> None:
    upstreams()
    importlib.import_module(LOSS)
    hidden, weight, target = tensors()
    (loss(hidden, weight, target) * torch.arange(4)).sum().backward()
    assert row("liger_flce_none_bwd", "wrong_gradients")["state"] == "not_known"
    said = watch.text(watch.summary())
    assert "not known: liger_flce_none_bwd/wrong_gradients: no record speaks for liger-kernel 0.8.0+acme; 1 of 1 calls would meet" in said
    assert "\nmet the condition of liger" not in said


def test_arguments_are_a_part_of_a_condition(upstreams: Callable[[], None]) -> None:
    upstreams()
    mamba = importlib.import_module("mamba_ssm.modules.mamba3")
    mamba.Mamba3(8, is_mimo=True, ngroups=2)
    mamba.Mamba3(8, is_mimo=True)
    mamba.Mamba3(8, 48)
    mamba.Mamba3(8, is_mimo=1, ngroups=[2])
    found = row("mamba3_mimo_gqa_bwd", "groups_refused")
    assert (found["state"], found["met"], found["calls"]) == ("met_part", 2, 4)
    assert found["looked_at"] == "The arguments is_mimo, ngroups, nothing else."
    overlap = row("mamba3_siso_bwd_cse", "states_overlap")
    assert (overlap["met"], overlap["places"][0]["function"]) == (1, "mamba_ssm.modules.mamba3.Mamba3")
    assert "met a part of the condition of mamba3_mimo_gqa_bwd/groups_refused: 2 of 4 calls; mamba-ssm 2.3.2.post1, record " in watch.text(
        watch.summary())  # fmt: skip


def test_a_call_inside_of_a_counted_one_is_the_same_call(upstreams: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"name": "x", "unless": [None], "default": None}
    found = watch.calls()
    monkeypatch.setattr(watch, "calls", lambda: {**found, f"{SISO}.both": [("mamba3_siso_bwd_cse", "states_overlap", [rule])]})
    upstreams()
    module = importlib.import_module(SISO)
    module.both(1)
    one = row("mamba3_siso_bwd_cse", "states_overlap")
    assert [(place["function"], place["calls"]) for place in one["places"]] == [(f"{SISO}.both", 1)]
    module.mamba3_siso_combined(1, cu_seqlens=2)
    assert row("mamba3_siso_bwd_cse", "states_overlap")["met"] == 2


def test_nothing_of_what_is_watched_changes(upstreams: Callable[[], None]) -> None:
    def shown() -> tuple[Any, ...]:
        forget()
        mamba, siso = importlib.import_module("mamba_ssm.modules.mamba3"), importlib.import_module(SISO)
        importlib.import_module(LOSS)
        hidden, weight, target = tensors()
        out = loss(hidden, weight, target)
        (out * torch.arange(4)).sum().backward()
        layer = mamba.Mamba3(8, is_mimo=True, ngroups=2)
        own = type("Own", (mamba.Mamba3,), {})(4, ngroups=3)
        function = siso.mamba3_siso_combined
        forward = sys.modules[LOSS].LigerFusedLinearCrossEntropyFunction.forward
        kept = [str(inspect.signature(one)) for one in (mamba.Mamba3, function, forward)]
        assert pickle.loads(pickle.dumps(function)) is function and pickle.loads(pickle.dumps(layer)).ngroups == 2
        assert copy.deepcopy(own).ngroups == 3 and isinstance(own, mamba.Mamba3)
        return kept, function.__doc__, sorted(vars(layer)), sorted(vars(out)), out, hidden.grad, weight.grad

    before = shown()
    forget()
    upstreams()
    after = shown()
    assert row("liger_flce_none_bwd", "wrong_gradients")["met"] == 1
    assert before[:4] == after[:4] and all(map(torch.equal, before[4:], after[4:]))
    originals = [held[2] for held in watch._placed.values()]
    holders = [(held[0], held[1]) for held in watch._placed.values()]
    watch.stop()
    assert originals and all(vars(holder)[name] is one for (holder, name), one in zip(holders, originals, strict=True))


def test_a_condition_that_fails_ends_no_call(upstreams: Callable[[], None]) -> None:
    upstreams()
    module = importlib.import_module(LOSS)
    held = next(one for one in watch._placed.values() if one[1] == "backward")
    (found,) = [one for one in held[4].watches if one.name == "wrong_gradients"]
    found.holds = lambda args, words: args[1].no_such_thing
    hidden, weight, target = tensors()
    loss(hidden, weight, target).sum().backward()
    assert hidden.grad is not None and module
    assert row("liger_flce_none_bwd", "wrong_gradients")["not_looked_at"] == 1
    assert "not looked at: 1 calls (AttributeError: " in watch.text(watch.summary())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graph_stays_whole_and_a_trace_is_counted(upstreams: Callable[[], None], backend: str) -> None:
    upstreams()
    module = importlib.import_module(SISO)
    torch.compiler.reset()
    graphs = []
    lowered = torch._dynamo.lookup_backend(backend)

    def keep(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append([(node.op, str(node.target)) for node in graph.graph.nodes if node.op != "placeholder"])
        return lowered(graph, inputs)

    def step(x: torch.Tensor, function: Callable[..., Any] = module.mamba3_siso_combined) -> torch.Tensor:
        return function(x, cu_seqlens=x) * 3

    compiled = torch.compile(step, fullgraph=True, backend=keep)
    x = torch.arange(4.0)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 6)
    watched, graphs[:] = list(graphs), []
    torch.compiler.reset()
    original = next(held[2] for held in watch._placed.values() if held[1] == "mamba3_siso_combined")
    assert torch.equal(torch.compile(lambda one: step(one, original), fullgraph=True, backend=keep)(x), x * 6)
    assert len(watched) == 1 and watched == graphs
    found = row("mamba3_siso_bwd_cse", "states_overlap")
    assert [(place["file"], place["traced"], place["calls"]) for place in found["places"]] == [(__file__, 1, 0)]
    assert "1 traced by torch.compile, first in step 1" in watch.text(watch.summary())


def test_values_are_not_looked_at_in_a_graph(upstreams: Callable[[], None]) -> None:
    upstreams()
    function = importlib.import_module(CROSS).CrossEntropyFunction
    torch.compiler.reset()

    def train(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (function.apply(logits[:, :-1], target[:, 1:], 0.0, False, None, -100) * weight).sum()

    target, weight = torch.zeros(2, 4, dtype=torch.int64), torch.arange(6.0).view(2, 3)
    logits = [torch.ones(2, 4, 5, requires_grad=True) for _ in range(2)]
    train(logits[0], target).backward()
    rows = {name: row("te_fused_ce", name) for name in ("sliced_sequence", "sliced_labels", "ignored_labels")}
    assert [(one["state"], one["met"], one["calls"], one["not_looked_at"]) for one in rows.values()] == [
        ("met", 1, 1, 0), ("met", 1, 1, 0), ("not_met", 0, 1, 0)]  # fmt: skip
    compiled = torch.compile(train, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        compiled(logits[1], target).backward()
    assert torch.equal(logits[1].grad, 3 * logits[0].grad)
    rows = {name: row("te_fused_ce", name) for name in rows}
    assert [(one["met"], [place["calls"] for place in one["places"]]) for one in rows.values()][:2] == [(2, [1])] * 2
    assert rows["sliced_labels"]["places"][0]["traced"] == 1
    assert (rows["ignored_labels"]["calls"], rows["ignored_labels"]["not_looked_at"]) == (1, 1)
    assert "not looked at: 1 calls (inside of torch.compile)" in watch.text(watch.summary())


class Queue:
    """A stream on which nothing has run yet, with its event."""

    def __init__(self) -> None:
        self.has_run = False

    def query(self) -> bool:
        return self.has_run

    def record(self) -> None:
        self.has_run = False


def test_a_count_on_a_device_is_read_once_it_has_arrived(upstreams: Callable[[], None]) -> None:
    upstreams()
    importlib.import_module(LOSS)
    held = next(one for one in watch._placed.values() if one[1] == "backward")
    one = next(one for one in held[4].watches if one.name == "wrong_gradients")
    found = counting._row(one, counting.Place("train.py", 3, None))
    for flag in (True, False, True):
        found._add_on_device(torch.tensor(flag))
    (on_device,) = found.on_device.values()
    assert found.total == 0 and row("liger_flce_none_bwd", "wrong_gradients")["met"] == 0
    queue = Queue()
    on_device.take(queue)
    assert (found.total, queue.has_run) == (0, False)
    found._add_on_device(torch.tensor(True))
    on_device.take(queue)
    assert found.total == 0
    queue.has_run = True
    on_device.take(queue)
    assert found.total == 2
    counting.refresh(is_last=True)
    assert found.total == 3 and row("liger_flce_none_bwd", "wrong_gradients")["places"][0]["first_step"] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_counts_without_a_sync(upstreams: Callable[[], None]) -> None:
    upstreams()
    function = importlib.import_module(CROSS).CrossEntropyFunction
    logits, target = torch.ones(2, 4, 5, device="cuda", requires_grad=True), torch.zeros(2, 4, dtype=torch.int64, device="cuda")
    target[0, 0] = -100
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            function.apply(logits, target, 0.0, True, None, -100).sum().backward()
            counting.refresh()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    counting.refresh()
    assert row("te_fused_ce", "ignored_labels")["met"] in (1, 2, 3)
    counting.refresh(is_last=True)
    assert row("te_fused_ce", "ignored_labels")["met"] == 3


@pytest.mark.parametrize(("module", "name", "words"), [(SISO, "mamba3_siso_combined", {"cu_seqlens": 2})])
def test_a_call_costs_little(upstreams: Callable[[], None], module: str, name: str, words: dict[str, Any]) -> None:
    """reports/evidence/spine/watch-cost-cpu.json has the cost on an idle machine; the bound here is one for slow ones."""
    upstreams()
    function = getattr(importlib.import_module(module), name)

    def least_us(one: Callable[..., Any]) -> float:
        times = []
        for _ in range(200):
            before = time.perf_counter()
            for _ in range(100):
                one(1, **words)
            times.append((time.perf_counter() - before) * 1e4)
        return min(times)

    cost_us = least_us(function) - least_us(function.__wrapped__)
    print(f"{cost_us:.2f} us a call")
    assert cost_us < 10
