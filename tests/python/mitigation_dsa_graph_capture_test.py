"""The hooks of pack dsa_graph_capture on a stand-in upstream. Longer than 400 lines: the stand-in has seven functions of our own."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import speaks_for  # noqa: E402
from patchbench_mitigations import dsa_graph_capture as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

# KIND: "host" has the defects of a release that reads the host, "sentinel" the defects of one that rejects -1, "right" none.
DSA = """
import torch

KIND = "{kind}"
if KIND != "sentinel":
    from megatron.core.transformer.experimental_attention_variant import dsa_layout, dsa_masking

class FusedDSAIndexerLoss:
    pass

def get_pg_size(group):
    return 2

def chosen(indices, keys):
    mask = torch.full((*indices.shape[:2], keys), float("-inf"))
    if KIND == "sentinel":
        return mask.scatter_(-1, indices, 0)
    dsa_masking.scatter_topk_into_index_mask(mask, indices)
    return mask

def loss_of(scores, indices, rows=None):
    kept = (chosen(indices, scores.shape[-1]) == 0) & scores.isfinite()
    each = torch.where(kept, scores, 0.0).sum(-1)
    return each if rows is None else each * rows

if KIND == "sentinel":
    def compute_dsa_indexer_loss(index_scores, topk_indices, query, key, softmax_scale, loss_coeff, sparse_loss, pg_collection):
        return loss_of(index_scores, topk_indices).mean() * loss_coeff

    def bwd_fused_indexer_loss_naive(q, weights, k, query, key, topk_indices, softmax_scale, loss_coeff, sparse_loss,
                                     grad_loss, pg_collection):
        return chosen(topk_indices, key.shape[0]).exp() * grad_loss

    def unfused_dsa_fn(query, key, value, topk_indices, softmax_scale):
        return chosen(topk_indices, key.shape[0]).exp()
else:
    def compute_dsa_indexer_loss(index_scores, topk_indices, query, key, softmax_scale, loss_coeff, sparse_loss, pg_collection,
                                 mask=None, varlen_starts=None, varlen_ends=None, key_positions=None,
                                 query_valid_rows=None, calculate_per_token_loss=False):
        return loss_of(index_scores, topk_indices).mean() * loss_coeff

    def bwd_fused_indexer_loss_naive(q, weights, k, query, key, topk_indices, softmax_scale, loss_coeff, sparse_loss, mask,
                                     grad_loss, pg_collection, varlen_starts=None, varlen_ends=None, key_positions=None,
                                     query_valid_rows=None, calculate_per_token_loss=False, use_relu=True):
        sq, b = query.shape[:2]
        grad = chosen(topk_indices, key.shape[0]).exp() * grad_loss * loss_coeff
        if calculate_per_token_loss:
            return grad
        if query_valid_rows is not None:
            return grad / query_valid_rows.sum().float() * query_valid_rows.unsqueeze(-1)
        return grad / (b * sq if KIND == "right" else torch.tensor(float(b * sq)))

    def unfused_dsa_fn(query, key, value, topk_indices, softmax_scale, mask=None, varlen_starts=None, varlen_ends=None,
                       key_positions=None):
        return chosen(topk_indices, key.shape[0]).exp()

    def _validate_nonpacked_cp_uniform_length(sq, skv, cp_size, cp_group, device):
        if KIND != "right" and cp_group is not None and torch.distributed.is_initialized() and get_pg_size(cp_group) == cp_size:
            gathered = [torch.full((1,), sq, device=device) for _ in range(cp_size)]
            torch.distributed.all_gather(gathered, gathered[0], group=cp_group)
            if bool((torch.cat(gathered) != sq).any()):
                raise RuntimeError("uneven")
        if skv not in (sq, sq * cp_size):
            raise RuntimeError("key length")
"""

MASKING = """
import torch

KIND = "{kind}"

def scatter_topk_into_index_mask(index_mask, topk_indices, *, seq_chunk_size=256):
    topk_indices = topk_indices.long()
    if KIND == "right" or bool((topk_indices < 0).any()):
        level = torch.zeros(topk_indices.shape, device=index_mask.device).masked_fill(topk_indices < 0, float("-inf"))
        index_mask.scatter_reduce_(-1, topk_indices.clamp(min=0), level, "amax")
    else:
        index_mask.scatter_(-1, topk_indices, 0.0)

