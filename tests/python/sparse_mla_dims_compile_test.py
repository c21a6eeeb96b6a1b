"""patchbench::sparse_mla under gradcheck, opcheck and torch.compile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
LIBRARY = Path(os.environ.get("PATCHBENCH_OPS_LIB") or ROOT / "build" / "cpu" / "lib" / "libpatchbench_ops.so")
if not LIBRARY.exists():
    pytest.skip(f"no op library at {LIBRARY}: build patchbench_ops or set PATCHBENCH_OPS_LIB", allow_module_level=True)
torch.ops.load_library(str(LIBRARY))
OPS = torch.ops.patchbench
SHAPE = {"softmax_scale": 0.2, "head_dim_v": 32}


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q and kv (leaves) and indices: one repeated, one of no key, and a query without a key."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 2, 48, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    kv = torch.randn(2, 5, 1, 48, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    indices = torch.randint(0, 5, (2, 3, 1, 4), generator=generator, dtype=torch.int32)
    indices[0, 0] = -1
    indices[1, 2, 0, 0], indices[1, 2, 0, 1] = 5, indices[1, 2, 0, 2]
    return q, kv, indices


def test_gradcheck_in_fp64() -> None:
    q, kv, indices = operands(torch.float64)
    assert torch.autograd.gradcheck(lambda q, kv: OPS.sparse_mla(q, kv, indices, **SHAPE)[0], (q, kv))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_takes_each_operator(dtype: torch.dtype) -> None:
    given = operands(dtype)
    torch.library.opcheck(OPS.sparse_mla.default, given, SHAPE)
    bare = tuple(x.detach() for x in given)
    torch.library.opcheck(OPS.sparse_mla_forward.default, bare, SHAPE)
    out, lse, remainder = OPS.sparse_mla_forward(*bare, **SHAPE)
    for modes in ({}, {"delta": "rounded"}, {"staging": "split"}):
        torch.library.opcheck(
            OPS.sparse_mla_backward.default,
            (torch.ones_like(out), out, remainder, lse, *bare),
            {"softmax_scale": SHAPE["softmax_scale"], **modes},
        )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("delta", ["exact", "rounded"])
def test_compiled_equals_eager_bitwise(delta: str, dynamic: bool) -> None:
    torch.compiler.reset()  # each case is a program of its own
    q, kv, indices = operands(torch.bfloat16)

    def attend(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return OPS.sparse_mla(q, kv, indices, **SHAPE, delta=delta)[0]

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    wanted, got = attend(q, kv), compiled(q, kv)
    assert torch.equal(got, wanted)
    gradient = torch.arange(wanted.numel(), dtype=wanted.dtype).view_as(wanted) / wanted.numel()
    for g, w in zip(torch.autograd.grad(got, (q, kv), gradient), torch.autograd.grad(wanted, (q, kv), gradient), strict=True):
        assert torch.equal(g, w)
