"""Digests of functions: the committed table against the archives in the cache, the tokens against Python's own, and what `scan` says
of a copy whose code is that of a measured release."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM
from scan_test import FLCE, document, install, released, scan, states


def test_the_table_is_that_of_the_archives() -> None:
    done = subprocess.run([PROGRAM, "--json", "env", "pins", "functions"], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    if not found["read"]:
        pytest.skip("no archive is in the cache")
    assert (done.returncode, found["differences"]) == (0, [])


def formatted(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same code: a licence header, other line ends, and no comment."""
    lines = [line for line in files[FLCE].decode().splitlines() if not line.strip().startswith("#")]
    return files | {FLCE: ("# Ours.\r\n\r\n" + "\r\n".join(lines) + "\r\n").encode()}


def answer_of(tmp_path: Path, files: dict[str, bytes]) -> dict:
    """The answer about a build of its own that has these files."""
    install(tmp_path / "venv", "liger-kernel", "0.8.0+ours", files)
    _, found = document(tmp_path / "venv", "--pack", "liger_flce_none_bwd")
    (answer,) = (one for one in found["answers"] if one["upstream"] == "liger-kernel")
    return answer


def test_a_copy_with_the_code_of_a_red_release_is_a_hit(tmp_path: Path) -> None:
    answer = answer_of(tmp_path, formatted(released("liger-kernel", "0.8.0")))
    assert (answer["state"], answer["same_code_as"]) == ("hit", "0.8.0")
    assert "same code as 0.8.0" in scan(tmp_path / "venv", "--pack", "liger_flce_none_bwd").stdout


def test_a_copy_with_the_code_of_a_right_release_is_no_hit(tmp_path: Path) -> None:
    answer = answer_of(tmp_path, formatted(released("liger-kernel", "0.8.2")))
    assert (answer["state"], answer["why"]) == ("not_hit", "the bug is not there; same code as 0.8.2")


@pytest.mark.parametrize("version", ["0.8.0", "0.8.2"])
def test_other_code_around_the_functions(tmp_path: Path, version: str) -> None:
    """A red release's functions are a hit whatever is around them; a right one's say nothing then."""
    files = released("liger-kernel", version)
    files[FLCE] += b"\nOURS = 1\n"
    answer = answer_of(tmp_path, files)
    assert answer["state"] == {"0.8.0": "hit", "0.8.2": "unknown"}[version]
    assert (answer["same_code_as"], answer["same_functions_as"]) == {"0.8.0": ("", "0.8.0"), "0.8.2": ("", "")}[version]


@pytest.mark.parametrize("version", ["0.8.0", "0.8.2"])
def test_other_functions_are_unknown_and_named(tmp_path: Path, version: str) -> None:
    files = released("liger-kernel", version)
    files[FLCE] = files[FLCE].replace(b"ctx", b"our_ctx")
    answer = answer_of(tmp_path, files)
    assert answer["state"] == "unknown"
    assert f"3 of its functions are those of {version}; these differ: LigerFusedLinearCrossEntropyFunction.backward" in answer["why"]


# TransformerEngine's own builds: the commit is the local version.
BUILD = "2.12.0+5671fd36"
CROSS_ENTROPY = "transformer_engine/pytorch/cross_entropy.py"


def test_a_build_of_a_commit_is_unknown_by_its_version(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"transformer-engine=={BUILD}\n")
    assert states(tmp_path / "requirements.txt", pack="te_fused_ce") == (
        3,
        {("te_fused_ce", "transformer-engine", BUILD, "unknown")},
    )


@pytest.mark.parametrize(
    ("of", "change", "state", "why"),
    [
        ("2.12.0", b"", "hit", "sliced_sequence"),
        ("2.12.0", b"# built here\n", "hit", "sliced_sequence"),
        ("2.20.2", b"", "not_hit", "the bug is not there; its files are those of 2.19.0"),
        ("2.20.2", b"OURS = 1\n", "unknown", "its functions are those of 2.20.2, and other code is around them"),
    ],
)
def test_the_files_of_a_build_of_a_commit_decide(tmp_path: Path, of: str, change: bytes, state: str, why: str) -> None:
    files = released("transformer-engine", of)
    files[CROSS_ENTROPY] += change
    install(tmp_path / "venv", "transformer-engine", BUILD, files)
    _, found = document(tmp_path / "venv", "--pack", "te_fused_ce")
    (answer,) = (one for one in found["answers"] if one["upstream"] == "transformer-engine")
    assert (answer["version"], answer["state"]) == (BUILD, state), answer["why"]
    assert why in answer["why"]
