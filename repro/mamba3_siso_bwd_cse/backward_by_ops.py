"""mamba-ssm's Mamba-3 SISO backward with the pack's ops in the places of its parts, for calls without states at either end.

Wants the operators in torch.ops.patchbench.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Given(NamedTuple):
    """What a forward was given and its backward does not hand to every part: angles [b, s, h, a], the rest [b, h, s]."""

    adt: torch.Tensor
    angles: torch.Tensor
    dt: torch.Tensor
    trap: torch.Tensor


class BackwardByOps:
    """`take` gives what the forward was given whose backward begins. The operands of the last calls are kept.

    One op does the work of compute_dqktheta, compute_ddt_dtrap_dinput_states and angle_dt_bwd, in the first's place.
    """

    def __init__(self, take: Callable[[], Given]) -> None:
        self.take, self.given = take, None
        self.walk_operands: tuple = ()
        self.rotary_operands: tuple = ()
        self.rotary: tuple[torch.Tensor, ...] = ()

    def dzdo(self, do: torch.Tensor, z: torch.Tensor, o: torch.Tensor, chunk_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.patchbench.mamba3_siso_gate_bwd(do, z, o)

    def dqkv(self, *, q, k, v, qk_dot, SSM_States, do, D, chunk_size, Cu_Seqlens, **_: object) -> tuple:  # noqa: N803
        self.given = self.take()
        states = SSM_States.unflatten(3, (-1, q.shape[3])).transpose(2, 3)
        self.walk_operands = (q, k, v, self.given.adt, qk_dot, D, Cu_Seqlens, chunk_size, do, states)
        return (*torch.ops.patchbench.mamba3_siso_bwd(*self.walk_operands)[:6], None)

    def dqktheta(self, *, q, k, q_bias, k_bias, angles, dq_in, dk_in, dqk, **_: object) -> tuple:
        _, given, dt, trap = self.given
        self.rotary_operands = (q, k, q_bias, k_bias, given, angles, dt, trap.float(), dq_in, dk_in, dqk)
        self.rotary = torch.ops.patchbench.mamba3_siso_rotary_bwd(*self.rotary_operands)
        return (*self.rotary[:4], None, None, None)

    def scalars(self, **_: object) -> tuple:
        return (*self.rotary[5:], None, None, None)

    def angles(self, **_: object) -> tuple:
        return self.rotary[4], torch.zeros((), device=self.rotary[4].device), None

    def walk(self) -> dict[str, Callable[..., tuple]]:
        """Part of the release -> what takes its place, with one op."""
        return {"compute_dqkv": self.dqkv}

    def walk_and_rotary(self) -> dict[str, Callable[..., tuple]]:
        turned = {"compute_dqktheta": self.dqktheta, "compute_ddt_dtrap_dinput_states": self.scalars, "angle_dt_bwd": self.angles}
        return {**self.walk(), **turned}

    def all(self) -> dict[str, Callable[..., tuple]]:
        return {**self.walk_and_rotary(), "compute_dzdo": self.dzdo}
