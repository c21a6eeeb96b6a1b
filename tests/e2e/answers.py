"""One command of the built program as a process, and what its JSON document says of the cases."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "env"), str(ROOT / "tests/python")]
from records import records_of  # noqa: E402, F401  (for the tests)

BIN = Path(os.environ.get("PATCHBENCH_BUILD", ROOT / "build/cpu")) / "bin"
PROGRAM = BIN / "patchbench"


# 40 to 440 s each on a slow machine, where the gate with them does not end within its 90 minutes.
takes_minutes = pytest.mark.skipif("PATCHBENCH_LONG" not in os.environ, reason="takes minutes: PATCHBENCH_LONG=1 runs it")


def need_reproducer(slug: str) -> None:
    """Skips the test module where this build has none (preset host has no torch)."""
    if not (BIN / f"repro_{slug}").exists():
        pytest.skip("the reproducer is not built", allow_module_level=True)


def with_unknown_option(words: list[str]) -> list[str]:
    """The words of a command and an option that the program does not have: it reads the words and runs nothing."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], "-Z", *words[at:]]


def complaint_of(done: subprocess.CompletedProcess[str]) -> str:
    """What the program says of such words; "" if it names that option alone."""
    return "" if done.stderr == "patchbench: The following argument was not expected: -Z; see --help\n" else done.stderr


def answer(tmp_path: Path, *words: str) -> tuple[int, dict]:
    """Exit status and the JSON document of one command, on a ledger of its own."""
    done = subprocess.run(
        [PROGRAM, "--json", *words], env=os.environ | {"PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")}, capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def case_words(*cases: str) -> list[str]:
    """The words that name these cases to a command."""
    return [word for case in cases for word in ("--case", case)]


def seen(document: dict, subject: str) -> dict[str, str]:
    """case -> "absent", "unsupported" or the failure class."""
    rows = [o for s in document["subjects"] for o in s["observations"] if o["subject"] == subject]
    return {o["case"]: o.get("class", o["seen"]) for o in rows}


def whole_cases(slug: str) -> list[dict]:
    """The pack's cases, each with the usual axes that it does not name."""
    manifest = json.loads((ROOT / f"packs/{slug}/manifest.json").read_text())
    usual = manifest.get("usual", {})
    return [
        case | {"axes": {k: v for k, v in (usual | case["axes"]).items() if v is not None or k not in usual}} for case in manifest["cases"]
    ]


def seen_of_wrong_op(tmp_path: Path, slug: str, mutant: str, case_name: str) -> str:
    """What the judge sees of one of the reproducer's own wrong ops on one case."""
    return observed_in_process(tmp_path, slug, f"op_mutant:{mutant}", {case_name})[0]["seen"]


def seen_of_model(tmp_path: Path, slug: str, subject: str) -> dict[str, str]:
    """case -> "absent" or the failure class, of one form of the pack's model on every case for models."""
    cases = whole_cases(slug)
    names = {case["name"] for case in cases if "model" in case.get("subjects", ["model"])}
    return {o["case"]: o.get("class", o["seen"]) for o in observed_in_process(tmp_path, slug, subject, names)}


def observed_in_process(tmp_path: Path, slug: str, subject: str, names: set[str]) -> list[dict]:
    """The observations of one of the reproducer's own subjects on these cases."""
    manifest = json.loads((ROOT / f"packs/{slug}/manifest.json").read_text())
    cases = [{k: case[k] for k in ("name", "role", "axes", "judged_on")} for case in whole_cases(slug) if case["name"] in names]
    classes = ["any", *(c["name"] for c in manifest["classes"])]
    (tmp_path / "cases.json").write_text(json.dumps({"slug": slug, "classes": classes, "cases": cases}))
    words = ["--subject", subject, "--device", "cpu", "--seed", "1", "--work", tmp_path, "--records-fd", "1"]
    done = subprocess.run([BIN / f"repro_{slug}", "--cases", tmp_path / "cases.json", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def on_a_terminal(*words: str, env: dict[str, str], folder: Path | None = None) -> str:
    """What the program prints where its output is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([PROGRAM, *words], cwd=folder, env=env, stdout=theirs, stderr=subprocess.DEVNULL) as program:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the program's end was closed
                break
            if not part:
                break
            said += part
        os.close(ours)
        program.wait()
    return said.decode().replace("\r\n", "\n")
