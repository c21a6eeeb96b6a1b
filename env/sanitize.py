#!/usr/bin/env python3
"""Runs compute-sanitizer's tools over the GPU tests of every op: memcheck, racecheck, synccheck, initcheck. Needs a GPU.

  sanitize.py BIN OUT.json [--seconds 270] [--jobs 14] [--tests 12]

BIN holds the test programs of a CUDA build (tests/packs/*_test.cpp), libpatchbench_ops.so and sanitizer_control
(nvcc -o BIN/sanitizer_control env/sanitizer_control.cu); LD_LIBRARY_PATH names torch's libraries. Each tool runs up to --tests of a
program's tests whose names say cuda, spread over all of them. What is not done after --seconds is stopped and recorded so.

Only kernels of this repository are checked, except by initcheck, which must see who wrote a value. memcheck and initcheck run without
torch's caching allocator, so that each tensor has bounds of its own, and without tests of CUDA graphs, which need it.
The control has an error for each tool: a lane that does not see it proves nothing.
Exit: 0 no error, every test passed, every control seen · 1 not so · 2 usage.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
OWN_MEMORY = ("memcheck", "initcheck")
# The option is called differently in different versions.
FILTERS = (
    ["--kernel-name", "kns=patchbench"],
    ["--kernel-regex", "kns=patchbench"],
    ["--kernel-regex", ".*patchbench.*"],
    ["--filter", "kns=patchbench"],
)
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def cuda_tests(program: Path, most: int) -> list[str]:
    """Up to `most` of a program's tests on CUDA, spread over all of them; a plain form runs no kernel of ours."""
    names, suite = [], ""
    for line in subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True).stdout.splitlines()[1:]:
        name = line.split("#")[0].strip()
        if line.startswith(" "):
            names.append(suite + name)
        else:
            suite = name
    wanted = [name for name in names if re.search("cuda", name, re.I) and not re.search("_plain|Refuses", name)]
    step = max(1, -(-len(wanted) // most))
    return wanted[::step]


def run(program: Path, tool: str, arguments: list[str], filters: list[str], deadline: float) -> dict[str, object]:
    """One row: what the tool said of the program."""
    started, environment = time.monotonic(), dict(os.environ)
    if tool in OWN_MEMORY:
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    with tempfile.NamedTemporaryFile("r", suffix=".log") as log, tempfile.TemporaryFile("w+") as said:
        words = ["compute-sanitizer", "--tool", tool, "--log-file", log.name, *(filters if tool != "initcheck" else [])]
        process = subprocess.Popen([*words, program, *arguments], stdout=said, stderr=subprocess.STDOUT, env=environment)
        try:
            process.wait(max(1.0, deadline - time.monotonic()))
            ended = f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = "stopped"
        said.seek(0)
        text, report = said.read(), log.read()
    summary = SUMMARY.search(report)
    lines = [line.removeprefix("========= ") for line in report.splitlines() if line.startswith("========= ") and "SUMMARY" not in line]
    return {
        "program": program.name,
        "tool": tool,
        "passed": text.count("[       OK ]"),
        "failed": len(set(re.findall(r"\[  FAILED  \] (\S+)", text))),
        "errors": int(summary[1] or summary[2]) if summary else None,
        "ended": ended,
        "seconds": round(time.monotonic() - started, 1),
        "report": [line for line in lines if "COMPUTE-SANITIZER" not in line][:12],
    }


def own_kernels(control: Path, deadline: float) -> list[str]:
    """The words by which this machine's compute-sanitizer checks our kernels alone: with them it sees the control's error. [] where
    it takes none; every kernel is checked then."""
    return next((words for words in FILTERS if run(control, "memcheck", ["memcheck"], words, deadline)["errors"]), [])


def is_clean(row: dict[str, object]) -> bool:
    return row["errors"] == 0 and row["failed"] == 0 and row["passed"] > 0


def fact(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def main(words: list[str]) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("bin", type=Path)
    parser.add_argument("out", type=Path)
    for name, value in (("--seconds", 270), ("--jobs", 14), ("--tests", 12)):
        parser.add_argument(name, type=int, default=value)
    given = parser.parse_args(words)
    deadline, control = time.monotonic() + given.seconds, given.bin / "sanitizer_control"
    filters = own_kernels(control, deadline)
    programs = sorted(given.bin.glob("*_test"))
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        controls = [pool.submit(run, control, tool, [tool], filters, deadline) for tool in TOOLS]
        jobs = []
        for program, tests in zip(programs, pool.map(lambda p: cuda_tests(p, given.tests), programs), strict=True):
            for tool in TOOLS if tests else ():
                chosen = [name for name in tests if tool not in OWN_MEMORY or "Graph" not in name]
                jobs.append(pool.submit(run, program, tool, [f"--gtest_filter={':'.join(chosen)}"], filters, deadline))
        seen = [job.result() for job in controls]
        rows = [job.result() for job in jobs]
    library = given.bin / "libpatchbench_ops.so"
    document = {
        "gpu": fact("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "compute_sanitizer": fact("compute-sanitizer", "--version"),
        "library_sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        "filter": filters,
        "controls": [{key: row[key] for key in ("tool", "errors", "ended", "report")} for row in seen],
        "rows": rows,
    }
    given.out.write_text(json.dumps(document))
    bad = [row for row in rows if not is_clean(row)]
    for row in bad:
        print(*(row[key] for key in ("program", "tool", "passed", "failed", "errors", "ended")), *row["report"][:3], sep=" | ")
    is_proof = bool(rows) and all(row["errors"] for row in seen)
    print(f"{len(rows) - len(bad)} of {len(rows)} clean; controls {'seen' if is_proof else 'NOT seen'}")
    return 0 if is_proof and not bad else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
