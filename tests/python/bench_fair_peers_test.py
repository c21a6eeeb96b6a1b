"""The peers of bench_sparse_mla.py get the sizes that they have kernels for, and the argument that exists for causal sets."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

FOLDERS = [str(Path(__file__).parents[2] / "repro" / name) for name in ("bench", "sparse_mla_dims")]
sys.path[:0] = FOLDERS
oracle, bench, peers = map(importlib.import_module, ("oracle", "bench_sparse_mla", "peers"))
del sys.path[: len(FOLDERS)]


def plain(q: torch.Tensor, kv: torch.Tensor, named: torch.Tensor, grad: torch.Tensor, scale: float, length: torch.Tensor | None):
    """What both peers compute of packed rows; what lies after `length` of a query's keys is not looked at."""
    assert q.shape[-1] in (512, 576) and grad.shape[-1] == 512, "a width without a kernel"
    if length is not None:
        assert length.dtype == torch.int32
        named = named.masked_fill(torch.arange(named.shape[-1]) >= length[:, None], -1)
    return oracle.attention(q[None], kv[None, :, None], named[None, :, None], grad[None], scale)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, list]:
    """Both peers in plain torch; which lengths each was given."""
    lengths: dict[str, list] = {"FlashMLA": [], "cudnn-frontend": []}

    def sparse_forward(q, kv, indices, scale, values, attn_sink=None, topk_length=None):  # noqa: ANN001, ANN202
        assert q.shape[1] in (64, 128), "heads without a kernel"
        lengths["FlashMLA"].append(topk_length)
        grad = torch.zeros(*q.shape[:2], values)
        return plain(q, kv[:, 0], indices[:, 0], grad, scale, topk_length)["out"][0].to(q.dtype), None, None

    def backward(q, kv, out, grad, lse, sink, indices, softmax_scale=None, topk_length=None):  # noqa: ANN001, ANN202
        lengths["cudnn-frontend"].append(topk_length)
        found = plain(q, kv, indices, grad, softmax_scale, topk_length)
        return {"dq": found["grad_q"][0].to(q.dtype), "dkv": found["grad_kv"][0, :, 0].to(q.dtype)}

    for name, module in (("flash_mla", SimpleNamespace(flash_mla_sparse_fwd=sparse_forward)),
                         ("cudnn", SimpleNamespace(DSA=SimpleNamespace(sparse_attention_backward_wrapper=backward)))):  # fmt: skip
        made = ModuleType(name)
        made.__dict__.update(module.__dict__)
        monkeypatch.setitem(sys.modules, name, made)
    return lengths


def operands(heads: int, width: int, values: int, kind: str) -> peers.Operands:
    torch.manual_seed(2)
    q, kv, grad = torch.randn(1, 20, heads, width), torch.randn(1, 20, 1, width), torch.randn(1, 20, heads, values)
    made = peers.Operands(q, kv, bench.named_keys((1, 20, 20, 12), kind, "cpu"), grad, 0.3, kind == "causal")
    made.out, made.lse = torch.zeros_like(grad), torch.zeros(1, 20, heads)
    return made


@pytest.mark.parametrize(("heads", "width", "values"), [(16, 576, 512), (32, 128, 64), (80, 512, 512), (2, 80, 64)])
@pytest.mark.parametrize("kind", ["uniform", "causal"])
def test_a_peer_is_right_at_each_shape_and_knows_how_many_keys_there_are(
    given: dict[str, list], heads: int, width: int, values: int, kind: str
) -> None:
    o = operands(heads, width, values, kind)
    want = oracle.attention(o.q, o.kv, o.indices, o.grad_out, o.scale)
    (out,) = peers.flash_mla()["forward"](o)
    grads = peers.cudnn_frontend()["backward"](o)
    for got, name in zip((out, *grads), ("out", "grad_q", "grad_kv"), strict=True):
        assert got.shape == want[name].shape and oracle.error(got, want[name])[1] < 1e-5, name
    for lengths in given.values():
        assert [length is not None for length in lengths] == [kind == "causal"]
        assert kind != "causal" or lengths[0].tolist() == [min(12, i + 1) for i in range(20)]


def test_a_width_beyond_both_peers_is_declined(given: dict[str, list]) -> None:
    with pytest.raises(peers.CannotTake, match="head_dim_qk up to 576"):
        peers.flash_mla()["forward"](operands(2, 640, 512, "uniform"))
