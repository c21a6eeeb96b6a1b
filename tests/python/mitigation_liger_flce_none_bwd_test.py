"""The hook of pack liger_flce_none_bwd on a stand-in upstream: a small autograd Function of our own with the defect."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import install_stand_in, speaks_for  # noqa: E402
from patchbench_mitigations import liger_flce_none_bwd as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

UPSTREAM = """
import torch
import torch.nn.functional as F

KIND = "{kind}"

class LigerFusedLinearCrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
                label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, use_token_scaling=False):
        leaves = [x.detach().requires_grad_() for x in (_input, weight, bias) if x is not None]
        with torch.enable_grad():
            y = F.linear(*leaves)
            loss = F.cross_entropy(y, target, ce_weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
                                   reduction=reduction)
            if reduction == "none" and KIND == "ignores":
                loss = loss.sum()
            grads = torch.autograd.grad(loss.sum(), leaves, retain_graph=True)
        if reduction == "none" and KIND == "right":
            ctx.graph = (loss, leaves)
        ctx.save_for_backward(*grads)
        return loss.detach(), (loss.detach() * 0 if return_z_loss else None)

    @staticmethod
    def backward(ctx, grad_output, grad_z):
        if grad_output.dim() == 1 and KIND == "right":
            grads = torch.autograd.grad(*ctx.graph, grad_output, retain_graph=True)
        else:
            grads = [g * grad_output.flatten()[0] for g in ctx.saved_tensors]
        bias = grads[2] if len(grads) > 2 else None
        return grads[0], grads[1], None, bias, *[None] * 8
"""


class Upstream:
    """A liger_kernel on the path, of one kind and version."""

    def __init__(self, folder: Path, kind: str, version: str):
        text = UPSTREAM.replace("{kind}", kind)
        install_stand_in(folder, "liger-kernel", version, {"liger_kernel/ops/fused_linear_cross_entropy.py": text})

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(fix.TARGET)

    def loss(self, t: dict[str, Any], **changes: Any) -> Any:
        """The Function's first output for the given tensors."""
        order = (
            "_input",
            "weight",
            "target",
            "bias",
            "ce_weight",
            "ignore_index",
            "lse_square_scale",
            "label_smoothing",
            "reduction",
            "softcap",
            "return_z_loss",
            "use_token_scaling",
        )
        defaults = dict.fromkeys(order) | {
            "ignore_index": -100,
            "lse_square_scale": 0.0,
            "label_smoothing": 0.0,
            "reduction": "none",
            "return_z_loss": False,
            "use_token_scaling": False,
        }
        arguments = defaults | {k: v for k, v in t.items() if k in order} | changes
        return self.module.LigerFusedLinearCrossEntropyFunction.apply(*arguments.values())[0]


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A defective stand-in for a measured release, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("faulty", "0.8.0"))
    speaks_for(monkeypatch, "0.5.2", "0.8.0", "0.8.5")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE", "PATCHBENCH_OPS_LIB", "LIGER_KERNEL_IMPL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = [n for n in sys.modules if n.partition(".")[0] == "liger_kernel"]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    yield Upstream(tmp_path, kind, version)
    fix.disable()
    for name in [n for n in sys.modules if n.partition(".")[0] == "liger_kernel"]:
        del sys.modules[name]


def tensors(dtype: torch.dtype = torch.float32, tokens: int = 9) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    t = {
        "_input": torch.randn(tokens, 6, generator=generator).to(dtype).requires_grad_(),
        "weight": torch.randn(21, 6, generator=generator).to(dtype).requires_grad_(),
        "bias": torch.randn(21, generator=generator).to(dtype).requires_grad_(),
        "target": torch.randint(0, 21, (tokens,), generator=generator),
        "ce_weight": torch.rand(21, generator=generator) + 0.2,
        "grad": torch.randn(tokens, generator=generator),
    }
    t["target"][0] = -100
    return t


FEATURES = {
    "bare": {},
    "smoothing": {"label_smoothing": 0.1},
    "z_loss": {"lse_square_scale": 0.02},
    "softcap": {"softcap": 3.0},
    "token_scaling": {"use_token_scaling": True},
    "all": {"label_smoothing": 0.1, "lse_square_scale": 0.02, "softcap": 3.0},
}


