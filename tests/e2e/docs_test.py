"""The pages of docs/ show what their commands print. With PATCHBENCH_UPDATE=1 the pages are written anew instead.

Each page (tests/python/docs_page.py has its form) is followed from top to bottom in one copy of the repository. The program's lines of
progress are left out. `console PACKAGE==VERSION` runs with that locked release on PYTHONPATH, as after a pip install.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from answers import BIN, ROOT
from docs_page import followed, settled, without_progress  # answers.py has put tests/python on the path
from readme_test import SLUG, complaint, desk, environment

__all__ = ["desk", "environment"]
PAGES = sorted((ROOT / "docs").glob("*.md"))
UPDATES = os.environ.get("PATCHBENCH_UPDATE") == "1"
# Commands and options in the text between the blocks: the words that the program is given, to see whether it takes them; of another
# program the file that runs it, and its words there.
INLINE = re.compile(r"`((?:--|\./patchbench |pip |torchrun |\w+ --)[^`]*)`")
WORDS: dict[str, list[str]] = {
    "--all": ["scan", ".", "--all"],
    "--as report": ["scan", "report.txt", "--as", "report"],
    "--baseline FILE": ["scan", "requirements.txt", "--baseline", "baseline.json"],
    "--case": ["reproduce", SLUG, "--case", "mean"],
    "--code": ["scan", "--code", "step.py"],
    "--code config.json": ["scan", "requirements.txt", "--code", "config.json"],
    "--device": ["reproduce", SLUG, "--device", "cpu"],
    "--device cuda:0": ["validate", SLUG, "--device", "cuda:0"],
    "--edit my.diff": ["validate", SLUG, "--edit", "my.diff"],
    "--from": ["bundle", SLUG, "issue", "--from", "Ada Byron <ada@example.org>"],
    "--fail-on-condition met": ["scan", "requirements.txt", "--code", "step.py", "--fail-on-condition", "met"],
    "--fail-on-condition open": ["scan", "requirements.txt", "--fail-on-condition", "open"],
    "--python VENV": ["reproduce", SLUG, "--python", "venv"],
    "./patchbench env pins functions --write": ["env", "pins", "functions", "--write"],
    "./patchbench env pins update": ["env", "pins", "update"],
    "scan --runs": ["scan", "--runs", "."],
    "scan --format json": ["scan", "requirements.txt", "--format", "json"],
    "sweep --executor slurm": ["sweep", "--executor", "slurm"],
    "window --all": ["window", "--all"],
}
RUN_BY = {
    # The mounts are made by bwrap there: no plugin for images is on the machine of the tests.
    "srun --container-image IMAGE --container-mounts DIR:/patchbench": ("tests/e2e/sweep_test.py", '"srun", "-N1", "bwrap"'),
    "pip install ./mitigations": ("tests/python/mitigation_install_test.py", '"-m", "pip", "install"'),
    "pip install patchbench_mitigations-*.whl": ("env/try_wheels.sh", "--find-links /mnt patchbench-mitigations"),
    "torchrun … -m patchbench_mitigations train.py": ("tests/python/mitigation_launcher_test.py", '"-m", "torch.distributed.run"'),
}


def on_path(requirement: str, folder: Path) -> str:
    """A locked release, unpacked from the cache."""
    name, _, version = requirement.partition("==")
    releases = json.loads((ROOT / "env/pins.json").read_text())["upstreams"][name]["releases"]
    (release,) = [release for release in releases if release["version"] == version]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench"
    with zipfile.ZipFile(cache / "files" / release["sha256"] / release["file"]) as wheel:
        wheel.extractall(folder / requirement)
    return str(folder / requirement)


def printed(command: str, requirement: str, folder: Path, environment: dict[str, str]) -> str:
    ours = dict(environment)
    if requirement:
        paths = [on_path(requirement, folder), str(ROOT / "mitigations"), environment.get("PYTHONPATH", "")]
        ours |= {"PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        ours.pop("PATCHBENCH_OPS_LIB", None)
    words = ["bash", "-c", f"exec 2>&1; {command}"]
    done = subprocess.run(words, cwd=folder, env=ours, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return without_progress(done.stdout)


@pytest.mark.skipif(not (BIN / "repro_liger_flce_none_bwd").exists(), reason="needs a build with reproducers")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_its_commands_print(path: Path, desk: Path, environment: dict[str, str]) -> None:  # noqa: F811
    page = path.read_text()
    now = followed(page, desk, lambda command, requirement, _: printed(command, requirement, desk, environment))
    if UPDATES:
        path.write_text(now)
    else:
        assert settled(now) == settled(page), "to write the page anew: PATCHBENCH_UPDATE=1"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_command_between_the_blocks_is_tried_too(path: Path, desk: Path, environment: dict[str, str]) -> None:  # noqa: F811
    for text in INLINE.findall(re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)):
        if text in RUN_BY:
            file, words = RUN_BY[text]
            assert words in (ROOT / file).read_text(), text
        else:
            assert complaint(WORDS[text], desk, environment) == "", text


def test_there_is_a_page_for_each_of_the_four_users() -> None:
    assert [path.stem for path in PAGES] == ["am_i_hit", "keep_training", "track_packs", "validate_and_file"]
    for path in PAGES:
        assert f"docs/{path.name}" in (ROOT / "README.md").read_text(), path


def test_what_varies_is_not_compared_and_all_else_is() -> None:
    one = "x · cpu · podman\nnone  present  7.2e-01  5e-07\n3d2887b6b14a of 2026-11-24\n"
    other = "x · cpu · process (unisolated)\nnone  present  7.25e-01  4e-07\n0d2887b6b14b of 2027-01-01\n"
    assert settled(one) == settled(other)
    assert settled(one) != settled(one.replace("present", "absent")) and settled(one) != settled(one.replace("x", "y"))
