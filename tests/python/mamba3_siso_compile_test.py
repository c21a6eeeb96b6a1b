"""patchbench_ops.mamba3_siso and its rotary backward: gradients against the recurrence in fp64, opcheck, a full graph."""

from __future__ import annotations

import pytest
import torch
from ops_package import OPS, patchbench_ops

NAMES = ("q", "k", "v", "adt", "qk_dot", "d", "initial_state")


def operands(lengths: list[int] | None = None, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Leaves; sequences of these lengths packed, else two rows of 9 tokens."""
    generator = torch.Generator().manual_seed(8)
    batch, seqlen, heads, n, p = (1, sum(lengths), 2, 6, 4) if lengths else (2, 9, 2, 6, 4)
    shapes = {"q": (batch, seqlen, heads, n), "k": (batch, seqlen, heads, n), "v": (batch, seqlen, heads, p)}
    made = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    made["adt"] = -torch.rand(batch, heads, seqlen, generator=generator)
    made["qk_dot"] = torch.randn(batch, heads, seqlen, generator=generator)
    made["d"] = torch.randn(heads, generator=generator)
    made["initial_state"] = torch.randn(len(lengths) if lengths else batch, heads, p, n, generator=generator)
    return {name: made[name].requires_grad_() for name in NAMES}


def boundaries(lengths: list[int] | None) -> torch.Tensor | None:
    return None if lengths is None else torch.tensor([0, *lengths]).cumsum(0).int()


def scan(t: dict[str, torch.Tensor], lengths: list[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
    arguments = (*(t[name] for name in NAMES[:6]), boundaries(lengths), 4, t["initial_state"])
    return patchbench_ops.mamba3_siso(*arguments)


def recurrence(t: dict[str, torch.Tensor], lengths: list[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token."""
    rows, finals = [], []
    for i in range(len(lengths) if lengths else t["q"].shape[0]):
        row, first, count = (0, sum(lengths[:i]), lengths[i]) if lengths else (i, 0, t["q"].shape[1])
        state, ys = t["initial_state"][i], []
        for s in range(first, first + count):
            state = state * t["adt"][row, :, s].exp()[:, None, None]
            direct = (t["qk_dot"][row, :, s] + t["d"])[:, None] * t["v"][row, s]
            ys.append((state @ t["q"][row, s].unsqueeze(-1)).squeeze(-1) + direct)
            state = state + t["v"][row, s].unsqueeze(-1) * t["k"][row, s].unsqueeze(-2)
        rows.append(torch.stack(ys))
        finals.append(state)
    return torch.cat(rows).unsqueeze(0) if lengths else torch.stack(rows), torch.stack(finals)


@pytest.mark.parametrize("lengths", [None, [5, 1, 6]])
def test_gradients_are_those_of_the_recurrence_in_fp64(lengths: list[int] | None) -> None:
    t = operands(lengths)
    exact = {name: x.detach().double().requires_grad_() for name, x in t.items()}
    got, wanted = scan(t, lengths), recurrence(exact, lengths)
    weights = [torch.randn(x.shape, generator=torch.Generator().manual_seed(3)) for x in got]
    grads = torch.autograd.grad(sum((x * w).sum() for x, w in zip(got, weights, strict=True)), list(t.values()))
    exactly = torch.autograd.grad(sum((x * w.double()).sum() for x, w in zip(wanted, weights, strict=True)), list(exact.values()))
    for name, ours, theirs in zip(("y", "final_state", *NAMES), (*got, *grads), (*wanted, *exactly), strict=True):
        assert (ours.double() - theirs).norm() <= 5e-6 * theirs.norm(), name


def test_final_states_alone_give_gradients() -> None:
    t = operands()
    (grad,) = torch.autograd.grad(scan(t, None)[1].sum(), t["k"])
    assert grad.norm() > 0


@pytest.mark.parametrize("lengths", [None, [5, 1, 6]])
def test_opcheck_takes_each_operator(lengths: list[int] | None) -> None:
    t = operands(lengths)
    given = (*(t[name] for name in NAMES[:6]), boundaries(lengths), 4)
    torch.library.opcheck(OPS.mamba3_siso_forward.default, (*given, t["initial_state"]))
    bare = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in given)
    y, final_state, states = OPS.mamba3_siso_forward(*bare)
    torch.library.opcheck(OPS.mamba3_siso_bwd.default, (*bare, y, states, final_state))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager_bitwise(dynamic: bool) -> None:
    torch.compiler.reset()
    t = operands(dtype=torch.bfloat16)
    compiled = torch.compile(lambda t: scan(t, None)[0], fullgraph=True, backend="aot_eager", dynamic=dynamic)
    wanted, got = scan(t, None)[0], compiled(t)
    assert torch.equal(got, wanted)
    leaves, gradient = [t[name] for name in NAMES], torch.ones_like(wanted)
    pairs = zip(torch.autograd.grad(got, leaves, gradient), torch.autograd.grad(wanted, leaves, gradient), strict=True)
    assert all(torch.equal(g, w) for g, w in pairs)


def test_the_rotary_backward_is_that_of_the_forward_in_fp64() -> None:
    """float64 against autograd of the formulas; float32 against float64."""
    generator = torch.Generator().manual_seed(4)
    batch, seqlen, groups, heads, n, r = 2, 5, 1, 2, 8, 3

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, q_bias, k_bias = drawn(batch, seqlen, groups, n), drawn(batch, seqlen, groups, n), drawn(heads, n), drawn(heads, n)
    angles, dt, trap = drawn(batch, seqlen, heads, r), drawn(batch, heads, seqlen).abs(), drawn(batch, heads, seqlen)
    leaves = [x.requires_grad_() for x in (q, k, q_bias, k_bias, angles, dt, trap)]

    def turned(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        a, b = x[..., 0 : 2 * r : 2], x[..., 1 : 2 * r : 2]
        pairs = torch.stack((a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()), -1).flatten(-2)
        return torch.cat((pairs, x[..., 2 * r :]), -1)

    share = trap.sigmoid()
    gamma = dt * share
    scale = gamma + torch.cat(((dt * (1 - share))[..., 1:], torch.zeros_like(dt[..., :1])), -1)
    theta = (torch.pi * angles.tanh() * dt.transpose(1, 2).unsqueeze(-1)).cumsum(1)
    big_q, big_k = q.repeat_interleave(heads, 2) + q_bias, k.repeat_interleave(heads, 2) + k_bias
    made = (
        turned(big_q, theta),
        turned(big_k, theta) * scale.transpose(1, 2).unsqueeze(-1),
        gamma * (big_q * big_k).sum(-1).transpose(1, 2),
    )
    given = [drawn(*x.shape) for x in made]
    wanted = torch.autograd.grad(made, leaves, given)
    arguments = [x.detach() for x in (q, k, q_bias, k_bias, angles, theta, dt, trap)] + given
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        got = patchbench_ops.mamba3_siso_rotary_bwd(*(x.to(dtype) for x in arguments))
        for ours, exactly in zip(got, wanted, strict=True):
            assert (ours.double() - exactly).norm() <= bound * exactly.norm()
    torch.library.opcheck(OPS.mamba3_siso_rotary_bwd.default, tuple(arguments))
