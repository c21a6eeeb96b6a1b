"""The hook of pack mamba3_mimo_gqa_bwd on a stand-in upstream: host functions of our own with the defects."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import speaks_for  # noqa: E402
from patchbench_mitigations import mamba3_mimo_gqa_bwd as fix  # noqa: E402
from patchbench_mitigations import registry
from patchbench_mitigations.after_import import Refused  # noqa: E402

# The gradients of the sum of (q + q_bias) * (k + k_bias) * dout over everything, with q and k of the head's group. The
# kernel and the helpers fail on the probe's inputs: the probe must not come to them.
UPSTREAM = """
import torch
{imports}
KIND = "{kind}"

def bwd_dtrap_ddt_triton{suffix}(trap):
    assert trap is None, "the probe came to a helper"
    return None, None

def bwd_dadt_fused_triton{suffix}(dt):
    assert dt is None, "the probe came to a helper"
    return 0

def reduce_grouped_qk_grads_and_bias_triton(dq, dk, num_groups):
    raise NotImplementedError("no kernel runs here")

def mamba_mimo_bwd_bwd():
    def kernel(dout, q, k, q_bias, k_bias, dq, dk):
        assert dout.any(), "the probe came to a kernel"
        group = (torch.arange(dout.shape[2]) // (dout.shape[2] // q.shape[3])).clamp(max=q.shape[3] - 1)
        weight = dout.sum(-1)[:, :, None, :, None].double()
        dq.copy_(((k.double()[:, :, :, group] + k_bias.transpose(0, 1)) * weight).flatten(1, 2))
        dk.copy_(((q.double()[:, :, :, group] + q_bias.transpose(0, 1)) * weight).flatten(1, 2))
    return kernel

def mamba_mimo_bwd_combined{suffix}({takes}, bf_threads=128, bf_num_stages=0, bb_threads=256, bb_num_stages=0):
    {passed_on}
    batch, seqlen, ranks, groups, dim = q.shape
    heads = v.shape[-2]
    dq, dk = (torch.empty(batch, seqlen, ranks, heads, dim, dtype=q.dtype) for _ in "qk")
    mamba_mimo_bwd_bwd()(dout, q, k, q_bias, k_bias, dq.view(batch, -1, heads, dim), dk.view(batch, -1, heads, dim))
    if KIND == "own_kernels":
        reduce_grouped_qk_grads_and_bias_triton(dq, dk, groups)
    if KIND == "broken":
        raise TypeError("no such thing")
    if KIND in ("faulty", "other_arguments") and groups not in (1, heads):
        raise ValueError(f"{groups} groups of {heads} heads")
    dtype = torch.float32 if KIND == "right" else None
    biases = [x.sum((0, 1), dtype=dtype).transpose(0, 1) for x in (dq, dk)]
    grads = [x.unflatten(3, (groups, -1)) for x in (dq, dk)]
    grads = [x[..., 0, :] if KIND == "wrong" else x.float().sum(4).to(x.dtype) for x in grads]
    ddt, dtrap = bwd_dtrap_ddt_triton{suffix}(trap)
    return (*grads, None, bwd_dadt_fused_triton{suffix}(dt), ddt, dtrap, *biases, *[None] * 6)
"""
PASSED_ON = """if cu_seqlens is None:
        return mamba_mimo_bwd_combined(dout, q, k, v, q_bias, k_bias, *[None] * 14)"""
CALLER = """from {target} import mamba_mimo_bwd_combined
from {target}_varlen import mamba_mimo_bwd_combined_varlen
"""


class Upstream:
    """A mamba_ssm on the path, of one kind and version."""

    def __init__(self, folder: Path, kind: str, version: str):
        package = folder / "mamba_ssm" / "ops" / "tilelang" / "mamba3"
        package.mkdir(parents=True)
        (folder / "mamba_ssm" / "__init__.py").write_text(f'__version__ = "{version}"\n')
        takes = fix.TAKES.partition("{")[0].split() + (["extra=None"] if kind == "other_arguments" else [])
        for suffix in ("", "_varlen") if kind != "dense_alone" else ("",):
            words = {
                "kind": "faulty" if kind == "dense_alone" else kind, "suffix": suffix,
                "imports": f"from {fix.TARGET} import mamba_mimo_bwd_combined" if suffix else "",
                "takes": ", ".join(takes + ["cu_seqlens=None"] * bool(suffix)), "passed_on": PASSED_ON if suffix else "",
            }  # fmt: skip
            text = UPSTREAM
            for name, value in words.items():
                text = text.replace("{" + name + "}", value)
            (package / f"mamba3_mimo_bwd{suffix}.py").write_text(text)
        (package / "mamba3_mimo.py").write_text(CALLER.format(target=fix.TARGET))

    def module(self, name: str = "mamba3_mimo") -> ModuleType:
        return importlib.import_module(f"{fix.TARGET.rpartition('.')[0]}.{name}")

    def gradients(self, t: dict[str, torch.Tensor], layout: str) -> list[torch.Tensor]:
        """The gradients of q, k, q_bias and k_bias, as the caller's module gets them."""
        suffix = "" if layout == "dense" else "_varlen"
        host = getattr(self.module(), f"mamba_mimo_bwd_combined{suffix}")
        bounds = {"cu_seqlens": torch.tensor([0, 5])} if layout == "packed" else {}
        found = host(*[t.get(name) for name in fix.TAKES.partition("{")[0].split()], **bounds)
        return [found[place] for place in fix.PLACES]


def forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A defective stand-in for the measured release, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("faulty", "2.3.2.post1"))
    speaks_for(monkeypatch, "2.3.2.post1")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    forget()
    made = Upstream(tmp_path, kind, version)
    importlib.invalidate_caches()
    finders = list(sys.meta_path)
    yield made
    fix.disable()
    sys.meta_path[:] = finders
    forget()


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine is used where a test says how the sums are made."""
    monkeypatch.setattr(fix, "load_ops", lambda: "no op library at /nowhere")


def tensors(num_groups: int, dtype: torch.dtype, num_heads: int = 6) -> dict[str, torch.Tensor]:
    """All positive, so that sums over tokens grow past what float16 resolves."""
    generator = torch.Generator().manual_seed(5)

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return (torch.rand(shape, generator=generator) + 0.5).to(dtype)

    q, k = (made(2, 40, 2, num_groups, 8, dtype=dtype) for _ in "qk")
    dout = made(2, 40, num_heads, 4, dtype=dtype)
    biases = {name: made(num_heads, 2, 8) for name in ("q_bias", "k_bias")}
    return {"q": q, "k": k, "v": dout, "dout": dout, **biases}


def reference(t: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """By autograd in fp64."""
    leaves = [t[name].double().requires_grad_() for name in ("q", "k", "q_bias", "k_bias")]
    repeats = t["v"].shape[-2] // t["q"].shape[3]
    q, k = (x.repeat_interleave(repeats, 3) + bias.transpose(0, 1) for x, bias in zip(leaves[:2], leaves[2:], strict=True))
    weight = t["dout"].sum(-1)[:, :, None, :, None].double()
    return torch.autograd.grad((q * k * weight).sum(), leaves)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    assert got.shape == wanted.shape
    return ((got.double() - wanted).abs().max() / wanted.abs().max()).item()


LAYOUTS = ("dense", "packed", "packed_without_bounds")
NEEDS_OP = pytest.mark.skipif(bool(fix.load_ops()), reason="the op library is not built for this torch")
DTYPES = {torch.float32: (1e-6, 1e-6), torch.float16: (1e-3, 1e-4), torch.bfloat16: (8e-3, 1e-3)}


@pytest.mark.parametrize("mode", ["plain", pytest.param("op", marks=NEEDS_OP)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_number_of_groups_is_right(upstream: Upstream, layout: str, dtype: torch.dtype, mode: str) -> None:
    fix.enable(mode)
    for num_groups in (1, 2, 3, 6):
        t = tensors(num_groups, dtype)
        before = t["q"].clone()
        got = upstream.gradients(t, layout)
        assert [g.dtype for g in got] == [dtype, dtype, torch.float32, torch.float32]
        for place, (grad, wanted) in enumerate(zip(got, reference(t), strict=True)):
            assert error(grad, wanted) < DTYPES[dtype][place // 2], (num_groups, place)
        assert torch.equal(t["q"], before)
    served = 2 if dtype == torch.float32 else 4
    assert fix.status()["counts"] == {"op": 0, "plain": 0} | {mode: served}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_stand_in_shows_the_defects_without_the_fix(upstream: Upstream, layout: str) -> None:
    with pytest.raises(ValueError, match="2 groups of 6 heads"):
        upstream.gradients(tensors(2, torch.float32), layout)
    t = tensors(6, torch.bfloat16)
    bias = upstream.gradients(t, layout)[2]
    assert bias.dtype == torch.bfloat16 and error(bias, reference(t)[2]) > DTYPES[torch.bfloat16][1]
    finding = fix.probe()
    assert finding.state == "needed" and "raise ValueError: 2 groups of 4 heads" in finding.reason


def test_a_bias_gradient_that_overflowed_is_finite(upstream: Upstream, helpers: None) -> None:
    for num_groups in (1, 3, 6):
        t = tensors(num_groups, torch.float16)
        t["dout"] = t["dout"] * 512
        if num_groups != 3:
            assert upstream.gradients(t, "dense")[2].isinf().any()
        fix.enable("plain")
        assert error(upstream.gradients(t, "dense")[2], reference(t)[2]) < 1e-4
        fix.disable()


def test_what_needs_nothing_goes_to_the_original_as_it_came(upstream: Upstream, helpers: None) -> None:
    problems = [tensors(n, torch.float32) for n in (1, 6)]
    before = [g for t in problems for g in upstream.gradients(t, "dense")]
    fix.enable()
    after = [g for t in problems for g in upstream.gradients(t, "dense")]
    assert all(map(torch.equal, before, after)) and fix.status()["counts"] == {"op": 0, "plain": 0}
    with pytest.raises(ValueError, match="2 groups of 5 heads"):
        upstream.gradients(tensors(2, torch.float16, num_heads=5), "dense")


def test_switching_is_idempotent_reversible_and_logged_once(upstream: Upstream, helpers: None, caplog: pytest.LogCaptureFixture) -> None:
    holders = [upstream.module(name) for name in ("mamba3_mimo", "mamba3_mimo_bwd", "mamba3_mimo_bwd_varlen")]
    originals = [dict(vars(holder)) for holder in holders]
    with caplog.at_level(logging.INFO, "patchbench.mitigations"):
        fix.enable("plain")
        hooked = [holder.mamba_mimo_bwd_combined for holder in holders]
        fix.enable("plain")
    assert len(set(hooked)) == 1 and hooked[0] is not originals[0]["mamba_mimo_bwd_combined"]
    assert len(caplog.records) == 1 and fix.probe().state == "needed" and fix.status()["served_by"] == "plain torch"
    fix.disable()
    fix.disable()
    # The probe worked on copies: every name of every module is the object that it was.
    for holder, names in zip(holders, originals, strict=True):
        assert vars(holder).keys() == names.keys() and all(vars(holder)[k] is v for k, v in names.items())
    assert fix.status() == {"slug": fix.SLUG, "on": False}


def test_a_name_bound_after_the_hook_is_put_back_too(upstream: Upstream, helpers: None) -> None:
    registry.when_imported(fix.TARGET, fix.enable)
    caller = upstream.module()
    home = upstream.module("mamba3_mimo_bwd")
    assert fix.status()["on"] and caller.mamba_mimo_bwd_combined is home.mamba_mimo_bwd_combined
    original = home.mamba_mimo_bwd_combined.__wrapped__
    home.mamba_mimo_bwd_combined = lambda *_: None
    with pytest.raises(Refused, match="mamba_mimo_bwd_combined was changed since"):
        fix.disable()
    home.mamba_mimo_bwd_combined = caller.mamba_mimo_bwd_combined
    fix.disable()
    assert caller.mamba_mimo_bwd_combined is home.mamba_mimo_bwd_combined is original


@pytest.mark.parametrize("upstream", [("right", "2.3.2.post1"), ("own_kernels", "2.3.2.post1")], indirect=True)
def test_a_right_release_is_left_alone_even_if_forced(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    assert fix.probe().state == "right" and not fix.enable()["on"]


REFUSED = [
    (("wrong", "2.3.2.post1"), "gradients that are not the sums over each group's heads"),
    (("broken", "2.3.2.post1"), "raise TypeError: no such thing"),
    (("other_arguments", "2.3.2.post1"), "takes other arguments than were measured"),
    (("faulty", "2.3.1"), "not verified on mamba-ssm 2.3.1; PATCHBENCH_FORCE="),
]


@pytest.mark.parametrize(("upstream", "why"), REFUSED, indirect=["upstream"])
def test_a_release_that_is_not_as_measured_is_refused(upstream: Upstream, why: str, helpers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=why):
        fix.enable()
    assert not fix.status()["on"]
    monkeypatch.setenv("PATCHBENCH_FORCE", f"other,{fix.SLUG}")
    if "FORCE" in why:  # the version alone
        assert fix.enable()["on"]
    else:
        with pytest.raises(Refused, match=why):
            fix.enable()


@pytest.mark.parametrize("upstream", [("rounds", "2.3.2.post1")], indirect=True)
def test_rounded_bias_gradients_alone_are_a_reason_to_act(upstream: Upstream, helpers: None) -> None:
    assert "bias gradients are not float32 sums" in fix.probe().reason
    fix.enable()
    t = tensors(2, torch.bfloat16)
    assert error(upstream.gradients(t, "packed")[3], reference(t)[3]) < 1e-3


@pytest.mark.parametrize("upstream", [("dense_alone", "2.3.0")], indirect=True)
def test_a_release_without_variable_lengths(upstream: Upstream, helpers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    assert fix.enable()["sites"] == ["mamba_mimo_bwd_combined"]


def test_the_kill_switch_and_the_modes(upstream: Upstream, helpers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="mode op: no op library at /nowhere; use mode plain"):
        fix.enable("op")
    assert fix.enable()["op_note"] == "no op library at /nowhere"
    assert fix.enable("plain")["mode"] == "plain"
    with pytest.raises(ValueError, match="no mode 'expand'"):
        fix.enable("expand")
    fix.disable()
    monkeypatch.setenv("PATCHBENCH_MITIGATE", "off")
    assert not fix.enable()["on"]
