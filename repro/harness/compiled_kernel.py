"""What ptxas says of a kernel that TileLang lowered: nvcc compiles its source, and no GPU is needed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

NVCC = Path("/usr/local/cuda/bin/nvcc")


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
