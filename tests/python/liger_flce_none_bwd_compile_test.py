"""patchbench::flce under gradcheck, opcheck and torch.compile."""

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
TOKENS, HIDDEN, VOCAB = 7, 5, 11
FEATURES = {
    "bare": {},
    "smoothing": {"label_smoothing": 0.1},
    "z_loss": {"lse_square_scale": 0.05},
    "softcap": {"softcap": 2.5},
    "all": {"label_smoothing": 0.1, "lse_square_scale": 0.05, "softcap": 2.5},
}


def inputs(dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """hidden, weight, bias (leaves), target with row 2 ignored, class_weight, and a grad_output that differs by row."""
    generator = torch.Generator().manual_seed(9)
    leaves = {
        "hidden": torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64),
        "weight": torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64),
        "bias": torch.randn(VOCAB, generator=generator, dtype=torch.float64),
    }
    result = {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}
    result["target"] = torch.randint(0, VOCAB, (TOKENS,), generator=generator).index_fill_(0, torch.tensor(2), -100)
    result["class_weight"] = torch.rand(VOCAB, generator=generator, dtype=torch.float64).add(0.2).to(dtype)
    result["grad_output"] = torch.randn(TOKENS, generator=generator, dtype=torch.float64).to(dtype)
    return result


@pytest.mark.parametrize("chunk_bytes", [None, 2 * VOCAB * 8, 3 * TOKENS * 8])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradcheck_in_fp64(reduction: str, feature: str, chunk_bytes: int | None) -> None:
    t = inputs()

    def loss(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return OPS.flce(
            hidden, weight, t["target"], bias, t["class_weight"], reduction=reduction, chunk_bytes=chunk_bytes, **FEATURES[feature]
        )

    assert torch.autograd.gradcheck(loss, (t["hidden"], t["weight"], t["bias"]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_opcheck_takes_each_operator(reduction: str) -> None:
    t = inputs(torch.float32)
    full = (t["hidden"], t["weight"], t["target"], t["bias"], t["class_weight"])
    keywords = {"reduction": reduction, **FEATURES["all"]}
    torch.library.opcheck(OPS.flce.default, full, keywords)
    torch.library.opcheck(OPS.flce.default, full[:3], {"reduction": reduction})
    bare = tuple(x.detach() for x in full)
    loss, lse = OPS.flce_forward(*bare, **keywords)
    torch.library.opcheck(OPS.flce_forward.default, bare, keywords)
    for mask in ([True, True, True], [True, False, False], [False, True, False]):
        torch.library.opcheck(OPS.flce_with_gradients.default, bare, {**keywords, "output_mask": mask})
        torch.library.opcheck(OPS.flce_backward.default, (torch.ones_like(loss), lse, *bare), {**keywords, "output_mask": mask})


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_compiled_equals_eager_bitwise(reduction: str, dtype: torch.dtype, dynamic: bool) -> None:
    torch.compiler.reset()  # each case is a program of its own; together they exceed dynamo's limit on recompilation
    t = inputs(dtype)
    leaves = (t["hidden"], t["weight"], t["bias"])

    def loss(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return OPS.flce(hidden, weight, t["target"], bias, reduction=reduction, **FEATURES["all"])

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    grad_output = t["grad_output"].float() if reduction == "none" else torch.tensor(0.7)
    eager_loss, compiled_loss = loss(*leaves), compiled(*leaves)
    assert torch.equal(eager_loss, compiled_loss)
    eager = torch.autograd.grad(eager_loss, leaves, grad_output)
    for got, wanted in zip(torch.autograd.grad(compiled_loss, leaves, grad_output), eager, strict=True):
        assert torch.equal(got, wanted)


def test_frozen_hidden_compiles_and_trains_the_weight() -> None:
    t = inputs(torch.float32)
    hidden = t["hidden"].detach()
    compiled = torch.compile(lambda w: OPS.flce(hidden, w, t["target"], reduction="sum"), fullgraph=True, backend="aot_eager")
    (grad,) = torch.autograd.grad(compiled(t["weight"]), t["weight"])
    assert grad.abs().sum() > 0


def test_meta_tensors_give_shapes_and_refuse_wrong_ones() -> None:
    meta = {n: x.detach().to("meta") for n, x in inputs(torch.bfloat16).items()}
    loss, lse = OPS.flce_forward(meta["hidden"], meta["weight"], meta["target"], reduction="none")
    assert loss.shape == (TOKENS,) and loss.dtype == torch.float32 and lse.shape == (2, TOKENS)
    with pytest.raises(RuntimeError, match=r"flce: target must have shape \[7\], got \[3\]"):
        OPS.flce_forward(meta["hidden"], meta["weight"], meta["target"][:3])