def build_fused_indexer_varlen_bounds(*, sq, skv, device, mask, varlen_starts, varlen_ends, key_positions):
    if mask is not None and varlen_starts is not None:
        raise ValueError("exclusive")
    if mask is not None:
        rows = mask.isfinite().reshape(-1, sq, skv)
        ends = rows[0].sum(-1)
        wanted = torch.arange(skv, device=device) < ends.unsqueeze(-1)
        if KIND == "right" or not torch.equal(rows, wanted.expand_as(rows)):
            return None
        return torch.zeros_like(ends).int(), ends.int()
    if varlen_starts is None:
        ends = torch.arange(1, sq + 1, device=device)
        return torch.zeros_like(ends).int(), ends.int()
    order = torch.arange(skv, device=device)
    if KIND == "right":
        return None if key_positions is not None else (varlen_starts.int(), varlen_ends.int())
    if not torch.equal(order if key_positions is None else key_positions, order):
        return None
    return varlen_starts.int(), varlen_ends.int()
"""

LAYOUT = """
import torch

KIND = "{kind}"

def build_packed_allgather_cp_local_positions(cu_seqlens, cp_size, cp_rank, device, output_size=None, *,
                                              cu_seqlens_cover_output=False):
    cu = cu_seqlens.to(device)
    if KIND == "right":
        return torch.arange(output_size, device=device)
    first, end = cu[:-1], cu[1:]
    kept = end > first
    first, end = first[kept].tolist(), end[kept].tolist()
    if not first:
        return torch.empty(0, dtype=torch.int64)
    slots = []
    for a, z in zip(first, end):
        half, left = divmod(z - a, 2 * cp_size)
        if left:
            raise ValueError("not divisible")
        slots += range(a + cp_rank * half, a + (cp_rank + 1) * half)
        slots += range(z - (cp_rank + 1) * half, z - cp_rank * half)
    padding = (len(slots) if output_size is None else output_size) - len(slots)
    start = int(cu[-1]) + cp_rank * (output_size or 0)
    if padding and cu_seqlens_cover_output:
        raise RuntimeError("does not cover")
    return torch.tensor(slots + list(range(start, start + padding)))
"""


class Upstream:
    """A megatron.core on the path, of one kind and version."""

    def __init__(self, folder: Path, kind: str, version: str):
        variant = folder / "megatron/core/transformer/experimental_attention_variant"
        variant.mkdir(parents=True)
        (folder / "megatron/core/__init__.py").write_text(f'__version__ = "{version}"\n')
        files = {"dsa": DSA} if kind == "sentinel" else {"dsa": DSA, "dsa_masking": MASKING, "dsa_layout": LAYOUT}
        for name, text in files.items() if kind != "none" else ():
            (variant / f"{name}.py").write_text(text.replace("{kind}", kind))

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{fix.VARIANT}.{name}")

    def functions(self) -> dict[str, Any]:
        """Every function that a site names, as its module holds it now."""
        found = {site.label: (site.module, site.name) for site in fix.SITES}
        held = {m for m in ("dsa", "dsa_masking", "dsa_layout") if f"{fix.VARIANT}.{m}" in sys.modules}
        return {label: getattr(self.module(m), name, None) for label, (m, name) in found.items() if m in held}


def forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "megatron"]:
        del sys.modules[name]


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A stand-in for a measured release that reads the host, unless the test asks for (kind, version)."""
    kind, version = getattr(request, "param", ("host", "0.19.0"))
    speaks_for(monkeypatch, "0.16.1", "0.18.2", "0.19.0", "0.19.2")
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE", "PATCHBENCH_OPS_LIB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fix, "load_ops", lambda: "no op library at /nowhere")
    made = Upstream(tmp_path, kind, version)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    importlib.invalidate_caches()
    yield made
    if fix.status()["on"]:
        fix.disable()
    forget()


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch says that a capture is under way."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


SENTINEL = pytest.mark.parametrize("upstream", [("sentinel", "0.18.2")], indirect=True)


def indices_of(pattern: str) -> torch.Tensor:
    """[2, 5, 3] of 7 keys; row 1 has key 0 and -1 where there are sentinels."""
    indices = torch.randint(0, 7, (2, 5, 3), generator=torch.Generator().manual_seed(4))
    if pattern == "sentinels":
        indices[:, :, 2] = -1
        indices[:, 1] = torch.tensor([-1, 0, -1])
    if pattern == "all_negative":
        indices[:, 3] = -1
    return indices


