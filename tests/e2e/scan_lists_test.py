"""What people have instead of a lock: what tools print, recipes, projects, scripts and ranges."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from scan_test import LIGER, PROGRAM, document, scan

PACKS = (LIGER, "trainer_grad_accumulation", "zero2_grad_accumulation")
PIP_LIST = """$ pip list
Package      Version     Editable project location
------------ ----------- -------------------------
accelerate   1.2.1
deepspeed    0.18.2      /srv/deepspeed
liger_kernel 0.8.0
transformers 4.47.1

[notice] A new release of pip is available
"""
CONDA_LIST = """# packages in environment at /opt/conda:
#
# Name                    Version                   Build  Channel
_libgcc_mutex             0.1                 conda_forge    conda-forge
liger-kernel              0.8.0                    pypi_0    pypi
transformers              4.47.1             pyhd8ed1ab_0    conda-forge
"""
EXPLICIT = """# platform: linux-64
@EXPLICIT
https://conda.anaconda.org/conda-forge/noarch/transformers-4.47.1-pyhd8ed1ab_0.conda#0123456789abcdef0123456789abcdef
"""
ENVIRONMENT = """name: train
channels: [conda-forge]
dependencies:
  - _openmp_mutex=4.5
  - python=3.11
  - conda-forge::deepspeed=0.18.2=py311_0
  - pip:
    - liger-kernel==0.8.0
    - transformers>=4.46,<4.48
