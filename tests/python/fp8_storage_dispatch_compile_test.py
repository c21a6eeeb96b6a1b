"""patchbench_ops.sparse_mla_fp8: gradients against fp64 sums over the stored values, opcheck, a full graph, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops_package import OPS, patchbench_ops

SCALE = 1 / 24
LAYOUTS = ["tensor", "token", "block"]


def operands(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query and kv (leaves) and indices: one repeated, one of no key."""
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(1, 3, 2, 576, generator=generator).to(dtype).requires_grad_()
    kv = torch.randn(1, 7, 1, 576, generator=generator).to(dtype).requires_grad_()
    indices = torch.randint(0, 7, (1, 3, 1, 5), generator=generator, dtype=torch.int32)
    indices[0, 0, 0, 0], indices[0, 1, 0, 0] = -1, indices[0, 1, 0, 1]
    return query, kv, indices


def stored(layout: str) -> tuple[Any, ...]:
    """q, q_scale, kv, kv_scale, indices."""
    query, kv, indices = operands()
    q = (query.detach(), None) if layout == "block" else patchbench_ops.quantize_mla(query.detach(), layout)
    return *q, *patchbench_ops.quantize_mla(kv.detach(), layout), indices


def dense(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    rows = []
    for s in range(q.shape[1]):
        keys = [t for t in indices[0, s, 0].tolist() if t >= 0]
        rows.append((q[0, s] @ kv[0, keys, 0].T * SCALE).softmax(-1) @ kv[0, keys, 0, :512])
    return torch.stack(rows).unsqueeze(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_the_stored_values_in_fp64(layout: str, dtype: torch.dtype) -> None:
    query, kv, indices = operands(dtype)
    out, lse = patchbench_ops.sparse_mla_fp8(query, kv, indices, layout=layout, softmax_scale=SCALE)
    assert out.requires_grad and not lse.requires_grad and out.dtype == torch.bfloat16
    values = [patchbench_ops.dequantize_mla(*patchbench_ops.quantize_mla(x.detach(), layout)) for x in (query, kv)]
    if layout == "block":
        values[0] = query.detach().bfloat16()
    exact = [x.double().requires_grad_() for x in values]
    wanted = dense(*exact, indices)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = torch.autograd.grad(out, (query, kv), gradient)
    pairs = [(out, wanted), *zip(got, torch.autograd.grad(wanted, exact, gradient.double()), strict=True)]
    for ours, exactly in pairs:
        assert (ours.double() - exactly).norm() <= 1e-2 * exactly.norm()
    assert got[0].dtype == got[1].dtype == dtype


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_takes_each_operator(layout: str) -> None:
    query, kv, indices = operands()
    torch.library.opcheck(OPS.sparse_mla_fp8.default, (query, kv, indices), {"layout": layout, "softmax_scale": SCALE})
    given = stored(layout)
    # The other checks compare arguments before and after, which torch cannot do for float8.
    tests = {"test_utils": torch.library._OPCHECK_DEFAULT_UTILS if layout == "block" else "test_faketensor"}
    torch.library.opcheck(OPS.sparse_mla_fp8_forward.default, given, {"softmax_scale": SCALE}, **tests)
    out, lse = patchbench_ops.sparse_mla_fp8_forward(*given, softmax_scale=SCALE)
    torch.library.opcheck(OPS.sparse_mla_fp8_backward.default, (out, out, lse, *given), {"softmax_scale": SCALE}, **tests)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_equals_eager_bitwise(layout: str) -> None:
    torch.compiler.reset()
    query, kv, indices = operands()

    def attend(query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return patchbench_ops.sparse_mla_fp8(query, kv, indices, layout=layout, softmax_scale=SCALE)[0]

    wanted, got = attend(query, kv), torch.compile(attend, fullgraph=True, backend="aot_eager")(query, kv)
    assert torch.equal(got, wanted)
    gradient = torch.ones_like(wanted)
    pairs = zip(torch.autograd.grad(got, (query, kv), gradient), torch.autograd.grad(wanted, (query, kv), gradient), strict=True)
    assert all(torch.equal(g, w) for g, w in pairs)


def on_cpu(op: Any, *arguments: Any) -> Any:
    """The CPU's function whatever the arguments are on: the only way to two devices on a machine with one."""
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *arguments, softmax_scale=SCALE)


def test_an_lse_of_another_device_is_refused() -> None:
    given = stored("token")
    out, lse = patchbench_ops.sparse_mla_fp8_forward(*given, softmax_scale=SCALE)
    on_cpu(OPS.sparse_mla_fp8_backward.default, out, out, lse, *given)
    with pytest.raises(RuntimeError, match=r"lse must be float32 \[1, 3, 2\] on cpu, got float32 \[1, 3, 2\] on another device"):
        on_cpu(OPS.sparse_mla_fp8_backward.default, out, out, lse.to("meta"), *given)


def test_more_ctas_than_a_grid_has_are_refused() -> None:
    q = torch.empty(65535, 32769, 1, 576, dtype=torch.float8_e4m3fn, device="meta")
    kv = torch.empty(65535, 9, 1, 576, dtype=torch.float8_e4m3fn, device="meta")
    indices = torch.empty(65535, 32769, 1, 4, dtype=torch.int32, device="meta")
    scale = torch.empty(1, device="meta")
    with pytest.raises(RuntimeError, match=r"batch \* seqlen_q \* ceil\(num_heads / 64\) below 2\^31, got 2147516415"):
        on_cpu(OPS.sparse_mla_fp8_forward.default, q, scale, kv, scale, indices)


def test_meta_tensors_give_shapes() -> None:
    given = tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in stored("token"))
    out, lse = OPS.sparse_mla_fp8_forward(*given, softmax_scale=SCALE)
    assert out.shape == (1, 3, 2, 512) and out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    grad_q, grad_kv = OPS.sparse_mla_fp8_backward(out, out, lse, *given, softmax_scale=SCALE)
    assert grad_q.shape == (1, 3, 2, 576) and grad_kv.shape == (1, 7, 1, 576) and grad_kv.dtype == torch.bfloat16
