#!/usr/bin/env python3
"""Judges Liger-Kernel on a user's own stack with other releases of torch: `patchbench reproduce --python VENV` on a CPU.

  try_stacks.py [--out FILE.json] PROGRAM [TORCH...]    default: 2.12.1 2.13.0 2.14.1 2.15.0

PROGRAM is the `patchbench` of a build or of an installed wheel with patchbench-judge. Each stack is a venv in the cache that pip fills
from its index (2.5 GiB to fetch, 5 GiB on disk, once). A row of the JSON document is one release of Liger-Kernel on one stack: 0.8.0
must be BUG_REPRODUCED(wrong_gradients), 0.8.5 BUG_ABSENT.
Exit: 0 every row is so, 1 one is not, 2 usage, or a stack that could not be made.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STACKS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench/stacks"
TORCHES = ("2.12.1", "2.13.0", "2.14.1", "2.15.0")
WANTED = {"0.8.0": "BUG_REPRODUCED(wrong_gradients)", "0.8.5": "BUG_ABSENT"}
SAYS = "import json, torch, triton; print(json.dumps({'torch': torch.__version__, 'triton': triton.__version__}))"


def stack_of(torch: str) -> Path:
    """The venv of one release of torch, made where it is not there. Raises CalledProcessError."""
    venv = STACKS / f"torch-{torch}"
    if not (venv / "patchbench-stack").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        install(venv, f"torch=={torch}", "numpy", "packaging")
        (venv / "patchbench-stack").touch()
    return venv


def install(venv: Path, *words: str) -> None:
    subprocess.run([venv / "bin/python", "-m", "pip", "install", "-q", "--no-cache-dir", *words], check=True)


def judged(program: str, venv: Path, liger: str, ledger: Path) -> dict[str, Any]:
    """One row: what the stack is and what the judge says of it."""
    install(venv, "--no-deps", f"liger-kernel=={liger}")
    row = json.loads(subprocess.run([venv / "bin/python", "-c", SAYS], stdout=subprocess.PIPE, check=True).stdout)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    words = [program, "--json", "reproduce", "liger_flce_none_bwd", "--python", str(venv), "--device", "cpu"]
    done = subprocess.run(words, stdout=subprocess.PIPE, env=os.environ | {"PATCHBENCH_LEDGER": str(ledger)}, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = json.loads(done.stdout) if done.stdout else {"sentinel": f"exit {done.returncode}", "why": ""}
    row |= {"liger_kernel": liger, "sentinel": said["sentinel"], "why": said["why"]}
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return row | {"wall_s": round(time.monotonic() - started, 1), "cpu_s": round(cpu, 1)}


def main(argv: list[str]) -> int:
    out = argv[1] if argv[:1] == ["--out"] and len(argv) > 1 else ""
    argv = argv[2:] if out else argv
    if not argv or argv[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    program, torches = argv[0], argv[1:] or TORCHES
    rows = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for torch in torches:
                for liger in WANTED:
                    rows.append(judged(program, stack_of(torch), liger, Path(folder) / "ledger.db"))
                    print(json.dumps(rows[-1]), flush=True)
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"try_stacks: {e}", file=sys.stderr)
        return 2
    if out:
        what = "env/try_stacks.py: reproduce liger_flce_none_bwd --python VENV; a row with the self-test of the judge takes longer"
        Path(out).write_text(json.dumps({"what": what, "python": platform.python_version(), "device": "cpu", "rows": rows}))
        subprocess.run([sys.executable, Path(__file__).with_name("json_rows.py"), out], check=True)
    return 0 if all(row["sentinel"] == WANTED[row["liger_kernel"]] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
