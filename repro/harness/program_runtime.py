#!/usr/bin/env python3
"""Starts a mitigation's program as a user would, without the mitigation, under `auto` and with it by name:
`program_runtime.py PROGRAM SLUG`. Of a program whose text sets RANKS the first two starts are by torchrun with as many ranks, of which the
first prints. The last line is JSON: {"off", "auto", "named"}, each {"error", "bound"} as the program's own last line says, or
{"failed": why}."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 500


def started(program: str, value: str, num_ranks: int) -> dict[str, float | str]:
    """What one start told. A number that is none is as wrong as a number can be."""
    words = [sys.executable, "-m", "patchbench_mitigations", program]
    if num_ranks > 1:
        from rank_processes import free_port  # here: it needs torch, which a program may do without

        words[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks), "--master-addr", "127.0.0.1"]
        words[-3:-3] = ["--master-port", str(free_port())]
    env = os.environ | {"PATCHBENCH_MITIGATE": value, "GLOO_SOCKET_IFNAME": "lo"}
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end in {PATIENCE_S} s"}
    print(f"PATCHBENCH_MITIGATE={value}\n{done.stderr}{done.stdout}", flush=True)
    try:
        told = json.loads([line for line in done.stdout.splitlines() if line][-1])
        error, bound = float(told["error"]), float(told["bound"])
    except (IndexError, KeyError, TypeError, ValueError):
        return {"failed": (done.stderr.strip().splitlines() or ["no last line of JSON"])[-1]}
    if done.returncode:
        return {"failed": f"exit status {done.returncode}"}
    return {"error": error if math.isfinite(error) else sys.float_info.max, "bound": bound}


if __name__ == "__main__":
    declared = re.search(r"^RANKS = (\d+)$", Path(sys.argv[1]).read_text(), re.MULTILINE)
    num_ranks = int(declared[1]) if declared else 1
    starts = {"off": ("off", num_ranks), "auto": ("auto", num_ranks), "named": (sys.argv[2], 1)}
    print(json.dumps({name: started(sys.argv[1], *how) for name, how in starts.items()}))
