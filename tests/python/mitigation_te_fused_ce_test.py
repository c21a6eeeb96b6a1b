"""The hook of pack te_fused_ce on a stand-in upstream: a small autograd Function of our own with the defects, and as it should be."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import install_stand_in, speaks_for  # noqa: E402
from patchbench_mitigations import te_fused_ce as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

UPSTREAM = """
import torch
import torch.nn.functional as F

KIND = "{kind}"

class CrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _input, target, label_smoothing=0.0, reduce_loss=False, dist_process_group=None, ignore_idx=-100,
                is_cg_capturable=False):
        with torch.enable_grad():
            leaf = _input.detach().clone().requires_grad_()
            loss = F.cross_entropy(leaf.float().flatten(0, 1), target.reshape(-1), label_smoothing=label_smoothing, reduction="none",
                                   ignore_index=ignore_idx).view(target.shape)
            if reduce_loss:
                count = target.numel() if KIND == "faulty" else (target != ignore_idx).sum()
                loss = loss.sum() / count
        ctx.graph = (loss, leaf)
        return loss.detach()

    @staticmethod
    def backward(ctx, grad_output):
        if KIND == "faulty" and grad_output.dim() > 0:
            grad_output = grad_output.flatten()[0].expand(grad_output.shape)
        (grad,) = torch.autograd.grad(*ctx.graph, grad_output, retain_graph=True)
        return grad, None, None, None, None, None, None

parallel_cross_entropy = CrossEntropyFunction.apply
"""


class Upstream:
    """A transformer_engine on the path, of one kind and version."""

    def __init__(self, folder: Path, kind: str, version: str):
        text = UPSTREAM.replace("{kind}", kind)
        install_stand_in(folder, "transformer-engine", version, {"transformer_engine/pytorch/cross_entropy.py": text})

    @property
    def function(self) -> Any:
        return importlib.import_module(fix.TARGET).CrossEntropyFunction


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A defective stand-in for a measured release, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("faulty", "2.7.0"))
    speaks_for(monkeypatch, "2.7.0", "2.20.2")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE", "PATCHBENCH_OPS_LIB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in [n for n in sys.modules if n.partition(".")[0] == "transformer_engine"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    yield Upstream(tmp_path, kind, version)
    fix.disable()
    for name in [n for n in sys.modules if n.partition(".")[0] == "transformer_engine"]:
        del sys.modules[name]


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, stored in another way."""
    if layout == "transposed":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    return torch.cat([x, x], 1)[:, : x.shape[1]] if layout == "sliced" else x


def tensors(dtype: torch.dtype = torch.float32, layout: str = "rows") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels of which one is ignored, and a gradient whose first row is 0."""
    generator = torch.Generator().manual_seed(20)
    x = torch.randn(3, 4, 11, generator=generator).to(dtype)
    labels = torch.randint(0, 11, (3, 4), generator=generator)
    labels[1, 2] = -100
    grad = torch.randn(3, 4, generator=generator)
    grad[0, 0] = 0
    return laid(x, layout).requires_grad_(), laid(labels, layout), laid(grad, layout)


def right(x: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor, smoothing: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of one loss a token, in float64."""
    wide = x.detach().double().contiguous().requires_grad_()
    loss = F.cross_entropy(wide.flatten(0, 1), labels.reshape(-1), reduction="none", label_smoothing=smoothing).view(3, 4)
    return loss.detach(), torch.autograd.grad(loss, wide, grad.double())[0]


def assert_right(upstream: Upstream, *given: torch.Tensor, smoothing: float = 0.0, num_backwards: int = 1) -> None:
    x, labels, grad = given
    before = x.detach().clone()
    loss = upstream.function.apply(x, labels, smoothing, False, None, -100, False)
    for _ in range(num_backwards):
        (got,) = torch.autograd.grad(loss, x, grad, retain_graph=True)
    wanted, wanted_grad = right(x, labels, grad, smoothing)
    tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[x.dtype]
    assert (loss.double() - wanted).abs().max() < 1e-5 and got.dtype == x.dtype
    assert (got.double() - wanted_grad).abs().max() < tolerance
    assert torch.equal(before, x.detach()), "the logits are kept"


def test_sees_what_the_release_does(upstream: Upstream) -> None:
    found = fix.probe()
    assert found.state == "row_zero_gradient" and found.version == "2.7.0"
    wrong = {site for site, seen in found.sites.items() if seen == "wrong"}
    assert wrong == {"row_zero_gradient", "storage_order_gradient", "ignored_labels"}


