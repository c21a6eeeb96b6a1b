"""The mitigations of packs sparse_mla_dims and sparse_mla_pdp_precision on the real megatron-core 0.19.2.

TileLang is stood in for: `SparseMLA`'s kernels are attention in float64 that takes 576 columns and 512 values alone.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "mitigations"), str(ROOT / "repro" / "harness")]

from absent import stand_in_for  # noqa: E402
from evidence import speaks_for  # noqa: E402
from patchbench_mitigations import fp8_storage_dispatch  # noqa: E402
from patchbench_mitigations import sparse_mla_dims as dims  # noqa: E402
from patchbench_mitigations import sparse_mla_pdp_precision as pdp  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

VERSION = "0.19.2"
TILELANG = SimpleNamespace(dsa_kernel_backend="tilelang")


def forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in ("megatron", "tilelang")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release's files, from the cache that env/bootstrap.sh filled."""
    spec = importlib.util.spec_from_file_location("fetch", ROOT / "env" / "fetch.py")
    fetch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fetch)
    pins = json.loads((ROOT / "env" / "pins.json").read_text())["upstreams"]["megatron-core"]
    (release,) = (one for one in pins["releases"] if one["version"] == VERSION)
    folder = tmp_path_factory.mktemp("megatron")
    fetch.unzip(fetch.fetch_file("megatron-core", release["file"], release["sha256"]), folder)
    return next(folder.rglob("megatron")).parent


@pytest.fixture(scope="module")
def modules(checkout: Path) -> Iterator[dict[str, ModuleType]]:
    finders, path = list(sys.meta_path), list(sys.path)
    sys.path.insert(0, str(checkout))
    stand_in_for(("nvdlfw_inspect", "onnxscript", "tilelang"))
    forget()
    # Not mock.patch.dict: it would also drop the parts of torch that are first imported meanwhile, which register only once.
    with pytest.MonkeyPatch.context() as patch:
        for name in ("transformer_engine", "transformer_engine_torch"):
            patch.setitem(sys.modules, name, None)
        names = ("dsa_kernels", "ops.tilelang_dsa", "ops.sparse_mla", "ops.tilelang_sparse_mla_bwd")
        yield {name: importlib.import_module(f"{dims.VARIANT}.{name}") for name in names}
    sys.meta_path[:], sys.path[:] = finders, path
    forget()


