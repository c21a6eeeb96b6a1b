"""How a mitigation's program is started three times, and what counts as its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLUG = "liger_flce_none_bwd"
ERROR = "{'off': 0.5, 'auto': 1e-9}.get(os.environ['PATCHBENCH_MITIGATE'], 2e-9)"


def starts(folder: Path, text: str) -> dict[str, dict[str, float | str]]:
    (folder / "program.py").write_text("import json, os, sys\n" + text)
    words = [sys.executable, ROOT / "repro/harness/program_runtime.py", folder / "program.py", SLUG]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "mitigations"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_started_without_the_mitigation_under_auto_and_by_name(tmp_path: Path) -> None:
    found = starts(tmp_path, f"print('training')\nprint(json.dumps({{'error': {ERROR}, 'bound': 1e-5}}))")
    assert found == {name: {"error": error, "bound": 1e-5} for name, error in (("off", 0.5), ("auto", 1e-9), ("named", 2e-9))}


def test_a_program_that_has_ranks_is_started_by_torchrun_and_alone_by_name(tmp_path: Path) -> None:
    size = "int(os.environ.get('WORLD_SIZE', '1'))"
    said = f"RANKS = 2\nif os.environ.get('RANK', '0') == '0':\n    print(json.dumps({{'error': {size}, 'bound': 4}}))"
    assert {name: one["error"] for name, one in starts(tmp_path, said).items()} == {"off": 2.0, "auto": 2.0, "named": 1.0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print('done')", "no last line of JSON"),
        ("print(json.dumps({'error': 1}))", "no last line of JSON"),
        ("", "no last line of JSON"),
        ("raise ValueError('lost')", "ValueError: lost"),
        ("print(json.dumps({'error': 0, 'bound': 1}))\nsys.exit(3)", "exit status 3"),
    ],
)
def test_what_is_no_answer_says_why(tmp_path: Path, text: str, why: str) -> None:
    assert starts(tmp_path, text) == dict.fromkeys(("off", "auto", "named"), {"failed": why})


def test_a_number_that_is_none_is_as_wrong_as_can_be(tmp_path: Path) -> None:
    found = starts(tmp_path, "print(json.dumps({'error': float('nan'), 'bound': 1.0}))")
    assert all(start == {"error": sys.float_info.max, "bound": 1.0} for start in found.values())