@pytest.mark.parametrize("layout", ["rows", "transposed", "sliced"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_each_row_has_its_own_gradient(upstream: Upstream, layout: str, dtype: torch.dtype, smoothing: float) -> None:
    with pytest.raises(AssertionError):
        assert_right(upstream, *tensors(dtype, layout), smoothing=smoothing)
    fix.enable("plain")
    assert_right(upstream, *tensors(dtype, layout), smoothing=smoothing)
    assert fix.status()["counts"] == {"op": 0, "plain": 1}


def test_serves_several_backwards_and_expanded_gradients(upstream: Upstream) -> None:
    fix.enable("plain")
    x, labels, _ = tensors()
    assert_right(upstream, x, labels, torch.tensor([0.5, 9.0])[0].expand(3, 4), num_backwards=3)


def test_fills_ignored_rows_whatever_their_gradient_is(upstream: Upstream) -> None:
    fix.enable("plain")
    x, labels, grad = tensors()
    grad = grad.masked_fill(labels == -100, torch.inf)
    loss = upstream.function.apply(x, labels, 0.0, False, None, -100, False)
    (got,) = torch.autograd.grad(loss, x, grad)
    assert got.isfinite().all() and got[1, 2].abs().max() == 0


def test_the_mean_counts_the_rows_with_a_label(upstream: Upstream) -> None:
    fix.enable("plain")
    x, labels, _ = tensors()
    loss = upstream.function.apply(x, labels, 0.0, True, None, -100, False)
    assert torch.allclose(loss, F.cross_entropy(x.detach().flatten(0, 1), labels.flatten()), atol=1e-6)


def test_a_vocabulary_over_ranks_is_the_whole_one() -> None:
    x, labels, grad = tensors()
    parts = x.detach()[..., :10].chunk(2, 2)
    labels = labels.clamp(max=9)
    wanted, wanted_grad = right(x[..., :10], labels, grad, 0.1)

    class Rank(fix.Problem):
        rank, num_ranks = 0, 2

    problems = [Rank(part, labels, 0.1, False, -100, None, False) for part in parts]
    problems[1].__class__ = type("Second", (Rank,), {"rank": 1})
    statistics = fix.combined(torch.stack([fix.local_statistics(problem) for problem in problems]))
    for problem in problems:
        assert (fix.loss_of(problem, statistics).double() - wanted).abs().max() < 1e-5
    got = torch.cat([fix.gradient_of(problem, statistics, grad) for problem in problems], 2)
    assert (got.double() - wanted_grad).abs().max() < 1e-6


def test_refuses_what_was_not_measured(tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    speaks_for(monkeypatch, "2.8.0")
    with pytest.raises(Refused, match=r"not verified on \S+ 2\.7\.0"):
        fix.enable("plain")
    assert not fix.status()["on"]


@pytest.mark.parametrize("upstream", [("right", "2.20.2")], indirect=True)
def test_is_not_needed_where_the_release_is_right(upstream: Upstream) -> None:
    assert fix.probe().state == "right"
    assert not fix.enable("plain")["on"]


def test_puts_the_very_originals_back(upstream: Upstream) -> None:
    both = vars(upstream.function)["forward"], vars(upstream.function)["backward"]
    fix.enable("plain")
    assert vars(upstream.function)["forward"] is not both[0]
    fix.disable()
    assert (vars(upstream.function)["forward"], vars(upstream.function)["backward"]) == both


def test_refuses_a_second_derivative_and_other_labels(upstream: Upstream) -> None:
    fix.enable("plain")
    x, labels, grad = tensors()
    loss = upstream.function.apply(x, labels, 0.0, False, None, -100, False)
    with pytest.raises(Refused, match="cannot be differentiated again"):
        torch.autograd.grad(loss, x, grad, create_graph=True)
    with pytest.raises(Refused, match="must have dtype int64"):
        upstream.function.apply(x, labels.int(), 0.0, False, None, -100, False)
    with pytest.raises(Refused, match="12 tokens, 8 labels"):
        upstream.function.apply(x, labels[:2], 0.0, False, None, -100, False)


def test_says_that_megatron_calls_it(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Megatron" not in fix.probe().reason
    stand_in = types.ModuleType(fix.MEGATRON)
    stand_in.parallel_cross_entropy = importlib.import_module(fix.TARGET).parallel_cross_entropy
    monkeypatch.setitem(sys.modules, fix.MEGATRON, stand_in)
    assert "Megatron's te_parallel_cross_entropy calls it" in fix.probe().reason
