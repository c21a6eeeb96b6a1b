"""A tag of git whose files are a release's is answered as the release (env/git_tags.json)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM
from scan_test import document, install

LIGER = "https://github.com/linkedin/Liger-Kernel"
BAD = "c4b16d43f9d8f69068e6a15bd879dfc6a63b2449"  # v0.8.0
RIGHT = "000be60929938fd1358e03524c6ab398b6d421bd"  # v0.8.2

UV = """version = 1
[[package]]
name = "liger-kernel"
version = "0.8.0"
source = {{ git = "{0}?tag=v0.8.0#{1}" }}
"""
POETRY = """[[package]]
name = "liger-kernel"
version = "0.8.0"

[package.source]
type = "git"
url = "{0}.git"
reference = "v0.8.0"
resolved_reference = "{1}"
"""
PDM = """[metadata]
lock_version = "4.5"

[[package]]
name = "liger-kernel"
version = "0.8.0"
git = "{0}"
ref = "v0.8.0"
revision = "{1}"
"""
PYLOCK = """lock-version = "1.0"
[[packages]]
name = "liger-kernel"
vcs = {{ type = "git", url = "{0}", requested-revision = "v0.8.0", commit-id = "{1}" }}
"""
PROJECT = """[project]
name = "x"
dependencies = ["liger-kernel"]
[tool.uv.sources]
liger-kernel = {{ git = "{0}", {1} }}
"""
POETRY_PROJECT = """[tool.poetry.dependencies]
liger-kernel = {{ git = "{0}.git", {1} }}
"""
CONDA = """name: train
dependencies:
  - python=3.11
  - pip:
      - git+{0}@{1}
