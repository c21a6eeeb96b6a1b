"""patchbench_ops.group_reduce_bwd and mamba3_mimo_bwd: sums and gradients against fp64, opcheck, a full graph."""

from __future__ import annotations

import pytest
import torch
from ops_package import OPS, patchbench_ops
from torch import Tensor

NAMES = ("q", "k", "v", "adt", "dt", "trap", "q_bias", "k_bias", "mimo_v", "mimo_z", "mimo_o", "angles", "d", "z")
BATCH, SEQLEN, RANKS, GROUPS, HEADS, QK, V, ANGLES = 2, 5, 2, 1, 2, 6, 4, 2


def operands() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(6)
    b, s, r, g, h, n, p, a = BATCH, SEQLEN, RANKS, GROUPS, HEADS, QK, V, ANGLES
    shapes = [(b, s, r, g, n), (b, s, r, g, n), (b, s, h, p), (b, h, s), (b, h, s), (b, h, s), (h, r, n), (h, r, n)]
    shapes += [(h, r, p), (h, r, p), (h, r, p), (b, s, h, a), (h,), (b, s, h, p)]
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in zip(NAMES, shapes, strict=True)}
    return made | {"adt": -made["adt"].abs(), "dt": made["dt"].abs()}


def turned(x: Tensor, theta: Tensor) -> Tensor:
    """Pairs (n, QK / 2 + n) of [b, h, s, r, n] by theta [b, h, s, 1, a]."""
    half = QK // 2
    low, high = x[..., :ANGLES], x[..., half : half + ANGLES]
    first, second = low * theta.cos() - high * theta.sin(), low * theta.sin() + high * theta.cos()
    return torch.cat((first, x[..., ANGLES:half], second, x[..., half + ANGLES :]), -1)


def layer(t: dict[str, Tensor]) -> Tensor:
    """The recurrence, token by token: out [batch, seqlen, heads, head_dim_v]."""
    theta = t["angles"].permute(0, 2, 1, 3).unsqueeze(3)

    def rows(x: Tensor, bias: Tensor) -> Tensor:
        return turned(x.repeat_interleave(HEADS // GROUPS, 3).permute(0, 3, 1, 2, 4) + bias.unsqueeze(1), theta)

    q, k = rows(t["q"], t["q_bias"]), rows(t["k"], t["k_bias"])
    x = t["v"].permute(0, 2, 1, 3).unsqueeze(3) * t["mimo_v"].unsqueeze(1)
    share = t["trap"].sigmoid()
    state, outs = torch.zeros(BATCH, HEADS, V, QK, dtype=torch.float64), []
    for s in range(SEQLEN):
        written = (
            [torch.einsum("bhrp,bhrn->bhpn", x[:, :, i], k[:, :, i]) for i in (s - 1, s)]
            if s
            else [0.0, torch.einsum("bhrp,bhrn->bhpn", x[:, :, 0], k[:, :, 0])]
        )
        decay, dt, now = (part[:, :, s, None, None] for part in (t["adt"].exp(), t["dt"], share))
        state = decay * state + (1 - now) * dt * decay * written[0] + now * dt * written[1]
        outs.append(torch.einsum("bhpn,bhrn->bhrp", state, q[:, :, s]) + t["d"][None, :, None, None] * x[:, :, s])
    y = torch.stack(outs, 2)
    gate = torch.nn.functional.silu(t["z"].permute(0, 2, 1, 3).unsqueeze(3) * t["mimo_z"].unsqueeze(1))
    return (t["mimo_o"].unsqueeze(1) * y * gate).sum(3).transpose(1, 2)


def arguments(t: dict[str, Tensor], grad_out: Tensor, dtype: torch.dtype) -> list[Tensor | None]:
    return [*(t[name].detach().to(dtype) for name in NAMES), None, grad_out.to(dtype)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_gradients_are_those_of_the_recurrence_in_fp64(dtype: torch.dtype, bound: float) -> None:
    t = {name: x.requires_grad_() for name, x in operands().items()}
    out = layer(t)
    grad_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad(out, list(t.values()), grad_out)
    got = patchbench_ops.mamba3_mimo_bwd(*arguments(t, grad_out, dtype))
    for name, ours, exactly in zip(NAMES, got, wanted, strict=True):
        assert ours.dtype == dtype and (ours.double() - exactly).norm() <= bound * exactly.norm(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_groups_and_biases_are_sums_in_fp64(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    dq, dk = (torch.randn(2, 3, 2, 6, 8, generator=generator).to(dtype) for _ in range(2))
    got = patchbench_ops.group_reduce_bwd(dq, dk, 3)
    wanted = [x.double().unflatten(3, (3, 2)).sum(4) for x in (dq, dk)] + [x.double().sum((0, 1)).transpose(0, 1) for x in (dq, dk)]
    for ours, exactly in zip(got, wanted, strict=True):
        bound = 1e-6 if ours.dtype == torch.float32 else 4e-3
        assert (ours.double() - exactly).norm() <= bound * exactly.norm()
    torch.library.opcheck(OPS.group_reduce_bwd.default, (dq, dk, 3))


def test_opcheck_takes_the_whole_backward() -> None:
    t = operands()
    torch.library.opcheck(OPS.mamba3_mimo_bwd.default, tuple(arguments(t, torch.ones(BATCH, SEQLEN, HEADS, V), torch.float32)))


def test_compiles_into_a_full_graph() -> None:
    torch.compiler.reset()
    given = arguments(operands(), torch.ones(BATCH, SEQLEN, HEADS, V), torch.float32)

    def reduced(*given: Tensor | None) -> tuple[Tensor, ...]:
        grads = patchbench_ops.mamba3_mimo_bwd(*given)
        return (*grads, *patchbench_ops.group_reduce_bwd(grads[0], grads[1], 1))

    compiled = torch.compile(reduced, fullgraph=True, backend="aot_eager")
    assert all(torch.equal(g, w) for g, w in zip(compiled(*given), reduced(*given), strict=True))


def test_a_backward_has_no_gradient() -> None:
    dq = torch.randn(2, 3, 2, 4, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="group_reduce_bwd has no gradient"):
        patchbench_ops.group_reduce_bwd(dq, dq, 2)[0].sum().backward()
