"""repro/training/model_slice.py on a CPU: each op's gradients keep their direction through four layers, and wrong ones are seen."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model_slice() -> ModuleType:
    sys.path.insert(0, str(ROOT / "repro" / "training"))
    module = importlib.import_module("model_slice")
    module.load_ops()
    return module


@pytest.mark.parametrize("name", ["sparse_mla", "flce", "mamba3_siso", "mamba3_mimo", "mamba3_mimo_qk_dot"])
def test_an_op_is_no_worse_than_plain_bfloat16(model_slice: ModuleType, name: str) -> None:
    assert set(model_slice.OPS) >= {name}
    row = model_slice.measured(name, model_slice.SMALL, "cpu")
    assert row["passes"], row


class Spoilt(torch.autograd.Function):
    """The same values; a gradient that is `spoil` of the right one."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, spoil: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.spoil = spoil
        return x.clone()

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.spoil(grad), None


def without_last_row(grad: torch.Tensor) -> torch.Tensor:
    return torch.cat([grad[:, :-1], torch.zeros_like(grad[:, -1:])], 1)


def in_three_bits(grad: torch.Tensor) -> torch.Tensor:
    return grad.to(torch.float8_e4m3fn).to(grad.dtype)


@pytest.mark.parametrize("spoil", [without_last_row, in_three_bits, torch.zeros_like, torch.neg])
def test_a_wrong_backward_of_one_operand_is_seen(
    model_slice: ModuleType, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    right = model_slice.OPS["sparse_mla"]
    wrong = right._replace(op=lambda **inputs: right.op(**inputs | {"kv": Spoilt.apply(inputs["kv"], spoil)}))
    monkeypatch.setitem(model_slice.OPS, "sparse_mla", wrong)
    assert not model_slice.measured("sparse_mla", model_slice.SMALL, "cpu")["passes"]
