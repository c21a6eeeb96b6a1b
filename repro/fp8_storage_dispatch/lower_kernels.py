"""Lowers the edited release's FP8 kernels for sm_90a with the TileLang on PYTHONPATH and compiles them with nvcc. No GPU is needed.

    PYTHONPATH=repro/harness:TILELANG python3 lower_kernels.py MEGATRON

MEGATRON is a megatron-core with the pack's edits. One JSON row for each kernel and shape: the bytes of shared memory, registers and
bytes of spills, or the error's type and first line.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import tilelang
from compiled_kernel import compiled, lowered

OPS = Path("megatron", "core", "transformer", "experimental_attention_variant", "ops")
STEPS = {"forward": "sparse_mla_fp8_fwd", "delta": "sparse_mla_fp8_delta", "backward": "sparse_mla_fp8_bwd"}
ARCH = "sm_90a"
#: heads, dim, tail_dim, topk: what the dispatcher of 0.19.2 takes, then widths that it takes with the edit of sparse_mla_dims.
SHAPES = [
    [16, 512, 64, 64], [64, 512, 64, 64], [128, 512, 64, 2048], [128, 128, 64, 64], [16, 64, 32, 64], [32, 96, 0, 64],
]  # fmt: skip


def kernels_of(tree: Path) -> types.ModuleType:
    """The module of the kernels, without the package around it, whose imports are many."""
    utils = types.ModuleType("megatron.core.utils")
    utils.round_up_to_nearest_multiple = lambda x, multiple: -(-x // multiple) * multiple
    ops = types.ModuleType("ops")
    ops.__path__ = [str(tree / OPS)]
    sys.modules.update({"ops": ops, "megatron": types.ModuleType("megatron"), "megatron.core": types.ModuleType("megatron.core")})
    sys.modules["megatron.core.utils"] = utils
    return importlib.import_module("ops.tilelang_sparse_mla_fp8")


def asked_for(factory: Any, shape: list[int]) -> dict[str, Any]:
    """What the kernel asks for, or why there is none."""
    try:
        artifact = lowered(factory, ARCH, *shape)
        (kernel,) = artifact.device_mod.functions.values()
        found = {"shared_bytes": int(kernel.attrs["dyn_shared_memory_buf"])} | compiled(artifact.kernel_source, ARCH)
        return found | {"multiplies_by": "wgmma" if "wgmma_ss<tl::DataType::kFloat8" in artifact.kernel_source else "mma"}
    except Exception as error:  # compilers fail in many ways, and which one is the row
        return {"raised": type(error).__name__, "says": (str(error).strip().splitlines() or [""])[-1][:200]}


def main() -> int:
    if len(sys.argv) != 2 or not Path(sys.argv[1], OPS).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    module = kernels_of(Path(sys.argv[1]))
    for shape in SHAPES:
        for step, name in STEPS.items():
            row = {"tilelang": tilelang.__version__, "kernel": step, "heads, dim, tail_dim, topk": shape}
            print(json.dumps(row | asked_for(getattr(module, name), shape)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