class Kernels:
    """The forward and backward kernels, in float64: what they were given, and the Delta."""

    def __init__(self) -> None:
        self.deltas: list[torch.Tensor] = []

    def attend(self, q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, scale: float) -> tuple[torch.Tensor, ...]:
        """weights [b, s, h, k], keys [b, s, k, d], out [b, s, h, 512]."""
        assert q.shape[-1] == kv.shape[-1] == 576, "the kernels take 576 columns alone"
        keys = kv.double().squeeze(2)[torch.arange(len(kv)).view(-1, 1, 1), indices.squeeze(2).clamp_min(0).long()]
        scores = scale * torch.einsum("bshd,bskd->bshk", q.double(), keys)
        weights = scores.masked_fill(indices < 0, float("-inf")).softmax(-1).nan_to_num(0)
        return weights, keys, torch.einsum("bshk,bskd->bshd", weights, keys[..., :512])

    def forward(self, q: Any, kv: Any, indices: Any, sm_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.attend(q, kv, indices, sm_scale)[2]
        return out.to(torch.bfloat16), torch.zeros(out.shape[:3])

    def backward(self, q, kv, o, do, indices, lse, sm_scale=None, delta=None):  # noqa: ANN001, ANN202
        """grad_q and grad_kv with the Delta that was given."""
        self.deltas.append(delta)
        weights, keys, _ = self.attend(q, kv, indices, sm_scale)
        grad_weights = torch.einsum("bshd,bskd->bshk", do.double(), keys[..., :512])
        grad_scores = sm_scale * weights * (grad_weights - delta.double().unsqueeze(-1))
        grad_keys = torch.einsum("bshk,bshd->bskd", grad_scores, q.double())
        grad_keys[..., :512] += torch.einsum("bshk,bshd->bskd", weights, do.double())
        grad_kv = torch.zeros(kv.shape, dtype=torch.float64).squeeze(2)
        for b in range(len(kv)):
            grad_kv[b].index_add_(0, indices[b].clamp_min(0).flatten().long(), grad_keys[b].flatten(0, 1))
        return torch.einsum("bshk,bskd->bshd", grad_scores, keys).to(q.dtype), grad_kv.unsqueeze(2).to(kv.dtype)


@pytest.fixture
def kernels(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """The real SparseMLA, dispatcher and wrappers around kernels of our own; nothing is on before or after."""
    made, module = Kernels(), modules["ops.sparse_mla"]
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(dims, "_said", set())
    monkeypatch.setattr(module, "sparse_mla_fwd_interface", made.forward)
    monkeypatch.setattr(module, "sparse_mla_delta", lambda o, do: (o.float() * do.float()).sum(-1))
    monkeypatch.setattr(modules["ops.tilelang_sparse_mla_bwd"].sparse_mla_bwd, "__code__", _handing_over.__code__)
    monkeypatch.setattr(modules["ops.tilelang_sparse_mla_bwd"], "patchbench_test_kernels", made, raising=False)
    speaks_for(monkeypatch, VERSION)
    yield made
    for fix in (pdp, dims, fp8_storage_dispatch):
        fix.disable()


def _handing_over(q, kv, o, do, indices, lse, sm_scale=None, delta=None):  # noqa: ANN001, ANN202
    return patchbench_test_kernels.backward(q, kv, o, do, indices, lse, sm_scale, delta)  # noqa: F821  the release's own global


def problem(head_dim: int, heads: int = 16, is_shifted: bool = False) -> list[torch.Tensor]:
    """query [s, b, h, d], key [s_k, b, 1, d], indices [b, s, 64] with empty slots and one query without a key."""
    generator = torch.Generator().manual_seed(head_dim)
    query, key = (torch.randn(*n, head_dim, generator=generator) for n in ((4, 2, heads), (40, 2, 1)))
    if is_shifted:
        key = key + 2 * torch.randn(head_dim, generator=generator)
    indices = torch.randint(0, 40, (2, 4, 64), generator=generator)
    indices[..., 50:] = -1
    indices[1, 2] = -1
    return [query.to(torch.bfloat16).requires_grad_(), key.to(torch.bfloat16).requires_grad_(), indices]


def called(modules: dict[str, ModuleType], t: list[torch.Tensor], v_channels: int) -> torch.Tensor | None:
    return modules["dsa_kernels"].run_fused_absorbed_sparse_attention(TILELANG, *t, softmax_scale=0.05, v_channels=v_channels)


def reference(t: list[torch.Tensor], v_channels: int, weight: torch.Tensor | None = None) -> list[torch.Tensor]:
    """out, grad_query and grad_key in float64, from the definition."""
    leaves = [x.detach().double().requires_grad_() for x in t[:2]]
    q, keys = leaves[0].transpose(0, 1), leaves[1].transpose(0, 1).squeeze(2)
    chosen = keys[torch.arange(2).view(-1, 1, 1), t[2].clamp_min(0)]
    scores = 0.05 * torch.einsum("bshd,bskd->bshk", q, chosen)
    weights = scores.masked_fill((t[2] < 0).unsqueeze(2), float("-inf")).softmax(-1)
    weights = torch.where((t[2] >= 0).any(-1)[..., None, None], weights, 0.0)
    out = torch.einsum("bshk,bskd->bshd", weights, chosen[..., :v_channels]).transpose(0, 1)
    weight = torch.ones_like(out) if weight is None else weight.double()
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    assert got.shape == wanted.shape
    return ((got.double() - wanted).norm() / wanted.norm()).item()


DIMS = [(512, 512), (320, 256), (192, 128), (128, 64), (576, 448), (544, 64), (48, 48)]


@pytest.mark.parametrize(("head_dim", "v_channels"), DIMS)
def test_padding_serves_what_the_release_declines(kernels: Kernels, modules: dict[str, ModuleType], head_dim: int, v_channels: int) -> None:
    t = problem(head_dim)
    assert called(modules, t, v_channels) is None
    assert dims.enable()["on"] and dims.status()["tainted"] == ""
    out = called(modules, t, v_channels)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    wanted = reference(t, v_channels, weight)
    got = [out, *torch.autograd.grad((out * weight).sum(), t[:2])]
    # bf16 rounds out, what Delta is formed of, and each gradient, by 2^-9 at most.
    assert out.is_contiguous() and all(error(g, w) < 2**-7 for g, w in zip(got, wanted, strict=True))
    assert dims.status()["counts"] == {"padded": 1, "declined": 0}


def test_the_release_s_own_dimensions_keep_their_bits(kernels: Kernels, modules: dict[str, ModuleType]) -> None:
    t = problem(576)
    before = called(modules, t, 512)
    grads = torch.autograd.grad(before.sum(), t[:2])
    dims.enable()
    after = called(modules, t, 512)
    assert torch.equal(before, after) and all(map(torch.equal, grads, torch.autograd.grad(after.sum(), t[:2])))
    assert dims.status()["counts"] == {"padded": 0, "declined": 0}


def test_what_nothing_serves_is_said_once_with_its_bytes(
    kernels: Kernels, modules: dict[str, ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    dims.enable()
    caplog.clear()
    for head_dim, v_channels, heads in ((640, 512, 16), (640, 512, 16), (576, 512, 48), (192, 128, 48)):
        assert called(modules, problem(head_dim, heads), v_channels) is None
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "float32 scores" in r.getMessage()]
    assert len(said) == 3 and f"[2, 16, 4, 40], {4 * 2 * 16 * 4 * 40} bytes" in said[0] and "48 heads" in said[2]
    assert dims.status()["counts"] == {"padded": 0, "declined": 4}


def test_a_quantised_operand_is_not_made_dense_by_padding(kernels: Kernels, modules: dict[str, ModuleType]) -> None:
    fp8_storage_dispatch.enable()
    dims.enable()
    t = problem(192)
    wrapper = torch.Tensor._make_wrapper_subclass(fp8_storage_dispatch._Quantised, t[0].shape, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="query is a _Quantised; no kernel reads its storage"):
        called(modules, [wrapper, *t[1:]], 128)
    assert called(modules, t, 128) is not None
    with pytest.raises(Refused, match="run_fused_absorbed_sparse_attention was changed since"):
        fp8_storage_dispatch.disable()
    dims.disable()
    fp8_storage_dispatch.disable()


def test_delta_is_exact_and_the_gradient_of_q_with_it(kernels: Kernels, modules: dict[str, ModuleType]) -> None:
    t = problem(576, is_shifted=True)
    held = modules["ops.sparse_mla"].sparse_mla_bwd
    weight = torch.randn(4, 2, 16, 512, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    wanted = reference(t, 512, weight)
    exact = (wanted[0] * weight.double()).sum(-1).transpose(0, 1)
    errors = {}
    for state in ("release", "mitigated"):
        out = called(modules, t, 512)
        grads = torch.autograd.grad((out * weight).sum(), t[:2])
        errors[state] = [error(kernels.deltas[-1], exact), error(grads[0], wanted[1]), error(grads[1], wanted[2])]
        pdp.enable()
    assert errors["release"][0] > 1e-3 and errors["mitigated"][0] < 1e-6
    assert errors["mitigated"][1] < min(2**-8, errors["release"][1] / 5) and errors["mitigated"][2] < 2**-8
    assert pdp.status()["counts"] == {"calls": 1}
    pdp.disable()
    assert modules["ops.sparse_mla"].sparse_mla_bwd is held


@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_delta_and_dq_in_chunks_and_groups(monkeypatch: pytest.MonkeyPatch, chunk_rows: int, num_groups: int) -> None:
    generator = torch.Generator().manual_seed(3)
    q, kv, grad = (torch.randn(*n, generator=generator) for n in ((2, 5, 4, 24), (2, 9, num_groups, 24), (2, 5, 4, 16)))
    indices = torch.randint(-1, 10, (2, 5, num_groups, 7), generator=generator)  # 9 is past the end
    indices[1, 3] = -1
    monkeypatch.setattr(pdp, "CHUNK_BYTES", chunk_rows * 7 * num_groups * 24 * 4)
    delta, grad_q = pdp.exact_delta(q, kv, indices, grad, 0.3)
    for b, s, h in torch.cartesian_prod(torch.arange(2), torch.arange(5), torch.arange(4)).tolist():
        group = h * num_groups // 4
        keys = kv[b, [i for i in indices[b, s, group].tolist() if 0 <= i < 9], group].double()
        p = (0.3 * keys @ q[b, s, h].double()).softmax(-1)
        grad_p = keys[:, :16] @ grad[b, s, h].double()
        wanted = (p * grad_p).sum()
        assert abs(wanted - delta[b, s, h]) < 1e-5
        assert (0.3 * (p * (grad_p - wanted)) @ keys - grad_q[b, s, h]).abs().max() < 1e-5


def test_dq_where_one_key_holds_the_mass() -> None:
    """Where a weight is 1 - 3e-5 and all dP are near 1200, float32's own rounding of Delta is a hundredth of dS and more."""
    generator = torch.Generator().manual_seed(4)
    q, kv, grad = (torch.randn(*n, generator=generator) for n in ((1, 6, 2, 49), (1, 40, 1, 49), (1, 6, 2, 48)))
    q, kv, grad = 0.1 * q, kv + 5, grad + 5
    q[..., 48], kv[..., 48] = 1, 0
    kv[0, 0, 0, 48] = 14
    keys = kv[0, :, 0].double()
    p = torch.einsum("shd,kd->shk", q[0].double(), keys).softmax(-1)
    grad_p = torch.einsum("shd,kd->shk", grad[0].double(), keys[:, :48])
    wanted = (p * (grad_p - (p * grad_p).sum(-1, keepdim=True))) @ keys
    _, got = pdp.exact_delta(q, kv, torch.arange(40).expand(1, 6, 1, 40), grad, 1.0)
    assert error(got[0], wanted) < 1e-4


def test_what_was_not_measured_is_refused(kernels: Kernels, modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    speaks_for(monkeypatch)
    for fix in (dims, pdp):
        with pytest.raises(Refused, match=f"not verified on megatron-core {VERSION}; PATCHBENCH_FORCE={fix.SLUG}"):
            fix.enable()
        assert fix.probe().state == "needed"
    monkeypatch.setattr(modules["ops.sparse_mla"], "SparseMLA", None)
    with pytest.raises(Refused, match="TileLang is not installed"):
        pdp.enable()
    with monkeypatch.context() as patch:
        patch.setattr(modules["dsa_kernels"], dims.NAME, lambda *a: None)
        with pytest.raises(Refused, match="is wrapped already"):
            dims.enable()
    with pytest.raises(ValueError, match="no mode 'wide'"):
        dims.enable("wide")
