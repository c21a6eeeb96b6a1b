#!/usr/bin/env python3
"""Starts a mitigation's program as a user would, without the mitigation, under `auto` and with it by name:
`program_runtime.py PROGRAM SLUG`. The last line is JSON: {"off", "auto", "named"}, each {"error", "bound"} as the program's own last line
says, or {"failed": why}."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

PATIENCE_S = 500


def started(program: str, value: str) -> dict[str, float | str]:
    """What one start told. A number that is none is as wrong as a number can be."""
    words = [sys.executable, "-m", "patchbench_mitigations", program]
    try:
        done = subprocess.run(words, env=os.environ | {"PATCHBENCH_MITIGATE": value}, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end in {PATIENCE_S} s"}
    print(f"PATCHBENCH_MITIGATE={value}\n{done.stderr}{done.stdout}", flush=True)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
        error, bound = float(told["error"]), float(told["bound"])
    except (IndexError, KeyError, TypeError, ValueError):
        return {"failed": (done.stderr.strip().splitlines() or ["no last line of JSON"])[-1]}
    if done.returncode:
        return {"failed": f"exit status {done.returncode}"}
    return {"error": error if math.isfinite(error) else sys.float_info.max, "bound": bound}


if __name__ == "__main__":
    starts = {"off": "off", "auto": "auto", "named": sys.argv[2]}
    print(json.dumps({name: started(sys.argv[1], value) for name, value in starts.items()}))
