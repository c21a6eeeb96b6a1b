"""`patchbench scan` on a pixi.lock, in the two forms that are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from scan_test import document, scan

INDEX = "https://files.pythonhosted.org/packages/aa/bb/"
FORGE = "https://conda.anaconda.org/conda-forge/"
BAD = "c4b16d43f9d8f69068e6a15bd879dfc6a63b2449"  # Liger-Kernel's v0.8.0
ENVIRONMENTS = f"""environments:
  default:
    channels:
    - url: {FORGE}
    packages:
      linux-64:
      - conda: {FORGE}linux-64/_libgcc_mutex-0.1-conda_forge.tar.bz2
      - conda: {FORGE}noarch/transformers-4.47.1-pyhd8ed1ab_0.conda
      - pypi: {INDEX}liger_kernel-0.8.0-py3-none-any.whl
  other:
    channels: []
    packages:
      osx-arm64:
      - pypi: ./
"""
SIX = f"""version: 6
{ENVIRONMENTS}packages:
- conda: {FORGE}linux-64/_libgcc_mutex-0.1-conda_forge.tar.bz2
  sha256: 00
- conda: {FORGE}noarch/transformers-4.47.1-pyhd8ed1ab_0.conda
  sha256: 00
  depends:
  - python >=3.9
- pypi: {INDEX}liger_kernel-0.8.0-py3-none-any.whl
  name: liger-kernel
  version: 0.8.0
  sha256: '00'
  requires_dist:
  - torch>=2.1.2
- pypi: ./
  name: deepspeed
  version: 0.18.2
  editable: true
"""
FIVE = f"""version: 5
{ENVIRONMENTS}packages:
- kind: conda
  name: _libgcc_mutex
  version: '0.1'
  build: conda_forge
  url: {FORGE}linux-64/_libgcc_mutex-0.1-conda_forge.tar.bz2
- kind: conda
  name: transformers
  version: 4.47.1
  url: {FORGE}noarch/transformers-4.47.1-pyhd8ed1ab_0.conda
- kind: pypi
  name: liger-kernel
  version: 0.8.0
  url: {INDEX}liger_kernel-0.8.0-py3-none-any.whl
- kind: pypi
  name: deepspeed
  version: 0.18.2
  path: ./
  editable: true
"""
FOUND = {("liger-kernel", "0.8.0", "hit"), ("transformers", "4.47.1", "unknown"), ("deepspeed", "0.18.2", "unknown")}


def rows(file: Path, *words: str) -> tuple[int, set[tuple[str, str, str]], list[str]]:
    status, found = document(file, *words)
    listed = (one for one in found["answers"] if one["state"] != "not_installed")
    return status, {(one["package"], one["version"], one["state"]) for one in listed}, found["unread"]


@pytest.mark.parametrize("text", [SIX, FIVE])
def test_every_environment_and_platform_is_read(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "pixi.lock"
    lock.write_text(text)
    assert rows(lock) == (1, FOUND, [])
    _, found = document(lock, "--pack", "liger_flce_none_bwd")
    (one,) = found["answers"]
    assert text.splitlines()[one["line"] - 1].startswith("- ")
    assert rows(tmp_path)[1] == FOUND


def test_a_lock_is_whole(tmp_path: Path) -> None:
    """A second package that it does not have is not there."""
    lock = tmp_path / "pixi.lock"
    lock.write_text(SIX.replace("liger_kernel", "mamba_ssm").replace("liger-kernel", "mamba-ssm").replace("0.8.0", "2.3.2.post1"))
    assert rows(lock, "--pack", "megatron_float16_cast") == (0, {("mamba-ssm", "2.3.2.post1", "not_hit")}, [])
    # One of its places without a package: it is not whole.
    lock.write_text(lock.read_text().replace("      - pypi: ./\n", "      - pypi: ./\n      - pypi: ./more\n"))
    status, found, unread = rows(lock, "--pack", "megatron_float16_cast")
    assert (status, found) == (3, {("mamba-ssm", "2.3.2.post1", "unknown")})
    assert unread == [f"{lock}:16: ./more is not among its packages"]


def test_a_place_in_git_is_its_tag(tmp_path: Path) -> None:
    lock = tmp_path / "pixi.lock"
    place = f"git+https://github.com/linkedin/Liger-Kernel?tag=v0.8.0#{BAD}"
    lock.write_text(SIX.replace(f"{INDEX}liger_kernel-0.8.0-py3-none-any.whl", place))
    assert rows(lock)[1] == FOUND
    lock.write_text(SIX.replace(f"{INDEX}liger_kernel-0.8.0-py3-none-any.whl", place.replace(BAD, "b" * 40)))
    assert rows(lock)[1] == FOUND - {("liger-kernel", "0.8.0", "hit")} | {("liger-kernel", "0.8.0", "unknown")}


def test_a_file_that_tells_another_version_is_a_second_claim(tmp_path: Path) -> None:
    lock = tmp_path / "pixi.lock"
    lock.write_text(SIX.replace("  version: 0.8.0", "  version: 0.8.2"))
    assert {row for row in rows(lock)[1] if row[0] == "liger-kernel"} >= {("liger-kernel", "0.8.0", "hit")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SIX.replace("version: 6", "version: 7", 1), ":1: is a pixi.lock of version 7, and 5 and 6 are read; "),
        (SIX.replace("version: 6\n", "", 1), ":1: is a pixi.lock of version ?, and 5 and 6 are read; "),
        (SIX.replace("- pypi: ./\n  name", "- place: ./\n  name"), ": is no package with its place"),
        (SIX[: SIX.index("packages:\n- conda")] + "packages: {}\n", ": packages must be a sequence"),
        ("version: 6\n", ": is YAML of a kind that is not read; "),
    ],
)
def test_another_form_is_refused(tmp_path: Path, text: str, said: str) -> None:
    lock = tmp_path / "pixi.lock"
    lock.write_text(text)
    done = scan(lock)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
    assert scan(tmp_path).returncode == 3