"""


def answer(folder: Path, name: str, text: str, pack: str = "liger_flce_none_bwd") -> tuple[str, str, int]:
    (folder / name).write_text(text)
    status, found = document(folder / name, "--pack", pack)
    (one,) = found["answers"]
    return one["state"], one["version"], status


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", f"git+{LIGER}@v0.8.0\n"),
        ("requirements.txt", f"liger-kernel @ git+{LIGER}.git@v0.8.0\n"),
        ("requirements.txt", "liger-kernel @ git+ssh://git@github.com/linkedin/Liger-Kernel.git@v0.8.0\n"),
        ("requirements.txt", "liger_kernel@git+https://token@github.com/LinkedIn/liger-kernel@v0.8.0 ; python_version > '3'\n"),
        ("requirements.txt", f"-e git+{LIGER}@v0.8.0#egg=liger-kernel\n"),
        ("freeze.txt", f"numpy==1.26.4\nliger_kernel @ git+{LIGER}@{BAD}\n"),
        ("freeze.txt", f"-e git+{LIGER}.git@{BAD}#egg=liger_kernel\n"),
        ("uv.lock", UV.format(LIGER, BAD)),
        ("poetry.lock", POETRY.format(LIGER, BAD)),
        ("pdm.lock", PDM.format(LIGER, BAD)),
        ("pylock.toml", PYLOCK.format(LIGER, BAD)),
        ("pyproject.toml", PROJECT.format(LIGER, 'tag = "v0.8.0"')),
        ("pyproject.toml", PROJECT.format(LIGER, f'rev = "{BAD}"')),
        ("pyproject.toml", POETRY_PROJECT.format(LIGER, 'tag = "v0.8.0"')),
        ("pyproject.toml", POETRY_PROJECT.format("git@github.com:linkedin/Liger-Kernel", 'tag = "v0.8.0"')),
        ("Pipfile.lock", json.dumps({"_meta": {}, "default": {"liger-kernel": {"git": LIGER, "ref": BAD}}})),
        ("environment.yml", CONDA.format(LIGER, "v0.8.0")),
        ("Dockerfile", f"FROM scratch\nRUN pip install 'git+{LIGER}@v0.8.0'\n"),
    ],
)
def test_a_tag_is_its_release(tmp_path: Path, name: str, text: str) -> None:
    assert answer(tmp_path, name, text) == ("hit", "0.8.0", 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", f"liger-kernel @ git+{LIGER}@main\n"),
        ("requirements.txt", f"liger-kernel @ git+{LIGER}\n"),
        ("requirements.txt", f"liger-kernel @ git+{LIGER}@v0.8\n"),
        ("requirements.txt", f"liger-kernel @ git+{LIGER}@0.8.2\n"),
        ("requirements.txt", "liger-kernel @ git+https://github.com/someone/Liger-Kernel@v0.8.2\n"),
        ("requirements.txt", "liger-kernel @ git+https://example.org/linkedin/Liger-Kernel@v0.8.2\n"),
        ("requirements.txt", "liger-kernel @ git+https://github.com/a@github.com/linkedin/Liger-Kernel@v0.8.2\n"),
        ("requirements.txt", f"liger-kernel @ git+{LIGER}@v0.8.2#subdirectory=dev\n"),
        ("requirements.txt", f"liger-kernel @ git+{LIGER}@{'a' * 40}\n"),
        ("requirements.txt", f"liger-kernel @ {LIGER}@v0.8.2\n"),
        # The commit that was locked is another one than the tag's: a tag can be moved.
        ("uv.lock", UV.format(LIGER, "b" * 40)),
        ("poetry.lock", POETRY.format(LIGER, "b" * 40)),
        ("pyproject.toml", PROJECT.format(LIGER, 'branch = "v0.8.2"')),
        ("pyproject.toml", PROJECT.format(LIGER, 'tag = "v0.8.2", subdirectory = "dev"')),
        ("pyproject.toml", PROJECT.format("https://github.com/someone/Liger-Kernel", 'tag = "v0.8.2"')),
        ("environment.yml", CONDA.format(LIGER, "main")),
    ],
)
def test_what_is_no_such_tag_is_unknown(tmp_path: Path, name: str, text: str) -> None:
    state, _, status = answer(tmp_path, name, text)
    assert (state, status) == ("unknown", 3)


def test_a_fork_without_a_name_is_unread(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==1.26.4\ngit+https://github.com/someone/Liger-Kernel@v0.8.2\n")
    status, found = document(tmp_path / "requirements.txt")
    assert status == 3
    assert found["unread"] == ["git+https://github.com/someone/Liger-Kernel@v0.8.2"]


@pytest.mark.parametrize("place", [f"{LIGER}@v0.8.2", f"{LIGER}@{RIGHT}", f"https://github.com/someone/Liger-Kernel@{RIGHT}"])
def test_a_right_tag_or_commit_is_right(tmp_path: Path, place: str) -> None:
    """A commit is the same in each repository."""
    (tmp_path / "requirements.txt").write_text(f"liger-kernel @ git+{place}\n")
    status, found = document(tmp_path / "requirements.txt", "--pack", "liger_flce_none_bwd")
    (one,) = found["answers"]
    assert (one["state"], status) == ("not_hit", 0)
    assert one["why"] == "the bug is not there; its files in git are those of 0.8.2"
    assert found["unread"] == []


@pytest.mark.parametrize(
    ("line", "pack", "want"),
    [
        ("git+https://github.com/NVIDIA/Megatron-LM.git@core_v0.19.0", "dsa_graph_capture", ("hit", "0.19.0", 1)),
        ("megatron-core @ git+https://github.com/NVIDIA/Megatron-LM@core_v0.16.0", "dsa_graph_capture", ("hit", "0.16.0", 1)),
        ("git+https://github.com/NVIDIA/TransformerEngine.git@v2.18", "te_fused_ce", ("hit", "2.18.0", 1)),
        ("deepspeed @ git+https://github.com/microsoft/DeepSpeed@v0.18.2", "zero2_grad_accumulation", ("hit", "0.18.2", 1)),
        ("git+https://github.com/deepspeedai/DeepSpeed@v0.18.3", "zero2_grad_accumulation", ("not_hit", "0.18.3", 0)),
        # The tag's file is not the release's.
        ("git+https://github.com/deepspeedai/DeepSpeed@v0.19.1", "zero2_grad_accumulation", ("unknown", "", 3)),
        ("git+https://github.com/state-spaces/mamba@v2.3.2.post1", "mamba3_siso_bwd_cse", ("hit", "2.3.2.post1", 1)),
    ],
)
def test_each_upstream_has_its_tags(tmp_path: Path, line: str, pack: str, want: tuple[str, str, int]) -> None:
    assert answer(tmp_path, "requirements.txt", line + "\n", pack) == want


def test_files_at_hand_come_before_a_tag(tmp_path: Path) -> None:
    url = {"url": LIGER, "vcs_info": {"vcs": "git", "requested_revision": "v0.8.2", "commit_id": RIGHT}}
    install(tmp_path / "venv", "liger-kernel", "0.8.2", {"liger_kernel/ops/fused_linear_cross_entropy.py": b"# ours\n"}, **url)
    status, found = document(tmp_path / "venv", "--pack", "liger_flce_none_bwd")
    assert (status, found["answers"][0]["state"]) == (3, "unknown")


def test_an_exported_table_has_the_tags(tmp_path: Path) -> None:
    """An installed program has such a table in place of the records."""
    table = subprocess.run([PROGRAM, "export", "--format", "verdicts"], capture_output=True, check=True).stdout
    (tmp_path / "verdicts.json").write_bytes(table)
    (tmp_path / "requirements.txt").write_text(f"git+{LIGER}@v0.8.0\n")
    status, found = document(tmp_path / "requirements.txt", "--db", tmp_path / "verdicts.json", "--pack", "liger_flce_none_bwd")
    assert (status, found["answers"][0]["version"]) == (1, "0.8.0")
