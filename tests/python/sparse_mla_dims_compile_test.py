"""patchbench_ops.sparse_mla: gradients against fp64, gradcheck, opcheck, a full graph, deterministic mode."""

from __future__ import annotations

import pytest
import torch
from ops_package import OPS, patchbench_ops

SHAPE = {"softmax_scale": 0.2, "head_dim_v": 32}
sparse_mla = patchbench_ops.sparse_mla


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q and kv (leaves) and indices: one repeated, one of no key, and a query without a key."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 2, 48, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    kv = torch.randn(2, 5, 1, 48, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    indices = torch.randint(0, 5, (2, 3, 1, 4), generator=generator, dtype=torch.int32)
    indices[0, 0] = -1
    indices[1, 2, 0, 0], indices[1, 2, 0, 1] = 5, indices[1, 2, 0, 2]
    return q, kv, indices


def gradient_like(out: torch.Tensor) -> torch.Tensor:
    return (torch.arange(out.numel(), dtype=torch.float64).view_as(out) / out.numel()).to(out.dtype)


def dense(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The same by a loop over queries, in the operands' dtype."""
    rows = []
    for b, s in ((b, s) for b in range(q.shape[0]) for s in range(q.shape[1])):
        keys = [t for t in indices[b, s, 0].tolist() if 0 <= t < kv.shape[1]]
        weights = (q[b, s] @ kv[b, keys, 0].T * SHAPE["softmax_scale"]).softmax(-1)
        rows.append(weights @ kv[b, keys, 0, : SHAPE["head_dim_v"]])
    return torch.stack(rows).view(*q.shape[:3], -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_gradients_are_those_of_the_dense_form_in_fp64(dtype: torch.dtype) -> None:
    q, kv, indices = operands(dtype)
    out, _ = sparse_mla(q, kv, indices, **SHAPE)
    exact = tuple(x.detach().double().requires_grad_() for x in (q, kv))
    wanted = dense(*exact, indices)
    bound = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 5e-6, torch.float64: 1e-13}[dtype]
    pairs = [(out, wanted)]
    pairs += zip(
        torch.autograd.grad(out, (q, kv), gradient_like(out)),
        torch.autograd.grad(wanted, exact, gradient_like(out).double()),
        strict=True,
    )
    for got, exactly in pairs:
        assert got.dtype == dtype and (got.double() - exactly).norm() <= bound * exactly.norm()


def test_gradcheck_in_fp64() -> None:
    q, kv, indices = operands(torch.float64)
    assert torch.autograd.gradcheck(lambda q, kv: sparse_mla(q, kv, indices, **SHAPE)[0], (q, kv))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_takes_each_operator(dtype: torch.dtype) -> None:
    given = operands(dtype)
    for modes in ({}, {"delta": "rounded"}):
        torch.library.opcheck(OPS.sparse_mla_forward.default, given, SHAPE | modes)
    bare = tuple(x.detach() for x in given)
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
        return sparse_mla(q, kv, indices, **SHAPE, delta=delta)[0]

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    wanted, got = attend(q, kv), compiled(q, kv)
    assert torch.equal(got, wanted)
    gradient = gradient_like(wanted)
    for g, w in zip(torch.autograd.grad(got, (q, kv), gradient), torch.autograd.grad(wanted, (q, kv), gradient), strict=True):
        assert torch.equal(g, w)


@pytest.mark.parametrize("delta", ["exact", "rounded"])
@pytest.mark.parametrize("staging", ["bf16", "split"])
def test_the_backward_gets_its_modes(delta: str, staging: str) -> None:
    q, kv, indices = operands(torch.bfloat16)
    out, lse, remainder = OPS.sparse_mla_forward(q.detach(), kv.detach(), indices, **SHAPE)
    gradient = gradient_like(out)
    (got,) = torch.autograd.grad(sparse_mla(q, kv, indices, **SHAPE, delta=delta, staging=staging)[0], kv, gradient)
    saved = (gradient, out, remainder, lse, q.detach(), kv.detach(), indices)
    wanted = OPS.sparse_mla_backward(*saved, softmax_scale=SHAPE["softmax_scale"], delta=delta, staging=staging)[1]
    assert torch.equal(got, wanted)


def test_only_an_exact_backward_asks_for_the_remainder() -> None:
    q, kv, indices = operands(torch.bfloat16)
    sizes = []

    class Listener(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            results = function(*args, **(kwargs or {}))
            if function is OPS.sparse_mla_forward.default:
                sizes.append(results[2].numel())
            return results

    with Listener():
        out = sparse_mla(q, kv, indices, **SHAPE)[0]
        rounded = sparse_mla(q, kv, indices, **SHAPE, delta="rounded")[0]
        bare = sparse_mla(q.detach(), kv.detach(), indices, **SHAPE)[0]
        with torch.no_grad():
            silent = sparse_mla(q, kv, indices, **SHAPE)[0]
    assert sizes == [out.numel(), 0, 0, 0]
    for other in (rounded, bare, silent):
        assert torch.equal(other, out)


def test_a_frozen_operand_gets_no_gradient_and_lse_none_at_all() -> None:
    q, kv, indices = operands(torch.bfloat16)
    out, lse = sparse_mla(q, kv.detach(), indices, **SHAPE)
    assert out.requires_grad and not lse.requires_grad
    asked = []

    class Listener(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is OPS.sparse_mla_backward.default:
                asked.append(kwargs["output_mask"])
            return function(*args, **(kwargs or {}))

    with Listener():
        out.sum().backward()
    assert asked == [[True, False]] and q.grad is not None


def test_a_backward_has_no_gradient() -> None:
    q, kv, indices = operands(torch.float32)
    out, lse, remainder = OPS.sparse_mla_forward(q.detach(), kv.detach(), indices, **SHAPE)
    grad = OPS.sparse_mla_backward(torch.ones_like(out), out, remainder, lse, q, kv, indices, softmax_scale=0.2)[0]
    with pytest.raises(NotImplementedError, match="sparse_mla_backward has no gradient"):
        grad.sum().backward()


def test_deterministic_mode_refuses_atomic_adds() -> None:
    refuse = patchbench_ops.library.refuse_atomic_adds
    refuse("sparse_mla_backward", lambda: True)
    torch.use_deterministic_algorithms(True)
    try:
        refuse("sparse_mla_backward", lambda: False)
        with pytest.raises(RuntimeError, match="sparse_mla_backward does not have a deterministic implementation"):
            refuse("sparse_mla_backward", lambda: True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="sparse_mla_backward"):
            refuse("sparse_mla_backward", lambda: True)
    finally:
        torch.use_deterministic_algorithms(False)


def test_meta_tensors_give_shapes() -> None:
    q, kv, indices = (x.detach().to("meta") for x in operands(torch.bfloat16))
    out, lse, remainder = OPS.sparse_mla_forward(q, kv, indices, **SHAPE)
    assert out.shape == (2, 3, 2, 32) == remainder.shape and lse.shape == (2, 3, 2) and lse.dtype == torch.float32
    grad_q, grad_kv = OPS.sparse_mla_backward(out, out, remainder, lse, q, kv, indices, softmax_scale=0.2)
    assert grad_q.shape == q.shape and grad_kv.shape == kv.shape
