"""Lowers the real TileLang kernels of the Mamba-3 MIMO backward to CUDA source for a named GPU, without one, and counts what is in it.

Axes of a case: `site` ("lowering": whether it lowers, and to TMA; "code": the source itself), `kernel` ("bwd_fwd", "bwd_bwd"),
`is_varlen`, `arch` ("sm_90a", ...), the shape, and, where a case has them, `tma` (true, false; absent: the release's own switches),
`num_stages`, `has_gate` (z), `has_skip` (d), `num_sequences` (packed only) and `nvcc` (compile the source too).
"""

from __future__ import annotations

import json
import re
from typing import Any

import compiled_kernel
import stand_in
import torch
from absent import optional_module
from subject_runtime import Case, Unsupported

PACKAGE = "mamba_ssm"
ARTIFACTS: dict[str, Any] = {}

stand_in.install()


def factory_of(case: Case) -> Any:
    """The release's factory for the case's kernel and layout, as the TileLang decorator leaves it."""
    suffix = "_varlen" if case.axes["is_varlen"] else ""
    module = optional_module(f"mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd{suffix}")
    if module is None:
        raise Unsupported(f"this release has no MIMO backward{' for packed sequences' if suffix else ''}")
    return getattr(module, f"mamba_mimo_{case.axes['kernel']}")


def words_of(case: Case) -> dict[str, Any]:
    """The factory's arguments by name."""
    axes = case.axes
    words = {
        "B": axes["batch"], "S": axes["seqlen"], "H": axes["num_heads"], "G": axes["num_groups"],
        "N": axes["head_dim_qk"], "P": axes["head_dim_v"], "R": axes["num_ranks"],
        "hasZ": axes.get("has_gate", False), "hasD": axes.get("has_skip", False), "reduceO": True,
        "chunk_size": axes["chunk"], "rotary_dim_divisor": axes["angle_divisor"], "dtype": "bfloat16",
        "num_stages": axes.get("num_stages", 0),
    }  # fmt: skip
    if axes["is_varlen"]:
        words |= {"NS": axes["num_sequences"], "isVarlen": True}
    return words


def pass_configs_of(factory: Any, case: Case) -> dict[Any, Any]:
    """The kernel's own configuration of passes; the case's `tma`, where it has one, sets the two switches that keep TMA out."""
    from tilelang import PassConfigKey

    configs = dict(factory.pass_configs)
    if "tma" in case.axes:
        is_off = not case.axes["tma"]
        configs |= {PassConfigKey.TL_DISABLE_TMA_LOWER: is_off, PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: is_off}
    return configs


def lowered(case: Case) -> Any:
    """TileLang's artifact for the case: `kernel_source` and `device_mod`. What lowering raises reaches the caller.

    It takes a minute: cases that ask different questions about one kernel share it.
    """

    key = json.dumps({name: value for name, value in case.axes.items() if name not in ("site", "nvcc")})
    if key in ARTIFACTS:
        return ARTIFACTS[key]
    factory = factory_of(case)
    configs = pass_configs_of(factory, case)
    ARTIFACTS[key] = compiled_kernel.lowered(factory, case.axes["arch"], configs=configs, **words_of(case))
    return ARTIFACTS[key]


def counts(artifact: Any) -> dict[str, float]:
    """What the generated source holds, and what the kernel asks for at its launch."""
    source = artifact.kernel_source
    (kernel,) = artifact.device_mod.functions.values()
    return {
        "tma_loads": float(len(re.findall(r"\btma_load\w*(?:<[^>]*>)?\(", source))),
        "tma_stores": float(len(re.findall(r"\btma_store(?:<[^>]*>)?\(", source))),
        "threads": float(int(kernel.attrs["thread_extent"]["threadIdx.x"])),
        "shared_bytes": float(int(kernel.attrs["dyn_shared_memory_buf"])),
    }


def normalised(source: str) -> str:
    """The source without the places of scratch space for reductions in shared memory: the planner's choice, and no part of the result."""
    return re.sub(r"(tl::AllReduce<[^;]*buf_dyn_shmem\)\[)\d+", r"\1scratch", source)


def run(case: Case) -> dict[str, torch.Tensor]:
    """`source` (uint8) at the site "code", else `lowers` and, with TMA on, `uses_tma`; the counts go into the case's numbers."""
    artifact = lowered(case)
    if case.axes["site"] == "code":
        return {"source": torch.frombuffer(bytearray(normalised(artifact.kernel_source).encode()), dtype=torch.uint8)}
    case.numbers |= counts(artifact)
    if case.axes.get("nvcc"):
        if not compiled_kernel.NVCC.exists():
            raise Unsupported(f"no {compiled_kernel.NVCC} in this sandbox")
        case.numbers |= compiled_kernel.compiled(artifact.kernel_source, case.axes["arch"])
    answers = {"lowers": True}
    if case.axes.get("tma"):
        answers["uses_tma"] = case.numbers["tma_loads"] > 0
    return {name: torch.tensor(float(value)) for name, value in answers.items()}
