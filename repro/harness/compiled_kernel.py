"""Lowers TileLang's kernels to CUDA source, and says what ptxas says of it: no GPU is needed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NVCC = Path("/usr/local/cuda/bin/nvcc")


def lowered(factory: Any, arch: str, *sizes: int, configs: dict[str, Any] | None = None, **words: Any) -> Any:
    """The artifact of a factory's kernel for the arch; `configs` in place of the factory's own. What lowering raises reaches the caller."""
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    with tvm.transform.PassContext(opt_level=3, config=dict(factory.pass_configs or {}) if configs is None else configs), target:
        return tilelang.lower(factory.get_tir(*sizes, **words), target=target, enable_device_compile=False)


def compiled(source: str, arch: str) -> dict[str, float]:
    """Registers per thread and bytes of spill stores and loads of the source's one kernel. Raises where nvcc fails."""
    import tilelang

    root = Path(tilelang.__file__).parent
    include = [root / "src", root / "3rdparty" / "cutlass" / "include"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cu"
        file.write_text(source)
        words = [NVCC, "-std=c++17", "-cubin", f"-arch={arch}", "--use_fast_math", "-w", "-Xptxas", "-v"]
        words += [f"-I{folder}" for folder in include] + ["-o", os.devnull, str(file)]
        log = subprocess.run(words, check=True, capture_output=True, text=True).stderr
    (registers,) = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill", log)
    return {"registers": float(registers), "spill_bytes": float(sum(map(int, spills)))}