def reference(t: dict[str, torch.Tensor], f: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """loss and gradients in fp64 by composition."""
    leaves = [t[n].detach().double().requires_grad_() for n in ("_input", "weight", "bias")]
    y = F.linear(*leaves)
    if f.get("softcap"):
        y = f["softcap"] * torch.tanh(y / f["softcap"])
    loss = F.cross_entropy(y, t["target"], t["ce_weight"].double(), reduction="none", label_smoothing=f.get("label_smoothing", 0.0))
    valid = t["target"] != -100
    loss = loss + torch.where(valid, f.get("lse_square_scale", 0.0) * y.logsumexp(-1) ** 2, 0.0)
    if f.get("use_token_scaling"):
        loss = loss * y.softmax(-1).detach().gather(-1, t["target"].clamp(0).unsqueeze(-1)).squeeze(-1)
    return loss.detach(), *torch.autograd.grad(loss, leaves, t["grad"].double())


def gradients(loss: torch.Tensor, t: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, (t["_input"], t["weight"], t["bias"]), t["grad"])


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("chunk_rows", [2, 1000])
def test_plain_form_is_exact(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, feature: str, chunk_rows: int) -> None:
    monkeypatch.setattr(fix, "CHUNK_BYTES", chunk_rows * 21 * 4)
    t = tensors()
    fix.enable("plain")
    loss = upstream.loss(t, **FEATURES[feature])
    for got, wanted in zip((loss, *gradients(loss, t)), reference(t, FEATURES[feature]), strict=True):
        assert error(got, wanted) < 1e-6
    assert fix.status()["counts"]["plain"] == 1


@pytest.mark.parametrize("upstream", [("ignores", "0.5.2")], indirect=True)
def test_a_scalar_loss_becomes_per_token(upstream: Upstream) -> None:
    t = tensors()
    assert upstream.loss(t).dim() == 0 and fix.probe().state == "reduction_ignored"
    fix.enable("plain")
    loss = upstream.loss(t)
    assert error(loss, reference(t, {})[0]) < 1e-6
    with pytest.raises(Refused, match="has no per-token return_z_loss"):
        upstream.loss(t, return_z_loss=True)


def test_the_stand_in_shows_the_defect_without_the_fix(upstream: Upstream) -> None:
    t = tensors()
    assert error(gradients(upstream.loss(t), t)[1], reference(t, {})[2]) > 0.5
    assert fix.probe().state == "wrong_gradients"


def test_mean_and_sum_go_to_the_original(upstream: Upstream) -> None:
    t = tensors()
    before = [torch.autograd.grad(upstream.loss(t, reduction=r), t["weight"])[0] for r in ("mean", "sum")]
    fix.enable("plain")
    calls = dict(fix.status()["counts"])
    after = [torch.autograd.grad(upstream.loss(t, reduction=r), t["weight"])[0] for r in ("mean", "sum")]
    assert all(map(torch.equal, before, after)) and fix.status()["counts"] == calls


def test_switching_is_idempotent_reversible_and_logged_once(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    cls = upstream.module.LigerFusedLinearCrossEntropyFunction
    originals = cls.forward, cls.backward
    with caplog.at_level(logging.INFO, "patchbench.mitigations"):
        fix.enable("plain")
        hooked = cls.forward
        fix.enable("plain")
    assert cls.forward is hooked and len(caplog.records) == 1
    assert fix.status()["on"] and fix.probe().state == "wrong_gradients"
    fix.disable()
    fix.disable()
    assert (cls.forward, cls.backward) == originals and fix.status() == {"slug": fix.SLUG, "on": False}


@pytest.mark.parametrize("upstream", [("right", "0.8.5")], indirect=True)
def test_a_right_release_is_left_alone_even_if_forced(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    assert not fix.enable()["on"]


@pytest.mark.parametrize("upstream", [("faulty", "99.0")], indirect=True)
def test_an_unmeasured_release_needs_force(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="not verified on liger-kernel 99.0; PATCHBENCH_FORCE="):
        fix.enable()
    assert not fix.status()["on"]
    monkeypatch.setenv("PATCHBENCH_FORCE", f"other,{fix.SLUG}")
    assert fix.enable()["on"]


def test_without_gpu_and_interpreter_it_refuses(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(Refused, match="no GPU, and TRITON_INTERPRET is not 1"):
        fix.enable()


def test_off_is_the_kill_switch(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_MITIGATE", "off")
    assert not fix.enable()["on"]


def test_another_kernel_implementation_and_a_missing_op_are_refused(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGER_KERNEL_IMPL", "cutedsl")
    with pytest.raises(Refused, match="LIGER_KERNEL_IMPL=cutedsl"):
        fix.enable()
    monkeypatch.delenv("LIGER_KERNEL_IMPL")
    monkeypatch.setattr(fix, "load_ops", lambda: "no op library at /nowhere")
    with pytest.raises(Refused, match="mode op: no op library at /nowhere; use mode plain"):
        fix.enable("op")
    assert fix.enable("auto")["served_by"] == "plain torch"
    with pytest.raises(ValueError, match="no mode 'fast'"):
        fix.enable("fast")


def test_what_cannot_be_answered_rightly_raises(upstream: Upstream) -> None:
    t = tensors()
    fix.enable("plain")
    with pytest.raises(Refused, match="target must have dtype int64"):
        upstream.loss(t, target=t["target"].int())
    outputs = upstream.module.LigerFusedLinearCrossEntropyFunction.apply(
        t["_input"], t["weight"], t["target"], None, None, -100, 0.0, 0.0, "none", None, True, False
    )
    with pytest.raises(Refused, match="only the loss can be differentiated"):
        (outputs[0].sum() + outputs[1].sum()).backward()
    with pytest.raises(Refused, match="cannot be differentiated again"):
        torch.autograd.grad(upstream.loss(t).sum(), t["_input"], create_graph=True)


def test_disabled_in_the_middle_of_a_step_its_graph_raises_and_the_next_is_the_release_s(upstream: Upstream) -> None:
    t = tensors()
    fix.enable("plain")
    loss = upstream.loss(t)
    fix.disable()
    with pytest.raises((RuntimeError, ValueError)):
        gradients(loss, t)
    assert error(gradients(upstream.loss(t), t)[1], reference(t, {})[2]) > 0.5


def test_each_frozen_input_and_an_infinite_ignored_row(upstream: Upstream) -> None:
    fix.enable("plain")
    t = tensors()
    wanted = reference(t, {})
    t["grad"][0] = float("inf")
    for i, name in enumerate(("_input", "weight", "bias")):
        alone = {k: v.detach() for k, v in t.items()}
        alone[name].requires_grad_()
        (got,) = torch.autograd.grad(upstream.loss(alone), alone[name], t["grad"])
        assert error(got, wanted[i + 1]) < 1e-6, name


def test_autocast_is_the_same_in_backward(upstream: Upstream) -> None:
    fix.enable("plain")
    t = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = upstream.loss(t)
    got = gradients(loss, t)
    assert [g.dtype for g in got] == [torch.float32] * 3
    assert 1e-4 < error(got[1], reference(t, {})[2]) < 2e-2


@pytest.mark.skipif(bool(fix.load_ops()), reason="the op library is not built for this torch")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_op_serves_where_it_loads(upstream: Upstream, dtype: torch.dtype) -> None:
    fix.enable("op")
    t = tensors(dtype)
    loss = upstream.loss(t, **FEATURES["all"])
    for got, wanted in zip((loss, *gradients(loss, t)), reference(t, FEATURES["all"]), strict=True):
        assert error(got, wanted) < (1e-6 if dtype == torch.float32 else 1e-2)
    assert fix.status()["counts"]["op"] == 1
    scaled = upstream.loss(t, use_token_scaling=True)
    gradients(scaled, t)
    assert fix.status()["counts"]["plain"] == 1


def test_approximate_is_right_for_a_mean_over_labels_and_refuses_what_it_is_not_exact_for(upstream: Upstream) -> None:
    t = tensors()
    t["ce_weight"] = None
    t["target"][4] = -100
    is_labelled = t["target"] != -100
    t["grad"] = is_labelled / is_labelled.sum()
    wanted = reference({**t, "ce_weight": torch.ones(21)}, {"label_smoothing": 0.1})
    assert error(gradients(upstream.loss(t, label_smoothing=0.1), t)[1], wanted[2]) > 0.5
    shown = fix.enable(fix.APPROXIMATE)
    assert shown["mode"] == fix.APPROXIMATE and shown["served_by"] == "the release's own sum"
    loss = upstream.loss(t, label_smoothing=0.1)
    assert torch.allclose(loss[is_labelled], loss[1].expand(7)) and loss[[0, 4]].tolist() == [0, 0]
    assert error((loss * t["grad"]).sum(), (wanted[0] * t["grad"]).sum()) < 1e-6
    for got, right in zip(gradients(loss, t), wanted[1:], strict=True):
        assert error(got, right) < 1e-6
    t["grad"][1] *= 2
    with pytest.raises(Refused, match="grad_output differs between tokens with labels; use mode op or plain"):
        gradients(upstream.loss(t), t)
    with pytest.raises(Refused, match="has no per-token return_z_loss"):
        upstream.loss(t, return_z_loss=True)
    assert fix.status()["counts"]["approximate"] == 2 and fix.status()["is_unequal"] is False


def test_approximate_is_never_meant_by_auto_and_remembers_on_a_device(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fix.enable("auto")["mode"] != fix.APPROXIMATE
    fix.enable(fix.APPROXIMATE)
    factor = fix._mean_factor(torch.tensor([0.5, 0.5]).to("meta"), torch.tensor([1.0, 2.0]).to("meta"))
    assert factor.shape == () and fix._own.is_unequal.device.type == "meta"
    monkeypatch.setattr(fix._own, "is_unequal", torch.tensor(True))
    assert fix.status()["is_unequal"]
