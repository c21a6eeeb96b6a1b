"""The float64 oracles of the benchmarks that compare with other implementations, and the operands that these get."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

FOLDERS = [str(Path(__file__).parents[2] / "repro" / name) for name in ("bench", "sparse_mla_dims", "liger_flce_none_bwd")]
sys.path[:0] = FOLDERS
mla_oracle, bench_sparse_mla, bench_peers = map(importlib.import_module, ("oracle", "bench_sparse_mla", "bench_peers"))
del sys.path[: len(FOLDERS)]


def attention_by_autograd(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, grad: torch.Tensor, scale: float):
    """The dense form: indices are distinct, so that a mask over all keys says the same."""
    q, kv = (t.double().requires_grad_() for t in (q, kv))
    named = torch.zeros(*q.shape[:2], kv.shape[1] + 1, dtype=torch.bool)
    named.scatter_(2, indices.squeeze(2).long().where(indices.squeeze(2) >= 0, kv.shape[1]), True)
    scores = scale * torch.einsum("bshd,bkgd->bshk", q, kv)
    weights = scores.masked_fill(~named[:, :, None, :-1], float("-inf")).softmax(-1)
    out = torch.einsum("bshk,bkgd->bshd", weights, kv[..., : grad.shape[-1]])
    return (out, *torch.autograd.grad(out, (q, kv), grad.double()))


@pytest.mark.parametrize("kind", ["uniform", "local", "causal"])
def test_sparse_mla_is_that_of_autograd(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sparse_mla, "WINDOW", 24)
    monkeypatch.setattr(mla_oracle, "QUERIES", 7)
    torch.manual_seed(0)
    queries, keys = (20, 20) if kind == "causal" else (20, 48)
    q, kv, grad = torch.randn(2, queries, 4, 24), torch.randn(2, keys, 1, 24), torch.randn(2, queries, 4, 16)
    indices = bench_sparse_mla.named_keys((2, queries, keys, 12), kind, "cpu")
    want = attention_by_autograd(q, kv, indices, grad, 0.3)
    got = mla_oracle.attention(q, kv, indices, grad, 0.3)
    for name, tensor in zip(("out", "grad_q", "grad_kv"), want, strict=True):
        assert (got[name] - tensor).abs().max() < 1e-12


@pytest.mark.parametrize(("kind", "first", "last"), [("uniform", 0, 48), ("local", 40, 43), ("causal", 0, 43)])
def test_named_keys_are_distinct_and_of_their_set(kind: str, first: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sparse_mla, "WINDOW", 3)
    row = bench_sparse_mla.named_keys((1, 20, 48, 40), kind, "cpu")[0, 14, 0]
    named = row[row >= 0].tolist()
    assert set(named) <= set(range(first, last))
    assert len(set(named)) == len(named) == min(40, last - first)
    assert (row[len(named) :] == -1).all()


def test_an_error_in_one_row_is_seen_in_the_worst_row() -> None:
    want = torch.ones(1000, 8, dtype=torch.float64)
    got = want.clone()
    got[500] = 0
    whole, worst = mla_oracle.error(got, want)
    assert (whole, worst) == (pytest.approx(1000**-0.5, rel=1e-2), 1.0)


def test_a_peer_without_a_number_is_not_compared() -> None:
    want = torch.ones(1000, 8, dtype=torch.float64)
    got = want.clone()
    got[:3, 0] = float("nan")
    found = mla_oracle.error(got, want)
    assert found == ["nan", "nan", 3] and json.dumps(found, allow_nan=False)
    assert bench_sparse_mla.worst_of({"out": [1e-3, 1.0], "grad_q": found}) > bench_sparse_mla.WRONG


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_cross_entropy_is_that_of_autograd(reduction: str) -> None:
    torch.manual_seed(0)
    tokens, hidden, vocab = 96, 16, 200
    t = {
        "_input": torch.randn(tokens, hidden, dtype=torch.float64).requires_grad_(),
        "weight": torch.randn(vocab, hidden, dtype=torch.float64).requires_grad_(),
        "target": torch.randint(0, vocab, (tokens,)).masked_fill(torch.rand(tokens) < 0.3, -100),
        "grad_output": torch.rand(tokens),
    }
    oracle = bench_peers.Oracle(t)
    errors = oracle.errors(reduction, bench_peers.gradients(bench_peers.plain(reduction), t))
    assert all(number < 1e-12 for pair in errors.values() for number in pair)
    stale = bench_peers.gradients(bench_peers.plain("mean" if reduction == "none" else "none"), t)
    assert all(whole > 0.1 for whole, _ in oracle.errors(reduction, stale).values())
