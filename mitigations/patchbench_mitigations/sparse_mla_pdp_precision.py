"""Megatron-LM's sparse-MLA backward: Delta summed in float32 from P and dO, not from an output rounded to bfloat16; dQ with it.

Delta[b,s,h] = sum_j P_j <dO, v_j> is the same for all keys of a row: an error in it goes into every dS_j of that row, and
from there, times the sum of P_j k_j, into the gradient of q. The release forms it as <O, dO> from its bfloat16 O. Replaced is
`sparse_mla_bwd`, wherever a module of megatron holds it: Delta and dQ are computed anew from its arguments, in plain torch, and
dKV is the release's, given that Delta. dQ is because dS_j = P_j (dP_j - Delta) cancels where one key holds the mass: float32's
rounding of Delta is then a part in a hundred of it. All dP are taken from the heaviest key's, which changes no dS_j and leaves
nothing to cancel. One mode, "exact_delta" ("auto" is the same).

Cost: the scores, <dO, v> and dQ of all chosen keys once more, and the keys that fit into CHUNK_BYTES in float32.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from patchbench_mitigations.fingerprint import own_function
from patchbench_mitigations.megatron import VARIANT, Modules, detached, modules_for, version_for
from patchbench_mitigations.switch import Arguments, Finding, Hook, Mitigation, Placement

SLUG = "sparse_mla_pdp_precision"
UPSTREAM = "megatron-core"
TARGET = f"{VARIANT}.ops.sparse_mla"
NAME = "sparse_mla_bwd"
KEYS = (f"{VARIANT}.ops.sparse_mla:SparseMLA.backward", f"{VARIANT}.ops.tilelang_sparse_mla_bwd:{NAME}")
TAKES = "q kv o do indices lse sm_scale delta".split()
CHUNK_BYTES = 256 << 20  # of the gathered keys in float32
Function = Callable[..., Any]


def exact_delta(
    q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, grad_out: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(Delta, dQ): Delta = sum_j P_j dP_j, [b, s, h] float32, with P = softmax(scale q k) over the slots that name a key, one
    named twice counted twice, and dP_j = <grad_out, v_j>; dQ = scale sum_j P_j (dP_j - Delta) k_j, q's shape and dtype. Both 0
    for a row without a key. q [b, s, h, d], kv [b, s_k, g, d], indices [b, s, g, k], grad_out [b, s, h, d_v]; v_j is the first
    d_v columns of its key. Products of bfloat16 are exact in float32."""
    batch, seqlen_q, num_heads, _ = q.shape
    num_groups, topk = indices.shape[2:]
    step = max(1, CHUNK_BYTES // (4 * max(1, topk) * num_groups * kv.shape[-1]))
    is_key = (indices >= 0) & (indices < kv.shape[1])
    delta, grad_q = torch.empty(batch, seqlen_q, num_heads, dtype=torch.float32, device=q.device), torch.empty_like(q)
    for b in range(batch):
        for first in range(0, seqlen_q, step):
            rows = slice(first, first + step)
            chosen = indices[b, rows].clamp(0, kv.shape[1] - 1).long().transpose(0, 1)  # [g, rows, k]
            keys = torch.stack([kv[b, :, g][chosen[g]] for g in range(num_groups)], 1).float()  # [rows, g, k, d]
            q_rows, grad_rows = (t[b, rows].float().unflatten(1, (num_groups, -1)) for t in (q, grad_out))  # [rows, g, h/g, d]
            scores = scale * (q_rows @ keys.transpose(-1, -2))
            weights = scores.masked_fill(~is_key[b, rows].unsqueeze(2), float("-inf")).softmax(-1).nan_to_num(0.0)
            grad_weights = grad_rows @ keys[..., : grad_out.shape[-1]].transpose(-1, -2)
            top = grad_weights.gather(-1, weights.argmax(-1, keepdim=True))
            beside_top = grad_weights - top
            rest = (weights * beside_top).sum(-1, keepdim=True)
            delta[b, rows] = (rest + top * weights.sum(-1, keepdim=True)).squeeze(-1).flatten(1)
            grad_q[b, rows] = (scale * (weights * (beside_top - rest)) @ keys).flatten(1, 2).to(q.dtype)
    return delta, grad_q


def with_exact_delta(original: Function, hook: Hook) -> Function:
    """The release's backward with Delta from its own arguments, and dQ from that Delta."""
    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        hook.serve(calls=1)
        given = arguments.of(args, words)
        operands = [given[name] for name in ("q", "kv", "indices", "do")]
        is_batched = given["q"].dim() == 4
        scale = given["q"].shape[-1] ** -0.5 if given["sm_scale"] is None else float(given["sm_scale"])
        with torch.no_grad():
            delta, grad_q = exact_delta(*(operands if is_batched else [t.unsqueeze(0) for t in operands]), scale)
        given["delta"] = delta if is_batched else delta.squeeze(0)
        _, grad_kv = arguments.call(original, given)
        return grad_q if is_batched else grad_q.squeeze(0), grad_kv

    return replacement


# ---- probe ----


def _deltas(backward: Function, replaced: Callable[[Function], Function]) -> tuple[torch.Tensor, torch.Tensor]:
    """(the Delta that the release's own backward hands to its kernels, the exact one in float64) on a problem of 8 queries
    and 16 heads whose keys share a mean; kernels in plain torch replace the TileLang kernels."""
    generator = torch.Generator().manual_seed(14)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    q, kv = normal(1, 8, 16, 576).to(torch.bfloat16), (normal(1, 64, 1, 576) + 2 * normal(576)).to(torch.bfloat16)
    indices = torch.stack([torch.randperm(64, generator=generator)[:32] for _ in range(8)]).view(1, 8, 1, 32).int()
    grad_out, scale, seen = (normal(1, 8, 16, 512) + normal(512)).to(torch.bfloat16), 0.02, []
    keys = kv[0, :, 0].double()[indices[0, :, 0].long()]
    weights = torch.einsum("shd,skd->shk", q[0].double(), keys).mul(scale).softmax(-1)
    out = torch.einsum("shk,skd->shd", weights, keys[..., :512]).unsqueeze(0)

    def forward(*_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return out.to(torch.bfloat16), torch.zeros(1, 8, 16)

    def kernels(q, kv, o, do, indices, lse, sm_scale=None, delta=None):  # noqa: ANN001, ANN202  the release's own signature
        seen.append((o.float() * do.float()).sum(-1) if delta is None else delta)
        return torch.zeros_like(q), torch.zeros_like(kv)

    own = detached(backward, sparse_mla_fwd_interface=forward, sparse_mla_bwd=replaced(kernels),
                   sparse_mla_delta=lambda o, do: (o.float() * do.float()).sum(-1))  # fmt: skip
    is_valid = torch.ones(1, 8, 16, dtype=torch.bool)
    own(SimpleNamespace(saved_tensors=(q, kv, indices, is_valid), scaling=scale), grad_out, None)
    return seen[0], (out * grad_out.double()).sum(-1)


def _error(backward: Function, replaced: Callable[[Function], Function]) -> float:
    got, wanted = _deltas(backward, replaced)
    return ((got.double() - wanted).norm() / wanted.norm()).item()


# ---- switch ----


class _Delta(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "plain torch", KEYS
    counted = ("calls",)

    def meaning(self, mode: str) -> str:
        return "exact_delta"

    def op_note(self, mode: str) -> str:
        return ""

    def release(self) -> tuple[Modules, str]:
        version = version_for(self)
        modules = modules_for(self, ("ops.sparse_mla", "ops.tilelang_sparse_mla_bwd"))
        if len(modules) < 2:
            raise self.refusal(f"megatron-core {version}: it has no TileLang sparse MLA; 0.19.0 is the first that has")
        if modules["ops.sparse_mla"].SparseMLA is None:
            raise self.refusal(f"megatron-core {version}: TileLang is not installed, so that its sparse MLA is not there")
        held, home = getattr(modules["ops.sparse_mla"], NAME, None), modules["ops.tilelang_sparse_mla_bwd"]
        if held is None or not own_function(held, home):
            raise self.refusal(f"ops.sparse_mla.{NAME} is not there as a plain function, or is wrapped already; undo that first")
        if list(inspect.signature(held).parameters) != TAKES:
            raise self.refusal(f"{NAME} takes other arguments than were measured: {inspect.signature(held)}")
        return modules, version

    def look(self, release: Modules, version: str) -> Finding:
        try:
            error = _error(release["ops.sparse_mla"].SparseMLA.backward, lambda kernels: kernels)
        except Exception as e:
            return Finding("unknown", version, f"the backward raised {type(e).__name__}: {(str(e).splitlines() or [''])[0]}")
        # bf16 rounds O by 2^-9 of each element at most; float32 sums of 512 terms are within 2^-18.
        state = "right" if error < 2**-18 else "needed" if error < 2**-6 else "unknown"
        return Finding(state, version, f"Delta is off by {error:.1e}")

    def objection(self, release: Modules, finding: Finding) -> str:
        return f"megatron-core {finding.version}: {finding.reason}" if finding.state == "unknown" else ""

    def placements(self, release: Modules, hook: Hook) -> list[Placement]:
        module = release["ops.sparse_mla"]
        original = getattr(module, NAME)
        placed = with_exact_delta(original, hook)
        return [Placement(module, NAME, original, placed, f"ops.sparse_mla.{NAME}", TARGET.partition(".")[0])]

    def left(self, release: Modules, hook: Hook) -> str:
        error = _error(release["ops.sparse_mla"].SparseMLA.backward, lambda kernels: with_exact_delta(kernels, hook))
        return "" if error < 2**-18 else f"Delta is still off by {error:.1e}"


_own = _Delta()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
