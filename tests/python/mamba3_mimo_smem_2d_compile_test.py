"""patchbench::mamba3_mimo_qk_dot under gradcheck, opcheck and torch.compile."""

from __future__ import annotations

import pytest
import torch
from ops_package import OPS, patchbench_ops

STAGINGS = [{}, {"layout": "rank3"}, {"copy": "cp_async"}]


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, q_bias, k_bias, all leaves: two groups of two heads, three ranks."""
    generator = torch.Generator().manual_seed(4)
    sums = dtype if dtype is torch.float64 else torch.float32
    shapes = [((2, 5, 3, 2, 8), dtype), ((2, 5, 3, 2, 8), dtype), ((4, 3, 8), sums), ((4, 3, 8), sums)]
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(t).requires_grad_() for s, t in shapes)


def test_gradcheck_in_fp64() -> None:
    assert torch.autograd.gradcheck(patchbench_ops.mamba3_mimo_qk_dot, operands(torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("staging", STAGINGS)
def test_opcheck_takes_each_operator(staging: dict[str, str], dtype: torch.dtype) -> None:
    given = operands(dtype)
    torch.library.opcheck(OPS.mamba3_mimo_qk_dot.default, given, staging)
    bare = tuple(x.detach() for x in given)
    gradient = torch.ones_like(OPS.mamba3_mimo_qk_dot(*bare))
    torch.library.opcheck(OPS.mamba3_mimo_qk_dot_bwd.default, (gradient, *bare), staging)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager_bitwise(dynamic: bool) -> None:
    torch.compiler.reset()  # each case is a program of its own
    leaves = operands(torch.bfloat16)

    def products(*given: torch.Tensor) -> torch.Tensor:
        return patchbench_ops.mamba3_mimo_qk_dot(*given, layout="rank3")

    compiled = torch.compile(products, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    wanted, got = products(*leaves), compiled(*leaves)
    assert torch.equal(got, wanted)
    gradient = torch.arange(wanted.numel(), dtype=wanted.dtype).view_as(wanted) / wanted.numel()
    for g, w in zip(torch.autograd.grad(got, leaves, gradient), torch.autograd.grad(wanted, leaves, gradient), strict=True):
        assert torch.equal(g, w)
