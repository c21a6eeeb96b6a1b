"""What a pack has for its upstream: a short program with its output, and a test in the upstream's own style, each on the real release
and on the release with the pack's patches. PATCHBENCH_UPDATE=1 writes the recorded outputs anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from answers import ROOT
from standalone_test import Done, edited_tree, environment_of, needed_by, site_of, take_edits_back

MAX_LINES = 15
PROGRAMS = sorted(ROOT.glob("packs/*/reproducer.py"))
TESTS = sorted(ROOT.glob("packs/*/upstream_test.py"))
STARTED = re.compile(r"^\$ (?P<environment>(?:\w+=\S+ )*)python reproducer\.py(?:  # .+)?$")


def run_in(folder: Path, slug: str, trees: list[Path], *words: str, more: dict[str, str] | None = None) -> Done:
    """Runs Python with the packages of the release's lock and the pack's stand-ins."""
    locks = {"torch-2.11", "tools"} | {environment_of(name, version) for name, version in needed_by(slug)}
    paths = [*trees, *map(site_of, sorted(locks)), ROOT / "repro" / slug, ROOT / "repro/harness"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"} | (more or {})
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def run_program(folder: Path, program: Path, trees: list[Path], environment: dict[str, str]) -> str:
    slug = program.parent.name
    is_stood_in = (ROOT / "repro" / slug / "stand_in.py").exists()
    prelude = "import stand_in; stand_in.install(); " if is_stood_in else ""
    script = f"{prelude}import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    done = run_in(folder, slug, trees, "-c", script, more=environment)
    return done.stdout if done.returncode == 0 else done.stdout + done.stderr.splitlines()[-1] + "\n"


def release_and_fix(tmp_path: Path, slug: str) -> tuple[list[Path], list[Path]]:
    """The trees of the tested release, and the same with the pack's patches."""
    needed = needed_by(slug)
    fixed, released = (
        [edited_tree(tmp_path / kind / name, slug, name, version) for name, version in needed] for kind in ("fix", "release")
    )
    take_edits_back(released[0], slug, needed[0][0], tmp_path / "mails")
    return released, fixed


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.parent.name)
def test_the_program_prints_what_is_recorded_and_something_else_with_the_fix(tmp_path: Path, program: Path) -> None:
    assert len(program.read_text().splitlines()) <= MAX_LINES
    recorded = program.with_suffix(".txt")
    started = STARTED.match(first := recorded.read_text().splitlines()[0])
    assert started, first
    environment = dict(word.split("=", 1) for word in started["environment"].split())
    released, fixed = release_and_fix(tmp_path, program.parent.name)
    got = run_program(tmp_path, program, released, environment)
    if "PATCHBENCH_UPDATE" in os.environ:
        recorded.write_text(f"{first}\n{got}")
    assert recorded.read_text() == f"{first}\n{got}"
    assert run_program(tmp_path, program, fixed, environment) != got


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.parent.name)
def test_the_upstreams_test_is_red_on_the_release_and_green_with_the_fix(tmp_path: Path, test: Path) -> None:
    released, fixed = release_and_fix(tmp_path, test.parent.name)
    (tmp_path / "test_it.py").write_text(test.read_text())
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path), "test_it.py")
    red = run_in(tmp_path, test.parent.name, released, *words, more={"TRITON_INTERPRET": "1"})
    green = run_in(tmp_path, test.parent.name, fixed, *words, more={"TRITON_INTERPRET": "1"})
    assert (red.returncode, " passed" in red.stdout.splitlines()[-1]) == (1, False), red.stdout
    assert (green.returncode, " failed" in green.stdout) == (0, False), green.stdout


def test_every_program_has_its_output_and_some_packs_have_one() -> None:
    assert len(PROGRAMS) >= 3 and TESTS
    assert {path.with_suffix(".txt") for path in PROGRAMS} == set(ROOT.glob("packs/*/reproducer.txt"))
