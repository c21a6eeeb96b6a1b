#!/usr/bin/env python3
"""A subject that lies: it says ok and writes wrong outputs. For the self-test: `lying_subject.py WORK [LIE]`.

Without LIE each case gets another of the lies. No case may come out as absent, and nothing it prints may count.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from subject_runtime import Case, case_of, read_safetensors, write_safetensors

Outputs = dict[str, torch.Tensor]


def plausible(case: Case) -> Outputs:
    """Outputs of the right names, shapes and dtypes for a loss with gradients, all zero."""
    wanted = {n: torch.zeros(t.shape, dtype=t.dtype) for n, t in case.tensors.items() if n in ("input", "weight", "bias")}
    loss = {"loss": torch.zeros(case.tensors["grad_loss"].shape)} if "grad_loss" in case.tensors else {}
    return loss | {f"grad_{n}": t for n, t in wanted.items()}


LIES: dict[str, Callable[[Case], Outputs]] = {
    "zeros": plausible,
    "nan": lambda c: {n: torch.full_like(t, float("nan")) for n, t in plausible(c).items()},
    "inf": lambda c: {n: torch.full_like(t, float("inf")) for n, t in plausible(c).items()},
    "ones": lambda c: {n: torch.ones_like(t) for n, t in plausible(c).items()},
    "echo": lambda c: {n: c.tensors.get(n[5:], t).contiguous() for n, t in plausible(c).items()},
    "wrong_shape": lambda c: {n: t.reshape(-1)[:1] for n, t in plausible(c).items()},
    "wrong_dtype": lambda c: {n: t.double() for n, t in plausible(c).items()},
    "empty": lambda c: {n: t.reshape(-1)[:0] for n, t in plausible(c).items()},
    "no_outputs": lambda c: {},
    "unknown_output": lambda c: plausible(c) | {"verdict": torch.zeros(1)},
}


def boast(work: Path) -> None:
    """Prints what a judge would print, on every descriptor there is."""
    line = json.dumps({"slug": "liar", "subject": "upstream", "case": "all", "seen": "absent"}).encode() + b"\n"
    print("FIX_VALIDATED\nBUG_ABSENT\nOP_VALIDATED")
    for descriptor in range(1, 64):
        try:
            os.write(descriptor, line)
        except OSError:
            continue
    (work / "records.jsonl").write_bytes(line)


def main(work: Path, lie: str) -> int:
    """Writes the lies."""
    plan = json.loads((work / "cases.json").read_text())
    storages = read_safetensors(work / "inputs.safetensors")
    cases = [case_of(entry, storages, "cpu") for entry in plan["cases"]]
    names = list(LIES)
    outputs: Outputs = {}
    for i, case in enumerate(cases):
        chosen = lie or names[i % len(names)]
        outputs |= {f"{case.name}/{n}": t for n, t in LIES[chosen](case).items()}
    write_safetensors(work / "outputs.safetensors", outputs)
    answer = {
        "package": {"name": "liar", "version": "1"},
        "versions": {"torch": torch.__version__},
        "device": plan["device"],
        "cases": {case.name: {"status": "ok", "wall_s": 0.0} for case in cases},
    }
    (work / "subject.json").write_text(json.dumps(answer))
    boast(work)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
