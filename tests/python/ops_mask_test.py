"""patchbench_ops.topk_to_index_mask: values, fake implementation, a full graph, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from ops_package import OPS, patchbench_ops

INDICES = [[[0, 5, -1, 5], [7, 8, 2, 2]]]  # one repeated, one of no key


def wanted(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    mask = torch.full((1, 2, 9), -torch.inf, dtype=dtype)
    mask[0, 0, [0, 5]] = 0
    mask[0, 1, [7, 8, 2]] = 0
    return mask


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["cpu", "plain"])
def test_opens_the_named_keys(form: str, dtype: torch.dtype, index_dtype: torch.dtype, monkeypatch) -> None:
    monkeypatch.setenv("PATCHBENCH_OP_FALLBACK", "dsa_graph_capture" if form == "plain" else "")
    indices = torch.tensor(INDICES, dtype=index_dtype)
    assert patchbench_ops.topk_to_index_mask_path(indices) == form
    assert torch.equal(patchbench_ops.topk_to_index_mask(indices, 9, dtype=dtype), wanted(dtype))
    closed = torch.full((1, 2, 9), -torch.inf, dtype=dtype)
    assert patchbench_ops.topk_to_index_mask_(closed, indices) is closed
    assert torch.equal(closed, wanted(dtype)) and closed._version > 0


@pytest.mark.parametrize("form", ["cpu", "plain"])
def test_an_index_beyond_the_keys_is_reported(form: str, monkeypatch) -> None:
    monkeypatch.setenv("PATCHBENCH_OP_FALLBACK", "dsa_graph_capture" if form == "plain" else "")
    flag = torch.zeros(1, dtype=torch.int32)
    patchbench_ops.topk_to_index_mask(torch.tensor(INDICES), 9, out_of_range=flag)
    assert flag.item() == 0
    patchbench_ops.topk_to_index_mask(torch.tensor(INDICES), 8, out_of_range=flag)
    assert flag.item() == 1


def test_an_unreported_index_beyond_the_keys_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="topk_to_index_mask: an index is not below seqlen_k = 8"):
        patchbench_ops.topk_to_index_mask(torch.tensor(INDICES), 8)


def test_opcheck_takes_each_operator() -> None:
    indices = torch.tensor(INDICES)
    torch.library.opcheck(OPS.topk_to_index_mask.default, (indices, 9), {"dtype": torch.bfloat16})
    torch.library.opcheck(OPS.topk_to_index_mask_.default, (wanted(), indices))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_into_a_full_graph(dynamic: bool) -> None:
    torch.compiler.reset()

    def scores(indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        mask = patchbench_ops.topk_to_index_mask(indices, values.shape[-1])
        return (values + patchbench_ops.topk_to_index_mask_(mask, indices)).softmax(-1)

    values, indices = torch.randn(1, 2, 9), torch.tensor(INDICES)
    compiled = torch.compile(scores, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert torch.equal(compiled(indices, values), scores(indices, values))


def test_meta_tensors_give_the_shape() -> None:
    mask = patchbench_ops.topk_to_index_mask(torch.empty(2, 3, 4, dtype=torch.int32, device="meta"), 9, dtype=torch.bfloat16)
    assert mask.shape == (2, 3, 9) and mask.dtype == torch.bfloat16 and mask.is_meta


def test_a_wrong_argument_is_named() -> None:
    indices = torch.tensor(INDICES)
    for arguments, text in (
        ((indices[0], 9), r"topk_indices must have 3 axes \[batch, seqlen_q, topk\], got 2"),
        ((indices.short(), 9), "topk_indices must have dtype int32 or int64, got int16"),
        ((indices, -1), "seqlen_k must lie in"),
    ):
        with pytest.raises(RuntimeError, match=text):
            patchbench_ops.topk_to_index_mask(*arguments)