def opened(indices: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mask by its definition, index by index."""
    mask = mask.clone()
    for b, s, k in torch.cartesian_prod(*map(torch.arange, indices.shape)).tolist():
        if indices[b, s, k] >= 0:
            mask[b, s, indices[b, s, k]] = 0
    return mask


def test_the_probe_names_each_defect(upstream: Upstream) -> None:
    finding = fix.probe()
    assert finding.state == "needed" and not fix.status()["on"]
    assert sorted(finding.sites) == [
        "dsa._validate_nonpacked_cp_uniform_length host_read",
        "dsa.bwd_fused_indexer_loss_naive host_scalar",
        "dsa_layout.build_packed_allgather_cp_local_positions host_read",
        "dsa_masking.build_fused_indexer_varlen_bounds host_read",
        "dsa_masking.scatter_topk_into_index_mask host_read",
    ]


@SENTINEL
def test_the_probe_names_a_release_that_rejects_minus_one(upstream: Upstream) -> None:
    names = ("compute_dsa_indexer_loss", "unfused_dsa_fn", "bwd_fused_indexer_loss_naive")
    assert list(fix.probe().sites) == [f"dsa.{name} sentinel_index" for name in names]


@pytest.mark.parametrize("upstream", [("right", "0.19.2")], indirect=True)
def test_a_right_release_is_left_alone_even_if_forced(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    fix.probe()
    before = upstream.functions()
    assert not fix.enable()["on"] and fix.probe().state == "right"
    assert upstream.functions() == before


@pytest.mark.parametrize("upstream", [("host", "0.19.0"), ("sentinel", "0.16.1")], indirect=True)
def test_switching_is_idempotent_reversible_and_logged_once(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    fix.probe()
    originals = upstream.functions()
    with caplog.at_level(logging.INFO, "patchbench.mitigations"):
        fix.enable("exact")
        changed = upstream.functions()
        fix.enable("auto")
    assert upstream.functions() == changed and len(caplog.records) == 1
    assert {k.split()[0] for k in fix.status()["sites"]} == {n for n, f in originals.items() if f is not changed[n]}
    fix.disable()
    fix.disable()
    assert all(now is originals[name] for name, now in upstream.functions().items())
    assert fix.status() == {"slug": fix.SLUG, "on": False}


@pytest.mark.parametrize("pattern", ["dense", "sentinels", "all_negative"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [2, 256])
def test_the_scatter_is_exact(upstream: Upstream, pattern: str, dtype: torch.dtype, rows: int) -> None:
    fix.enable()
    indices = indices_of(pattern)
    for column_zero in (float("-inf"), 0.0):
        mask = torch.full((2, 5, 7), float("-inf"))
        mask[:, :, 0] = column_zero
        wanted = opened(indices, mask)
        upstream.module("dsa_masking").scatter_topk_into_index_mask(mask, indices.to(dtype), seq_chunk_size=rows)
        assert torch.equal(mask, wanted)


def test_the_scatter_refuses_what_it_is_not_exact_for(upstream: Upstream) -> None:
    fix.enable()
    scatter, indices = upstream.module("dsa_masking").scatter_topk_into_index_mask, indices_of("dense")
    with pytest.raises(Refused, match="index_mask must have dtype float32, got torch.bfloat16"):
        scatter(torch.zeros(2, 5, 7, dtype=torch.bfloat16), indices)
    with pytest.raises(Refused, match=r"topk_indices must have 3 axes \[batch, seqlen_q, topk\], got 2"):
        scatter(torch.zeros(2, 5, 7), indices[0])
    with pytest.raises(Refused, match=r"must begin with the shape \[2, 5\], got \[2, 4\]"):
        scatter(torch.zeros(2, 5, 7), indices[:, 1:])


def test_gradients_keep_their_bits(upstream: Upstream) -> None:
    dsa = upstream.module("dsa")
    words = fix._loss_words(dsa.bwd_fused_indexer_loss_naive, torch.tensor([[[0, 0], [1, 0], [2, -1], [3, 1]]]))
    variants = ({}, {"calculate_per_token_loss": True}, {"query_valid_rows": torch.tensor([[True, False, True, True]])})
    wanted = [dsa.bwd_fused_indexer_loss_naive(**words, **more) for more in variants]
    fix.enable()
    got = [dsa.bwd_fused_indexer_loss_naive(**words, **more) for more in variants]
    assert all(map(torch.equal, got, wanted)) and not torch.equal(wanted[0], wanted[2])


LENGTHS = {"plain": [8, 16, 4], "empty_between": [8, 0, 16, 0, 4], "leading_empty": [0, 0, 12], "one": [4], "none": [0, 0]}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_positions_are_those_of_the_release(upstream: Upstream, lengths: str, padding: int, rank: int) -> None:
    layout = upstream.module("dsa_layout")
    cu_seqlens = torch.tensor([0, *LENGTHS[lengths]], dtype=torch.int32).cumsum(0)
    words = {"cp_size": 2, "cp_rank": rank, "device": torch.device("cpu"), "output_size": sum(LENGTHS[lengths]) // 2 + padding}
    wanted = layout.build_packed_allgather_cp_local_positions(cu_seqlens, **words)
    fix.enable()
    got = layout.build_packed_allgather_cp_local_positions(cu_seqlens, **words)
    assert got.dtype == wanted.dtype == torch.int64 and torch.equal(got, wanted)
    if lengths != "none":
        assert torch.equal(fix.positions_of(cu_seqlens, 2, rank, words["output_size"]), wanted)


def test_positions_that_the_release_rejects_are_rejected(upstream: Upstream) -> None:
    fix.enable()
    build = upstream.module("dsa_layout").build_packed_allgather_cp_local_positions
    words = {"cp_size": 2, "cp_rank": 0, "device": torch.device("cpu")}
    with pytest.raises(ValueError, match="not divisible"):
        build(torch.tensor([0, 6]), output_size=3, **words)
    with pytest.raises(RuntimeError, match="does not cover"):
        build(torch.tensor([0, 8]), output_size=5, cu_seqlens_cover_output=True, **words)
    assert build(torch.tensor([0, 8]), **words).tolist() == [0, 1, 6, 7]


CAUSAL = torch.full((4, 4), float("-inf")).triu(1)
STARTS, ENDS = torch.zeros(4, dtype=torch.int64), torch.arange(1, 5)
BOUNDS = {
    "causal": ({}, True),
    "bounds": ({"varlen_starts": STARTS, "varlen_ends": ENDS}, True),
    "same_order": ({"varlen_starts": STARTS, "varlen_ends": ENDS, "key_positions": torch.arange(4)}, False),
    "mask": ({"mask": CAUSAL}, False),
}


def bounds_of(upstream: Upstream, words: dict[str, Any]) -> Any:
    absent = dict.fromkeys(("mask", "varlen_starts", "varlen_ends", "key_positions"))
    build = upstream.module("dsa_masking").build_fused_indexer_varlen_bounds
    return build(**{"sq": 4, "skv": 4, "device": torch.device("cpu")} | absent | words)


@pytest.mark.parametrize("form", BOUNDS)
def test_eager_bounds_are_those_of_the_release(upstream: Upstream, form: str) -> None:
    wanted = bounds_of(upstream, BOUNDS[form][0])
    fix.enable()
    assert all(map(torch.equal, bounds_of(upstream, BOUNDS[form][0]), wanted))


@pytest.mark.parametrize("form", BOUNDS)
def test_while_capturing_what_needs_a_comparison_is_declined(upstream: Upstream, capturing: None, form: str) -> None:
    words, is_answered = BOUNDS[form]
    wanted = bounds_of(upstream, words)
    fix.enable()
    with fix._Reads():
        got = bounds_of(upstream, words)
    if is_answered:
        assert all(torch.equal(a, b) and a.dtype == torch.int32 for a, b in zip(got, wanted, strict=True))
    else:
        assert got is None
    with pytest.raises(ValueError, match="exclusive"):
        bounds_of(upstream, {"mask": CAUSAL, "varlen_starts": STARTS, "varlen_ends": ENDS})


def test_lengths_of_other_ranks_are_not_read_while_capturing(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[Any] = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_gather", lambda *a, group: gathered.append(group))
    fix.enable()
    validate = upstream.module("dsa")._validate_nonpacked_cp_uniform_length
    validate(4, 8, 2, "group", torch.device("cpu"))
    assert gathered == ["group"]
    monkeypatch.setattr(fix, "is_capturing", lambda device: True)
    with fix._Reads():
        validate(4, 8, 2, "group", torch.device("cpu"))
    assert gathered == ["group"]
    with pytest.raises(RuntimeError, match="key length"):
        validate(4, 9, 2, "group", torch.device("cpu"))


@SENTINEL
def test_minus_one_is_no_key(upstream: Upstream) -> None:
    dsa = upstream.module("dsa")
    indices = indices_of("sentinels")
    words = {"query": torch.zeros(5, 2, 1, 4), "key": torch.zeros(7, 2, 1, 4), "value": torch.zeros(7, 2, 1, 4)}
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        dsa.unfused_dsa_fn(**words, topk_indices=indices, softmax_scale=1.0)
    fix.enable()
    before = indices.clone()
    got = dsa.unfused_dsa_fn(**words, topk_indices=indices, softmax_scale=1.0)
    assert torch.equal(got, opened(indices, torch.full((2, 5, 7), float("-inf"))).exp())
    assert torch.equal(indices, before)
    with pytest.raises(Refused, match="topk_indices has a row without any index"):
        dsa.unfused_dsa_fn(**words, topk_indices=indices_of("all_negative"), softmax_scale=1.0)
    with pytest.raises(Refused, match="must have 3 axes"):
        dsa.unfused_dsa_fn(**words, topk_indices=indices[0], softmax_scale=1.0)


@pytest.mark.parametrize("upstream", [("host", "99.0")], indirect=True)
def test_an_unmeasured_release_needs_force(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="not verified on megatron-core 99.0; PATCHBENCH_FORCE="):
        fix.enable()
    monkeypatch.setenv("PATCHBENCH_FORCE", fix.SLUG)
    assert fix.enable()["on"]


@pytest.mark.parametrize("upstream", [("host", "0.19.2+1a2b3c4")], indirect=True)
def test_a_checkouts_commit_is_refused_by_name_where_its_code_is_not_known(upstream: Upstream) -> None:
    with pytest.raises(Refused, match=r"not verified on megatron-core 0\.19\.2\+1a2b3c4"):
        fix.enable()


@pytest.mark.parametrize("upstream", [("none", "0.15.3")], indirect=True)
def test_a_release_without_sparse_attention_is_refused(upstream: Upstream) -> None:
    with pytest.raises(Refused, match="megatron-core 0.15.3 has no sparse attention; 0.16.0 is the first"):
        fix.enable()


def test_an_absent_a_changed_and_a_wrapped_function_change_nothing(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    fix.probe()
    masking, layout = upstream.module("dsa_masking"), upstream.module("dsa_layout")
    before = upstream.functions()
    original = layout.build_packed_allgather_cp_local_positions
    renamed = type(original)(original.__code__.replace(co_name="x"), original.__globals__)
    renamed.__module__, renamed.__wrapped__ = layout.__name__, original
    with monkeypatch.context() as patch:
        patch.setattr(layout, "build_packed_allgather_cp_local_positions", renamed)
        with pytest.raises(Refused, match="build_packed_allgather_cp_local_positions is wrapped already"):
            fix.enable()
    with monkeypatch.context() as patch:
        patch.delattr(masking, "scatter_topk_into_index_mask")
        with pytest.raises(Refused, match="dsa_masking.scatter_topk_into_index_mask is not in this release"):
            fix.enable()
    with monkeypatch.context() as patch:
        exec("def scatter_topk_into_index_mask(mask, indices): pass", masking.__dict__)
        with pytest.raises(Refused, match="takes other arguments than were measured: \\(mask, indices\\)"):
            fix.enable()
        masking.scatter_topk_into_index_mask = before["dsa_masking.scatter_topk_into_index_mask"]
    assert upstream.functions() == before and not fix.status()["on"]


def test_a_fix_that_does_not_take_is_taken_back(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    fix.probe()
    before = upstream.functions()
    monkeypatch.setattr(fix, "positions_of", lambda cu, *rest: cu[cu > 0])
    with pytest.raises(Refused, match="the fix did not take on megatron-core 0.19.0 .*aten::index reads the device"):
        fix.enable()
    assert upstream.functions() == before and not fix.status()["on"]


def test_what_was_wrapped_since_is_not_undone(upstream: Upstream) -> None:
    fix.enable()
    masking = upstream.module("dsa_masking")
    ours = masking.scatter_topk_into_index_mask
    masking.scatter_topk_into_index_mask = lambda *a: ours(*a)
    with pytest.raises(Refused, match="scatter_topk_into_index_mask was changed since"):
        fix.disable()
    masking.scatter_topk_into_index_mask = ours
    assert not fix.disable()["on"]


def test_off_is_the_kill_switch_and_modes_are_named(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no mode 'fast'; one of: auto, exact"):
        fix.enable("fast")
    monkeypatch.setenv("PATCHBENCH_MITIGATE", "off")
    assert not fix.enable()["on"]


@pytest.mark.skipif(bool(fix.load_ops()), reason="the op library is not built for this torch")
def test_the_op_serves_where_it_loads(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    monkeypatch.setattr(fix, "load_ops", lambda: "")
    monkeypatch.setattr(fix, "open_chosen_keys", lambda *a: served.append("plain"))
    fix.enable()
    mask, indices = torch.full((2, 5, 7), float("-inf")), indices_of("all_negative")
    wanted = opened(indices, mask)
    upstream.module("dsa_masking").scatter_topk_into_index_mask(mask, indices)
    assert torch.equal(mask, wanted) and not served
