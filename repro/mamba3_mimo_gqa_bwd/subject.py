"""Calls the real Mamba-3 MIMO backward of the installed mamba-ssm, dense or packed, and returns every gradient by name; at the site
"projection" the real layer's forward up to its kernel, whole or in parts as tensor parallelism cuts it."""

from __future__ import annotations

import itertools
from pathlib import Path
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


def file_lines(case: Case) -> float:
    """Lines of the release's file with the case's backward."""
    suffix = "_varlen" if "seqlens" in case.axes else ""
    module = optional_module(f"mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd{suffix}")
    return float(len(Path(module.__file__).read_text(encoding="utf-8").splitlines()))


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


def part_of(weight: torch.Tensor, case: Case, part: int) -> torch.Tensor:
    """The rows of the layer's input projection that one of the case's parts holds: an equal run of each section's rows, but all
    rows of the angles, and of a single group's B and C."""
    axes, parts = case.axes, case.axes["num_parts"]
    bc_rows = axes["num_ranks"] * axes["num_groups"] * axes["head_dim_qk"]
    sections = [axes["num_heads"] * axes["head_dim_v"]] * 2 + [bc_rows] * 2 + [axes["num_heads"]] * 3
    angles = weight.shape[0] - sum(sections)
    is_cut = [True, True, *[axes["num_groups"] > 1] * 2, True, True, True, False]
    rows = zip(weight.split([*sections, angles]), is_cut, strict=True)
    return torch.cat([section.chunk(parts)[part] if cut else section for section, cut in rows])


def projected(case: Case) -> dict[str, torch.Tensor]:
    """q and k [b, s, r, h, n] as the real layer hands them to its kernel, the parts' heads side by side, each head with its
    group's row. The norms of B and C, which act within a row, are left out."""
    try:
        module = optional_module("mamba_ssm.modules.mamba3")
    except ModuleNotFoundError as e:
        raise Unsupported(f"this release's layer imports {e.name}, which is not here") from e
    if module is None:
        raise Unsupported("this release has no Mamba-3 layer")
    axes, parts, given = case.axes, case.axes["num_parts"], []

    def kernel(**words: Any) -> torch.Tensor:
        given.append((words["Q"], words["K"]))
        return torch.zeros_like(words["V"])

    module.mamba3_mimo_combined = kernel
    num_heads, num_groups = axes["num_heads"] // parts, max(axes["num_groups"] // parts, 1)
    hidden = case.tensors["hidden"]
    for part in range(parts):
        layer = module.Mamba3(
            hidden.shape[-1], axes["head_dim_qk"], num_heads * axes["head_dim_v"] / hidden.shape[-1], axes["head_dim_v"],
            num_groups, is_mimo=True, mimo_rank=axes["num_ranks"],
        )  # fmt: skip
        layer.B_norm = layer.C_norm = torch.nn.Identity()
        layer.in_proj.weight.data = part_of(case.tensors["in_proj"], case, part)
        layer(hidden)
    heads = [[x.repeat_interleave(num_heads // num_groups, dim=3) for x in pair] for pair in given]
    q, k = (torch.cat(parts_of, dim=3) for parts_of in zip(*heads, strict=True))
    return {"q": q.detach(), "k": k.detach()}


def refused(case: Case) -> dict[str, torch.Tensor]:
    """1 where the host function refuses one group more, which does not divide the heads."""
    host, words = host_of(case), words_of(case)
    words |= {name: torch.cat([words[name], words[name][..., :1, :]], dim=3) for name in ("q", "k")}
    try:
        host(**words)
    except ValueError:
        return {"refused": torch.ones(1)}
    return {"refused": torch.zeros(1)}


def run(case: Case) -> dict[str, torch.Tensor]:
    """Every gradient that the case's inputs have, in fp32; the host function's own exceptions reach the caller. Of several backwards
    on the same tensors (axis `backwards`) the last one's."""
    if case.axes["site"] == "projection":
        return projected(case)
    if case.axes.get("has_a_group_too_many"):
        return refused(case)
    for _ in range(case.axes.get("backwards", 1)):
        found = host_of(case)(**words_of(case))
    case.numbers["file_lines"] = file_lines(case)
    return {f"grad_{name}": grad.float() for name, grad in zip(GRADIENTS, found, strict=False) if grad is not None}