"""
CONDA_LOCK = """version: 1
metadata: {platforms: [linux-64]}
package:
- {name: deepspeed, version: 0.18.2, manager: conda, url: https://example.org/deepspeed-0.18.2-0.conda}
- name: liger-kernel
  version: 0.8.0
  manager: pip
  url: https://files.pythonhosted.org/packages/liger_kernel-0.8.0-py3-none-any.whl
- {name: transformers, version: 4.47.1, manager: pip, url: https://example.org/transformers-4.47.1-py3-none-any.whl}
"""
REPORT = """- `transformers` version: 4.47.1
- Platform: Linux-6.1
- Python version: 3.11.9
- PyTorch version (GPU?): 2.6.0+cu124 (True)
- Liger-Kernel version: 0.8.0
- DeepSpeed version: not installed
"""
DS_REPORT = """torch install path ............... ['/srv/torch']
torch version .................... 2.6.0+cu124
deepspeed info ................... 0.18.2, unknown, unknown
"""
COLLECT_ENV = """PyTorch version: 2.6.0+cu124
Is debug build: False
Python version: 3.11.9 (64-bit runtime)
[pip3] liger_kernel==0.8.0
[conda] transformers              4.47.1             pyhd8ed1ab_0    conda-forge
"""
PROJECT = """[project]
name = "train"
dependencies = ["transformers>=4.46,<4.48"]
[project.optional-dependencies]
fast = ["liger-kernel==0.8.0; python_version > '3.9'"]
[dependency-groups]
dev = ["deepspeed>=0.18", {include-group = "test"}]
[tool.uv.sources]
deepspeed = {git = "https://example.org/deepspeed", rev = "main"}
"""
POETRY = """[tool.poetry.dependencies]
python = "^3.10"
transformers = "4.47.1"
liger-kernel = {version = "^0.5.2", optional = true}
"""
SETUP = """[options]
install_requires =
    transformers==4.47.1
[options.extras_require]
fast = liger-kernel==0.8.0
"""
PROGRAM_OF_SETUP = """from setuptools import find_packages, setup

TEST = ["transformers==4.47.1"]
setup(name="train", packages=find_packages(), install_requires=["liger-kernel"], extras_require={"test": TEST}, keywords=["deepspeed"])
"""
DOCKERFILE = """ARG LIGER=0.8.0
FROM debian:12 AS base
RUN --mount=type=cache,target=/tmp pip install --no-cache-dir "liger-kernel==${LIGER}" \\
    # a comment between two lines
    'transformers>=4.46,<4.48' -i https://example.org/simple && rm -rf /tmp/x
FROM base
RUN uv pip install deepspeed==$DEEPSPEED
"""
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
export LIGER=0.8.0
(python3 -m pip install -q liger-kernel==$LIGER)
conda install -y -c conda-forge transformers=4.47.1
srun python train.py
"""
WORKFLOW = """jobs:
  test:
    steps:
      - run: pip install liger-kernel==0.8.0
      - run: uv sync
"""
DEEPSPEED, FLCE, TRAINER, CONDA = (
    ("deepspeed", "0.18.2", "unknown"),
    ("liger-kernel", "0.8.0", "hit"),
    ("transformers", "4.47.1", "hit"),
    ("transformers", "4.47.1", "unknown"),
)
LISTS = {
    "pip-list.txt": (PIP_LIST, {FLCE, TRAINER, DEEPSPEED}),
    "rows.txt": ("liger-kernel   0.8.0\ntorch          2.6.0\n", {FLCE}),
    "pip.json": (json.dumps([{"name": "liger_kernel", "version": "0.8.0"}]), {FLCE}),
    "conda.json": (json.dumps([{"name": "transformers", "version": "4.47.1", "channel": "conda-forge"},
                               {"name": "liger-kernel", "version": "0.8.0", "channel": "pypi"}]),
                   {CONDA, FLCE}),
    "conda-list.txt": (CONDA_LIST, {FLCE, CONDA}),
    "explicit.txt": (EXPLICIT, {CONDA}),
    "export.txt": ("liger-kernel=0.8.0=pypi_0\n", {FLCE}),
    "environment.yml": (ENVIRONMENT, {FLCE, TRAINER, DEEPSPEED}),
    "conda-lock.yml": (CONDA_LOCK, {FLCE, CONDA, DEEPSPEED}),
    "report.txt": (REPORT, {FLCE, TRAINER}),
    "ds_report.txt": (DS_REPORT, {("deepspeed", "0.18.2", "hit")}),
    "collect_env.txt": (COLLECT_ENV, {FLCE, CONDA}),
    "pyproject.toml": (PROJECT, {FLCE, TRAINER, ("deepspeed", "", "unknown")}),
    "poetry.toml": (POETRY, {("liger-kernel", "0.5.10", "hit"), TRAINER}),
    "setup.cfg": (SETUP, {FLCE, TRAINER}),
    "setup.py": (PROGRAM_OF_SETUP, {("liger-kernel", "", "unknown"), TRAINER}),
    "Dockerfile": (DOCKERFILE, {FLCE, TRAINER}),
    "run.sbatch": (SCRIPT, {FLCE, CONDA}),
    "workflow.yml": (WORKFLOW, {FLCE}),
}  # fmt: skip


def rows_of(found: dict) -> set[tuple[str, str, str]]:
    return {(one["package"], one["version"], one["state"]) for one in found["answers"] if one["state"] != "not_installed"}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_read(tmp_path: Path, name: str) -> None:
    text, expected = LISTS[name]
    (tmp_path / name).write_text(text)
    status, found = document(tmp_path / name, "--pack", ",".join(PACKS))
    hits = any(row[2] == "hit" for row in expected)
    assert (status, rows_of(found)) == (1 if hits else 3, expected)
    lines = text.lower().replace("_", "-").splitlines()
    assert all(one["package"] in lines[one["line"] - 1] for one in found["answers"] if one["line"])


def test_what_is_not_known_from_a_recipe_is_named(tmp_path: Path) -> None:
    unread = {}
    for name in ("Dockerfile", "workflow.yml", "pip-list.txt", "environment.yml"):
        (tmp_path / name).write_text(LISTS[name][0])
        unread[name] = " ".join(document(tmp_path / name)[1]["unread"])
    assert "the base image debian:12" in unread["Dockerfile"] and "base image base" not in unread["Dockerfile"]
    assert ":7: deepspeed==$DEEPSPEED" in unread["Dockerfile"]
    assert ":5: - run: uv sync" in unread["workflow.yml"]
    assert unread["pip-list.txt"] == "" and "not pinned (1)" in unread["environment.yml"]


SCRIPTS = {
    "an option before the verb": "pip -q --no-cache-dir install liger-kernel==0.8.0",
    "another program starts it": 'sudo -H -u user pip3 install "liger-kernel==0.8.0"',
    "a command in a word": "srun bash -lc 'cd /srv && pip install liger-kernel==0.8.0'",
    "a list": 'RUN ["pip", "install", "liger-kernel==0.8.0"]',
    "a command in a variable": 'PIP="pip install --user"\n$PIP liger-kernel==0.8.0',
    "set in the same line": "LIGER=0.8.0; pip install liger-kernel==$LIGER",
    "a list of a folder": "pip install -rmore.txt",
    "the same in one word": "pip install --requirement=more.txt",
    "for one run": "uv run --with liger-kernel==0.8.0 train.py",
}
OPEN_SCRIPTS = {
    "names from another program": "cat more.txt | xargs pip install",
    "a lock": "uv --quiet pip sync more.txt",
    "a project": "poetry install --no-root",
    "a variable that is not set": "pip install liger-kernel==$LIGER",
    "a variable that grows": "A=xx\n" + "A=$A$A\n" * 60 + "pip install liger-kernel==$A",
    "conda": "conda --yes install liger-kernel=0.8.0",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_an_installer_is_found_in_a_script(tmp_path: Path, kind: str) -> None:
    (tmp_path / "more.txt").write_text("liger-kernel==0.8.0\n")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{SCRIPTS[kind]}\n")
    status, found = document(tmp_path / "run.sh", "--pack", LIGER)
    assert (status, rows_of(found)) == (1, {FLCE})


@pytest.mark.parametrize("kind", OPEN_SCRIPTS)
def test_what_a_script_installs_from_elsewhere_is_unknown(tmp_path: Path, kind: str) -> None:
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{OPEN_SCRIPTS[kind]}\n")
    status, found = document(tmp_path / "run.sh", "--pack", LIGER)
    assert status == 3 and (len(found["unread"]) == 1 or rows_of(found)), found["unread"]


def test_a_reported_version_that_is_none_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "env.txt").write_text("- PyTorch version: 2.6.0\n- TRL version: 0.25.1\n- Liger-Kernel version: main\n")
    status, found = document(tmp_path / "env.txt", "--pack", LIGER)
    assert (status, rows_of(found)) == (3, {("liger-kernel", "", "unknown")})


def test_a_list_is_read_from_standard_input() -> None:
    done = subprocess.run([PROGRAM, "scan", "-", "--json"], input=REPORT, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["inputs"] == ["stdin"]
    assert {("liger-kernel", "0.8.0", "hit"), ("transformers", "4.47.1", "hit")} <= rows_of(found)


def test_a_kind_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("Liger-Kernel version: 0.8.0\n")
    assert scan(tmp_path / "one.txt").returncode == 2
    assert rows_of(document(tmp_path / "one.txt", "--as", "report", "--pack", LIGER)[1]) == {("liger-kernel", "0.8.0", "hit")}


RANGES = {
    ">=0.5,<0.8.2": ("hit", "0.8.1", "wrong_gradients"),
    "~=0.5.2": ("hit", "0.5.10", "reduction_ignored"),
    ">=0.5": ("unknown", "", "may be hit: 0.5.0 to 0.8.1 are; with 0.8.2 as its floor it is not"),
    "==0.8.*": ("unknown", "", "may be hit: 0.8.0 to 0.8.1 are; with 0.8.2 as its floor it is not"),
    ">=0.8.2,<0.8.6": ("not_hit", "", "no release that it admits is hit"),
    "<0.1": ("unknown", "", "no release that was measured is in its range"),
}


@pytest.mark.parametrize("text", RANGES)
def test_a_range_is_answered_over_what_it_admits(tmp_path: Path, text: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"liger-kernel{text}\n")
    (one,) = document(tmp_path / "requirements.txt", "--pack", LIGER)[1]["answers"]
    assert (one["state"], one["version"], one["why"]) == RANGES[text] and one["range"] == text


UNKNOWN_KINDS = {
    "config.yaml": ("compute_environment: LOCAL\n", ": is YAML of a kind that is not read"),
    "broken.yml": ("dependencies: [a\nb: {", "broken.yml:2: is not YAML"),
    "twice.yml": ("dependencies: []\ndependencies: []\n", "twice.yml:2: dependencies comes twice"),
    "scalar.yml": ("dependencies: 3\n", "scalar.yml:1: dependencies must be a sequence"),
    "deep.yml": ("dependencies: " + "[" * 200 + "]" * 200, "deep.yml:1: more than 64 levels"),
    "rows.json": ('[{"name": "a"}]', "rows.json:1: is no package with its version"),
    "empty.yml": ("---\n", "empty.yml"),
}


@pytest.mark.parametrize("name", UNKNOWN_KINDS)
def test_a_kind_that_is_not_read_is_said_in_a_line(tmp_path: Path, name: str) -> None:
    text, reason = UNKNOWN_KINDS[name]
    (tmp_path / name).write_text(text)
    done = scan(tmp_path / name)
    assert done.returncode == 2 and done.stdout == "" and reason in done.stderr and done.stderr.count("\n") == 1, done.stderr
