"""Calls the real Mamba-3 MIMO backward of the installed mamba-ssm, dense or packed, and returns every gradient by name."""

from __future__ import annotations

import itertools
from typing import Any

import stand_in
import torch
from absent import optional_module
from subject_runtime import Case, Unsupported

PACKAGE = "mamba_ssm"
# The host function's result in its order. Later releases append a gradient of a norm that no case has.
GRADIENTS = ("q", "k", "v", "adt", "dt", "trap", "q_bias", "k_bias", "mimo_v", "mimo_z", "mimo_o", "angles", "d", "z")

stand_in.install()


def host_of(case: Case) -> Any:
    """The release's backward for the case's layout; looked up per call, so that a mitigation's replacement is seen."""
    suffix = "_varlen" if "seqlens" in case.axes else ""
    module = optional_module(f"mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd{suffix}")
    if module is None:
        raise Unsupported(f"this release has no MIMO backward{' for packed sequences' if suffix else ''}")
    return getattr(module, f"mamba_mimo_bwd_combined{suffix}")


def words_of(case: Case) -> dict[str, Any]:
    """The host function's arguments by name; the sums of the decay are made by the release's own helper, as its autograd does."""
    tensors, chunk = case.tensors, case.axes["chunk"]
    adt, layout = tensors["adt"], {}
    helpers = optional_module(stand_in.HELPERS)
    if "seqlens" in case.axes:
        bounds = list(itertools.accumulate(case.axes["seqlens"], initial=0))
        layout = {"cu_seqlens": torch.tensor(bounds, dtype=torch.int32, device=adt.device)}
        sums = helpers.compute_dacs_segsum_triton_varlen(adt, chunk, **layout)
    else:
        sums = helpers.compute_dacs_segsum_triton(adt, chunk)
    same_name = ("q", "k", "v", "q_bias", "k_bias", "mimo_v", "mimo_o", "z", "mimo_z", "angles", "dt", "trap")
    return {
        **{name: tensors.get(name) for name in same_name},
        **dict(zip(("dA_cs", "dA_cs_rev", "segsum"), sums, strict=True)),
        "dout": tensors["grad_out"], "D": tensors.get("d"), "chunk_size": chunk, "dtype": tensors["q"].dtype,
        "rotary_dim_divisor": tensors["q"].shape[-1] // tensors["angles"].shape[-1],
        **layout,
    }  # fmt: skip


def run(case: Case) -> dict[str, torch.Tensor]:
    """Every gradient that the case's inputs have, in fp32; the host function's own exceptions reach the caller."""
    found = host_of(case)(**words_of(case))
    return {f"grad_{name}": grad.float() for name, grad in zip(GRADIENTS, found, strict=False) if grad is not None}
