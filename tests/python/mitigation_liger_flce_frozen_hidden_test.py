"""The hook of pack liger_flce_frozen_hidden on a stand-in upstream: a small autograd Function of our own with the defect, and without."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import install_stand_in, speaks_for  # noqa: E402
from patchbench_mitigations import liger_flce_frozen_hidden as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

UPSTREAM = """
import torch
import torch.nn.functional as F

KIND = "{kind}"

def fused_linear_cross_entropy_forward(_input, weight, target, bias, reduction):
    is_made = _input.requires_grad
    if KIND == "right":
        is_made = is_made or weight.requires_grad or (bias is not None and bias.requires_grad)
    if KIND == "raising" and not is_made:
        raise UnboundLocalError("grad_weight")
    with torch.enable_grad():
        x, w, b = (None if t is None else t.detach().clone().requires_grad_() for t in (_input, weight, bias))
        loss = F.cross_entropy(F.linear(x, w, b), target.clone(), reduction=reduction)
        grads = iter(torch.autograd.grad(loss.sum(), [t for t in (x, w, b) if t is not None]))
    grads = [None if t is None else next(grads) for t in (x, w, b)]
    if not is_made:
        grads = [torch.zeros_like(x), None, None]
    return loss.detach(), grads

class LigerFusedLinearCrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _input, weight, target, bias=None, ce_weight=None, reduction="mean"):
        loss, ctx.grads = fused_linear_cross_entropy_forward(_input, weight, target, bias, reduction)
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        x, w, b = (None if g is None else g * grad_output.flatten()[0] for g in ctx.grads)
        return x, w, None, b, None, None
"""
CASES = [("weight",), ("bias",), ("weight", "bias")]


class Upstream:
    """A liger_kernel on the path, of one kind and version."""

    def __init__(self, folder: Path, kind: str, version: str):
        text = UPSTREAM.replace("{kind}", kind)
        install_stand_in(folder, "liger-kernel", version, {"liger_kernel/ops/fused_linear_cross_entropy.py": text})

    @property
    def function(self) -> Any:
        return importlib.import_module(fix.TARGET).LigerFusedLinearCrossEntropyFunction


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A defective stand-in for a measured release, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("faulty", "0.8.5"))
    speaks_for(monkeypatch, "0.6.2", "0.6.3", "0.8.5")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE", "LIGER_KERNEL_IMPL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in [n for n in sys.modules if n.partition(".")[0] == "liger_kernel"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    yield Upstream(tmp_path, kind, version)
    fix.disable()
    for name in [n for n in sys.modules if n.partition(".")[0] == "liger_kernel"]:
        del sys.modules[name]


def gradients(upstream: Upstream, trained: tuple[str, ...], reduction: str = "mean", factor: float = 0.5) -> dict[str, torch.Tensor | None]:
    """What a call of the release gives each of the trained inputs, and what it should: by name, and by "right_" and name."""
    generator = torch.Generator().manual_seed(25)
    given = {name: torch.randn(*shape, generator=generator) for name, shape in (("hidden", (6, 4)), ("weight", (9, 4)), ("bias", (9,)))}
    target = torch.randint(0, 9, (6,), generator=generator)
    leaves = {name: tensor.requires_grad_(name in trained) for name, tensor in given.items()}
    loss = upstream.function.apply(leaves["hidden"], leaves["weight"], target, leaves["bias"], None, reduction)
    sources = [leaves[name] for name in trained]
    got = torch.autograd.grad(loss.sum() * factor, sources, allow_unused=True)
    wanted = torch.autograd.grad(factor * F.cross_entropy(F.linear(*given.values()), target, reduction=reduction).sum(), sources)
    return dict(zip(trained, got, strict=True)) | {f"right_{n}": g for n, g in zip(trained, wanted, strict=True)}


@pytest.mark.parametrize("upstream", [("faulty", "0.8.5"), ("raising", "0.6.3")], indirect=True)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("trained", CASES)
def test_the_head_over_a_frozen_trunk_gets_its_gradients(upstream: Upstream, trained: tuple[str, ...], reduction: str) -> None:
    before = fix.probe().state
    assert before == {"0.8.5": "gradient_missing", "0.6.3": "forward_raises"}[fix.probe().version]
    fix.enable()
    got = gradients(upstream, trained, reduction)
    for name in trained:
        assert torch.allclose(got[name], got[f"right_{name}"], atol=1e-6)
    assert fix.status()["counts"] == {"served": 1} and fix.status()["mode"] == "exact"


def test_without_it_the_head_gets_none(upstream: Upstream) -> None:
    assert gradients(upstream, ("weight", "bias"))["weight"] is None


@pytest.mark.parametrize(("trained", "reduction"), [(("hidden", "weight", "bias"), "mean"), (("hidden",), "sum")])
def test_a_trained_trunk_goes_to_the_release_untouched(upstream: Upstream, trained: tuple[str, ...], reduction: str) -> None:
    fix.enable()
    got = gradients(upstream, trained, reduction)
    for name in trained:
        assert torch.allclose(got[name], got[f"right_{name}"], atol=1e-6)
    assert fix.status()["counts"] == {"served": 0}


def test_reduction_none_and_evaluation_go_to_the_release_untouched(upstream: Upstream) -> None:
    fix.enable()
    assert gradients(upstream, ("weight",), "none")["weight"] is None
    upstream.function.apply(torch.randn(6, 4), torch.randn(9, 4), torch.zeros(6, dtype=torch.int64), None, None, "mean")
    assert fix.status()["counts"] == {"served": 0}


@pytest.mark.parametrize("upstream", [("right", "0.6.2")], indirect=True)
def test_is_not_needed_where_the_release_is_right(upstream: Upstream) -> None:
    assert fix.probe().state == "right" and not fix.enable()["on"]


def test_refuses_what_was_not_measured(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    speaks_for(monkeypatch, "0.8.4")
    with pytest.raises(Refused, match=r"not verified on \S+ 0\.8\.5"):
        fix.enable()
    assert not fix.status()["on"]


def test_refuses_another_implementation(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGER_KERNEL_IMPL", "cutile")
    with pytest.raises(Refused, match="LIGER_KERNEL_IMPL=cutile"):
        fix.enable()


def test_puts_the_very_original_back(upstream: Upstream) -> None:
    original = vars(upstream.function)["forward"]
    fix.enable()
    assert vars(upstream.function)["forward"] is not original
    fix.disable()
    assert vars(upstream.function)["forward"] is original
