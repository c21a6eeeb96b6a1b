"""The hooks of pack fp8_storage_dispatch on stand-ins of our own. Longer than 400 lines: a dispatcher, its wrappers and three modes."""

from __future__ import annotations

import enum
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import speaks_for  # noqa: E402
from patchbench_mitigations import fp8_storage_dispatch as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

# KIND: "fooled" takes a wrapper for bf16, "right" declines it, "raises" says so, "early" holds its callee by another name.
TILELANG = """
import torch

KIND = "{kind}"
RECEIVED = []

class SparseMLA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, indices, scaling):
        RECEIVED.append((q, kv, indices, scaling))
        return q[..., :512] * scaling + kv.sum(), q[..., 0].float()

    @staticmethod
    def backward(ctx, grad_out, grad_lse):
        q, kv = RECEIVED[-1][:2]
        grad_q = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        grad_q[..., :512] = grad_out * RECEIVED[-1][3]
        return grad_q, grad_out.sum().expand(kv.shape).to(kv.dtype), None, None

def _all_bfloat16(*tensors):
    wrapped = any(type(t).dequantize is not torch.Tensor.dequantize for t in tensors)
    if wrapped and KIND == "raises":
        raise TypeError("wrapped")
    return all(t.dtype == torch.bfloat16 for t in tensors) and not (wrapped and KIND == "right")

def fused_sparse_mla_absorbed(query, key, topk_indices, softmax_scale, v_channels):
    if not _all_bfloat16(query, key) or query.shape[-1] != 576:
        return None
    swapped = (t.permute(1, 0, 2, 3).contiguous() for t in (query, key))
    return SparseMLA.apply(*swapped, topk_indices.unsqueeze(2).int(), softmax_scale)[0].permute(1, 0, 2, 3).contiguous()

early = fused_sparse_mla_absorbed

def run_fused_absorbed_sparse_attention(query, key, topk_indices, softmax_scale, v_channels):
    call = early if KIND == "early" else fused_sparse_mla_absorbed
    return call(query, key, topk_indices, softmax_scale, v_channels)
"""

KERNELS = """
from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

def run_fused_absorbed_sparse_attention(config, query, key, topk_indices, softmax_scale, v_channels, topk_length=None):
    return tilelang_dsa.run_fused_absorbed_sparse_attention(query, key, topk_indices, softmax_scale, v_channels)
"""


class Tag(enum.IntEnum):
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8


class Wrapper(torch.Tensor):
    """Says bf16, stores e4m3 bytes, dequantises when it is asked to and whenever an operator gets it."""

    @classmethod
    def of(cls, payload: torch.Tensor, scale: torch.Tensor, requires_grad: bool = False) -> Wrapper:
        words = {"dtype": torch.bfloat16, "device": payload.device, "requires_grad": requires_grad}
        made = torch.Tensor._make_wrapper_subclass(cls, payload.shape, **words)
        made._data, made._scale_inv, made._fp8_dtype = payload, scale, Tag.kFloat8E4M3
        return made

    def dequantize(self) -> torch.Tensor:
        return (self._data.view(torch.float8_e4m3fn).float() * self._scale_inv).to(torch.bfloat16)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.contiguous.default):
            return args[0]
        plain = [a.dequantize() if isinstance(a, Wrapper) else a for a in args]
        return func(*plain, **(kwargs or {}))


class Float8Tensor(Wrapper):
    """Named as the per-tensor class that mode fp8 reads."""


class BlockTensor(Wrapper):
    """A wrapper of another family."""


class Bare:
    """A storage that is not a tensor."""

    shape = (4, 2, 16, 576)

    def dequantize(self) -> torch.Tensor:
        return torch.zeros(self.shape)


class Upstream:
    """A megatron.core on the path, of one kind and version."""

    def __init__(self, folder: Path, kind: str, version: str):
        variant = folder / "megatron/core/transformer/experimental_attention_variant"
        (variant / "ops").mkdir(parents=True)
        (folder / "megatron/core/__init__.py").write_text(f'__version__ = "{version}"\n')
        if kind != "none":
            (variant / "dsa_kernels.py").write_text(KERNELS)
            (variant / "ops/tilelang_dsa.py").write_text(TILELANG.replace("{kind}", kind))

    @property
    def tilelang(self) -> ModuleType:
        return importlib.import_module(f"{fix.VARIANT}.ops.tilelang_dsa")

    @property
    def kernels(self) -> ModuleType:
        return importlib.import_module(f"{fix.VARIANT}.dsa_kernels")

    def held(self) -> list[Any]:
        """What each site's holder has in its own dictionary."""
        sparse = vars(self.tilelang.SparseMLA) if self.tilelang.SparseMLA is not None else {}
        names = ("run_fused_absorbed_sparse_attention", "fused_sparse_mla_absorbed")
        return [vars(self.kernels).get(names[0]), vars(self.tilelang).get(names[1]), sparse.get("apply")]

    def call(self, site: str, query: Any, kv: Any, indices: torch.Tensor, **more: Any) -> Any:
        if site == "sparse_mla":
            return self.tilelang.SparseMLA.apply(query, kv, indices, 0.1)
        if site == "tilelang":
            return self.tilelang.fused_sparse_mla_absorbed(query, kv, indices, 0.1, **{"v_channels": 512} | more)
        words = {"v_channels": 512} | more
        return self.kernels.run_fused_absorbed_sparse_attention(None, query, kv, topk_indices=indices, softmax_scale=0.1, **words)


def forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "megatron"]:
        del sys.modules[name]


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A stand-in for a measured release whose guard is fooled, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("fooled", "0.19.2"))
    speaks_for(monkeypatch, "0.19.0", "0.19.2")
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fix, "_announced", set())
    made = Upstream(tmp_path, kind, version)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    importlib.invalidate_caches()
    yield made
    if fix.status()["on"]:
        fix.disable()
    forget()


SITES = ("kernels", "tilelang", "sparse_mla")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
# The axes of query at each site, for batch 2, seqlen_q 4, 16 heads; sparse_mla takes 3 axes too.
SHAPES = {"kernels": (4, 2, 16), "tilelang": (4, 2, 16), "sparse_mla": (2, 4, 16), "sparse_mla_3d": (4, 16)}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def stored(x: torch.Tensor, kind: type[Wrapper] = Float8Tensor, requires_grad: bool = False) -> Wrapper:
    scale = x.abs().amax().view(1) / 448
    return kind.of((x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8), scale, requires_grad)


def problem(
    site: str, kind: type[Wrapper] = Float8Tensor, requires_grad: bool = False, device: str = "cpu"
) -> tuple[Wrapper, Wrapper, torch.Tensor]:
    """query, kv of 32 keys, indices with slots that hold no key and one query without any."""
    shape = SHAPES[site]
    kv = {"sparse_mla": (2, 32, 1), "sparse_mla_3d": (32, 1)}.get(site, (32, 2, 1))
    rows = {"sparse_mla": (2, 4, 1), "sparse_mla_3d": (4, 1)}.get(site, (2, 4))
    indices = torch.randint(0, 32, (*rows, 64), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
    indices[..., 40:] = -1
    (indices if site == "sparse_mla_3d" else indices[0])[1] = -1
    query, key = (stored(normal(*sizes, 576).to(device), kind, requires_grad) for sizes in (shape, kv))
    return query, key, indices.to(device)


def test_the_probe_sees_a_fooled_guard(upstream: Upstream) -> None:
    finding = fix.probe()
    assert finding.state == "needed" and not fix.status()["on"]
    assert finding.reason == "the dtype guard takes a quantised operand for a dense one"


@pytest.mark.parametrize("upstream", [("right", "0.19.2"), ("raises", "0.19.0")], indirect=True)
def test_a_right_release_is_left_alone_even_if_forced(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    before = upstream.held()
    assert not fix.enable()["on"] and fix.probe().state == "right"
    assert upstream.held() == before


def test_switching_is_idempotent_reversible_and_logged_once(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    before = upstream.held()
    with caplog.at_level(logging.INFO, "patchbench.mitigations"):
        fix.enable("refuse")
        changed = upstream.held()
        fix.enable("auto")
    assert upstream.held() == changed and len(caplog.records) == 1
    assert all(now is not then for now, then in zip(changed, before, strict=True))
    assert fix.enable("dequantize")["mode"] == "dequantize"
    fix.disable()
    fix.disable()
    assert all(now is then for now, then in zip(upstream.held(), before, strict=True))
    assert fix.status() == {"slug": fix.SLUG, "on": False}


@pytest.mark.parametrize("site", SITES)
def test_refuse_names_the_operand_and_its_type(upstream: Upstream, site: str) -> None:
    query, kv, indices = problem(site, BlockTensor)
    upstream.call(site, query, kv, indices)
    assert len(upstream.tilelang.RECEIVED) == 1
    fix.enable()
    second = "kv" if site == "sparse_mla" else "key"
    for given, name in (((query, kv), "q"), ((query, kv.dequantize()), "q"), ((query.dequantize(), kv), second)):
        with pytest.raises(TypeError, match=rf"{name}\w* is a BlockTensor; .*pass {name}\w*.dequantize\(\)"):
            upstream.call(site, *given, indices)
    assert len(upstream.tilelang.RECEIVED) == 1 and fix.status()["counts"]["refused"] == 3


@pytest.mark.parametrize("mode", ["refuse", "dequantize", "fp8"])
@pytest.mark.parametrize("site", SITES)
def test_dense_operands_keep_their_bits(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, site: str, mode: str) -> None:
    monkeypatch.setattr(fix, "load_ops", lambda: "")
    query, kv, indices = problem(site)
    dense = [t.dequantize().requires_grad_() for t in (query, kv)]

    def results() -> list[torch.Tensor]:
        out = upstream.call(site, *dense, indices)
        out = out[0] if isinstance(out, tuple) else out
        return [out, *torch.autograd.grad(out.float().square().sum(), dense)]

    wanted = results()
    fix.enable(mode)
    got = results()
    assert all(map(torch.equal, got, wanted))
    assert sum(fix.status()["counts"].values()) == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("site", SITES)
def test_dequantize_is_explicit_counted_and_said_once(upstream: Upstream, caplog: pytest.LogCaptureFixture, site: str, device: str) -> None:
    query, kv, indices = problem(site, requires_grad=True, device=device)
    dense = [t.dequantize().requires_grad_() for t in (query, kv)]

    def results(operands: Any) -> list[torch.Tensor]:
        out = upstream.call(site, *operands, indices)
        out = out[0] if isinstance(out, tuple) else out
        return [out, *torch.autograd.grad(out.float().square().sum(), operands)]

    wanted = results(dense)
    fix.enable("dequantize")
    caplog.clear()
    got = [results((query, kv)) for _ in range(2)][0]
    assert all(type(t) is torch.Tensor for t in upstream.tilelang.RECEIVED[-1][:2])
    assert all(map(torch.equal, got, wanted)) and got[1].dtype == torch.bfloat16
    num_bytes = 2 * (query.numel() + kv.numel())
    assert fix.status()["counts"] == {"refused": 0, "dequantized": 4, "dense_bytes": 2 * num_bytes, "fp8": 0}
    said = [r.getMessage() for r in caplog.records if "dequantised" in r.getMessage()]
    assert len(said) == 1 and "Float8Tensor" in said[0] and f"{2 * query.numel()} bytes" in said[0]
    upstream.call(site, stored(dense[0].detach(), BlockTensor), kv, indices)
    assert "BlockTensor" in caplog.records[-1].getMessage()


def test_what_does_not_dequantise_is_refused(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(self: Any) -> torch.Tensor:
        raise NotImplementedError("no row-wise data")

    query, kv, indices = problem("kernels")
    fix.enable("dequantize")
    with pytest.raises(TypeError, match=r"query is a Bare; it does not dequantise"):
        upstream.call("kernels", Bare(), kv, indices)
    monkeypatch.setattr(Float8Tensor, "dequantize", absent)
    with pytest.raises(TypeError, match=r"query is a Float8Tensor; it does not dequantise \(no row-wise data\)"):
        upstream.call("kernels", query, kv, indices)
    assert not upstream.tilelang.RECEIVED


def changed(name: str, value: Any) -> Callable[[Wrapper], Any]:
    def change(t: Wrapper) -> Wrapper:
        setattr(t, name, value(getattr(t, name)))
        return t

    return change


# What mode fp8 does not take, as what is done to the query, and what is said of it.
REFUSED = {
    "dense": (lambda t: t.dequantize(), "query is a Tensor; fp8 takes both operands quantised or none"),
    "other_family": (lambda t: stored(t.dequantize().float(), BlockTensor), "query is a BlockTensor; fp8 takes per-tensor"),
    "bare": (lambda t: Bare(), "query is a Bare; fp8 takes per-tensor Float8Tensor alone"),
    "e5m2": (changed("_fp8_dtype", lambda _: Tag.kFloat8E5M2), "got kFloat8E5M2 that reports torch.bfloat16, 576 columns"),
    "columns": (lambda t: stored(normal(4, 2, 16, 512)), "576 columns, got .* 512 columns"),
    "columnwise": (changed("_data", lambda _: None), "it holds no row-wise data"),
    "no_scale": (changed("_scale_inv", lambda _: None), "it holds no scale"),
    "scales": (changed("_scale_inv", lambda s: s.expand(2)), "its scale must be 1 float32, got 2 torch.float32"),
    "strides": (changed("_data", lambda d: d.transpose(0, 1).contiguous().transpose(0, 1)), "must be contiguous uint8"),
    "shape": (changed("_data", lambda d: d.flatten(0, 1)), r"\[4, 2, 16, 576\], got torch.uint8 \[8, 16, 576\]"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("site", ["kernels", "tilelang"])
def test_fp8_refuses_what_it_cannot_read(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, what: str, site: str) -> None:
    monkeypatch.setattr(fix, "load_ops", lambda: "")
    fix.enable("fp8")
    query, kv, indices = problem(site)
    change, said = REFUSED[what]
    with pytest.raises(TypeError, match=said):
        upstream.call(site, change(query), kv, indices)
    assert not upstream.tilelang.RECEIVED and fix.status()["counts"]["refused"] == 1


def test_fp8_refuses_other_value_widths_and_lengths(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "load_ops", lambda: "")
    fix.enable("fp8")
    query, kv, indices = problem("kernels")
    with pytest.raises(TypeError, match="fp8 takes v_channels 512, got 256"):
        upstream.call("kernels", query, kv, indices, v_channels=256)
    with pytest.raises(ValueError, match=r"topk_length must have shape \[2, 4\], got \[8\]"):
        upstream.call("kernels", query, kv, indices, topk_length=torch.full((8,), 3))


def test_fp8_without_its_op_is_refused(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "load_ops", lambda: "no op library at /nowhere")
    with pytest.raises(Refused, match="mode fp8 needs the op library: no op library at /nowhere"):
        fix.enable("fp8")
    assert upstream.held()[2] is None and not fix.status()["on"]


def attention(query: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, length: Any = None) -> torch.Tensor:
    """out[b,s,h] = softmax(0.1 q k) v over the keys of the query, zeros without one; the operands' dtype."""
    is_key = indices.squeeze(2) >= 0
    if length is not None:
        is_key = is_key & (torch.arange(indices.shape[-1], device=indices.device) < length.unsqueeze(-1))
    rows = torch.arange(kv.shape[0], device=kv.device).view(-1, 1, 1)
    keys = kv.squeeze(2)[rows, indices.squeeze(2).clamp_min(0).long()]
    logits = 0.1 * torch.einsum("bshd,bskd->bshk", query, keys)
    p = logits.masked_fill(~is_key.unsqueeze(2), float("-inf")).softmax(-1)
    p = torch.where(is_key.any(-1)[..., None, None], p, torch.zeros((), dtype=p.dtype, device=p.device))
    return torch.einsum("bshk,bskd->bshd", p, keys[..., :512])


@pytest.mark.skipif(not os.environ.get("PATCHBENCH_OPS_LIB") or bool(fix.load_ops()), reason="no op library for this torch")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("site", "slots"), [("kernels", None), ("kernels", 9), ("tilelang", None), ("sparse_mla", None), ("sparse_mla_3d", None)]
)
def test_fp8_is_the_attention_of_the_stored_values(upstream: Upstream, site: str, slots: int | None, device: str) -> None:
    """Bounds: out and the gradients are rounded to bfloat16 once, 2^-9 of each element, and summed in float32 before.

    On a GPU what is multiplied (probabilities, their gradients) is rounded to bfloat16 too.
    """
    fix.enable("fp8")
    query, kv, indices = problem(site, requires_grad=True, device=device)
    length = None if slots is None else torch.full((2, 4), slots, device=device)
    got = upstream.call(site.removesuffix("_3d"), query, kv, indices, **({} if slots is None else {"topk_length": length}))
    got, lse = got if isinstance(got, tuple) else (got, None)
    is_absorbed = site in ("kernels", "tilelang")

    def to_bshd(t: torch.Tensor) -> torch.Tensor:
        return t.transpose(0, 1) if is_absorbed else t.unsqueeze(0) if site == "sparse_mla_3d" else t

    exact = [(t._data.view(torch.float8_e4m3fn).double() * t._scale_inv).requires_grad_() for t in (query, kv)]
    slots_bsgk = indices.unsqueeze(2) if is_absorbed else to_bshd(indices)
    wanted = attention(*map(to_bshd, exact), slots_bsgk, length)
    weight = normal(*wanted.shape).to(device, torch.bfloat16)
    bound = 2.0**-8 if device == "cpu" else 2.0**-7
    ref = [wanted, *torch.autograd.grad((wanted * weight).sum(), exact)]
    out = to_bshd(got)
    all_got = [out, *torch.autograd.grad((out * weight).sum(), (query, kv))]
    assert got.dtype == torch.bfloat16 and got.is_contiguous() and got.shape == (*SHAPES[site], 512)
    assert all(g.dtype == torch.bfloat16 and type(g) is torch.Tensor for g in all_got)
    for g, r in zip(all_got, ref, strict=True):
        assert g.shape == r.shape and (g.double() - r).norm() / r.norm() < bound
    assert lse is None or (lse.shape == got.shape[:-1] and not lse.requires_grad)
    assert not out[0, 1].any() and fix.status()["counts"]["fp8"] == 1
    assert not upstream.tilelang.RECEIVED


@pytest.mark.parametrize("upstream", [("fooled", "99.0")], indirect=True)
def test_an_unmeasured_release_needs_force(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="not verified on megatron-core 99.0; PATCHBENCH_FORCE="):
        fix.enable()
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    assert fix.enable()["on"]


@pytest.mark.parametrize("upstream", [("none", "0.18.2")], indirect=True)
def test_a_release_without_the_dispatcher_is_refused(upstream: Upstream) -> None:
    with pytest.raises(Refused, match="megatron-core 0.18.2: it has no fused sparse-MLA dispatcher; 0.19.0 is the first"):
        fix.enable()


def test_without_tilelang_the_other_functions_are_replaced(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream.tilelang, "SparseMLA", None)
    assert len(fix.enable()["sites"]) == 2
    with pytest.raises(TypeError, match="query is a Float8Tensor"):
        upstream.call("kernels", *problem("kernels"))


def test_an_absent_a_changed_and_a_wrapped_function_change_nothing(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    before, tilelang = upstream.held(), upstream.tilelang
    with monkeypatch.context() as patch:
        patch.delattr(tilelang, "fused_sparse_mla_absorbed")
        with pytest.raises(Refused, match="tilelang_dsa.fused_sparse_mla_absorbed is not in this release"):
            fix.enable()
    with monkeypatch.context() as patch:
        patch.delattr(tilelang, "_all_bfloat16")
        with pytest.raises(Refused, match="tilelang_dsa._all_bfloat16 is not in this release"):
            fix.enable()
    with monkeypatch.context() as patch:
        patch.setattr(tilelang.SparseMLA, "forward", staticmethod(lambda ctx, q, kv, scaling: None))
        with pytest.raises(Refused, match="SparseMLA.apply takes other arguments than were measured"):
            fix.enable()
    with monkeypatch.context() as patch:
        patch.setattr(upstream.kernels, "run_fused_absorbed_sparse_attention", lambda *a: before[0](*a))
        with pytest.raises(Refused, match="run_fused_absorbed_sparse_attention is wrapped already"):
            fix.enable()
    tilelang.SparseMLA.apply = staticmethod(lambda *a: None)
    with pytest.raises(Refused, match="SparseMLA.apply is wrapped already"):
        fix.enable()
    del tilelang.SparseMLA.apply
    assert upstream.held() == before and not fix.status()["on"]


@pytest.mark.parametrize("upstream", [("early", "0.19.2")], indirect=True)
def test_a_fix_that_does_not_take_is_taken_back(upstream: Upstream) -> None:
    before = upstream.held()
    with pytest.raises(Refused, match="the fix did not take on megatron-core 0.19.2 .*fused_sparse_mla_absorbed"):
        fix.enable()
    assert upstream.held() == before and not fix.status()["on"]


def test_what_was_wrapped_since_is_not_undone(upstream: Upstream) -> None:
    fix.enable()
    ours = upstream.tilelang.fused_sparse_mla_absorbed
    upstream.tilelang.fused_sparse_mla_absorbed = lambda *a: ours(*a)
    with pytest.raises(Refused, match="fused_sparse_mla_absorbed was changed since"):
        fix.disable()
    upstream.tilelang.fused_sparse_mla_absorbed = ours
    assert not fix.disable()["on"]


def test_off_is_the_kill_switch_and_modes_are_named(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no mode 'fast'; one of: auto, refuse, dequantize, fp8"):
        fix.enable("fast")
    monkeypatch.setenv("PATCHBENCH_MITIGATE", "off")
    assert not fix.enable()["on"]


def test_threads_count_and_switch_without_loss(upstream: Upstream) -> None:
    fix.enable("dequantize")
    query, kv, indices = problem("sparse_mla")
    failed: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(10):
                upstream.call("sparse_mla", query, kv, indices)
                fix.enable("dequantize")
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and fix.status()["counts"]["dequantized"] == 80


def test_detection_asks_the_type_alone() -> None:
    class Hostile(Wrapper):
        def data_ptr(self) -> int:
            raise RuntimeError("pointer")

    assert fix.is_wrapped_storage(stored(normal(2, 576), Hostile)) and fix.is_wrapped_storage(Bare())
    plain = (torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), SimpleNamespace(), None, 0.1)
    assert not any(map(fix.is_wrapped_storage, plain))
