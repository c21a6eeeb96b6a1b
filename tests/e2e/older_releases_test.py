"""Releases older than the measured ones, in whose archive the code that carries the bug is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT
from scan_test import document, install, scan

sys.path.insert(0, str(ROOT / "env"))
import fetch  # noqa: E402
import older_releases  # noqa: E402

ZERO2 = "zero2_grad_accumulation"
STAGE_2 = "deepspeed/runtime/zero/stage_1_and_2.py"
REPORT = """- `llamafactory` version: 0.9.1
- Platform: Linux-5.4.0-42-generic-x86_64-with-glibc2.35
- Python version: 3.10.16
- PyTorch version: 2.4.0+cu124 (GPU)
- Transformers version: 4.46.1
- DeepSpeed version: 0.14.4
"""


def answer(*words: object, pack: str = ZERO2) -> tuple[int, str, str]:
    status, found = document(*words, "--pack", pack)
    (one,) = (one for one in found["answers"] if one["state"] != "not_installed")
    return status, one["state"], one["why"]


@pytest.mark.parametrize(
    ("line", "pack", "state"),
    [
        ("deepspeed==0.14.4", ZERO2, "not_hit"),
        ("deepspeed==0.15.4", ZERO2, "not_hit"),
        ("mamba-ssm==2.3.0", "mamba3_siso_bwd_cse", "not_hit"),
        ("megatron-core==0.14", "dsa_graph_capture", "not_hit"),
        ("transformer-engine==1.13.0", "te_fused_ce", "not_hit"),
        ("megatron-core==0.14.0", "megatron_float16_cast", "unknown"),  # its code is there
        ("transformer-engine==1.13.0", "fp8_storage_dispatch", "unknown"),
        ("transformer-engine==1.9.0", "te_fused_ce", "unknown"),  # its archive has no code
        ("deepspeed==0.14.9", ZERO2, "unknown"),  # no release
        ("deepspeed==0.14.4+ours", ZERO2, "unknown"),
        ("deepspeed @ git+https://example.org/deepspeed@v0.14.4", ZERO2, "unknown"),
    ],
)
def test_an_older_release_is_answered_by_its_archive(tmp_path: Path, line: str, pack: str, state: str) -> None:
    (tmp_path / "requirements.txt").write_text(line + "\n")
    status, got, why = answer(tmp_path / "requirements.txt", pack=pack)
    assert (got, status) == (state, 3 if state == "unknown" else 0), why
    if state == "not_hit":
        assert why == "the code is not there"


@pytest.mark.parametrize(
    ("line", "pack", "state"),
    [
        ("deepspeed<0.15", ZERO2, "not_hit"),
        ("deepspeed>=0.14,<0.15.1", ZERO2, "not_hit"),
        ("deepspeed==0.14.*", ZERO2, "not_hit"),
        ("deepspeed~=0.14.2", ZERO2, "not_hit"),
        ("mamba-ssm<2.3.1", "mamba3_siso_bwd_cse", "not_hit"),
        ("megatron-core<0.15", "dsa_graph_capture", "not_hit"),
        ("megatron-core<0.15", "megatron_float16_cast", "unknown"),  # their code is there
        ("transformer-engine>=1.9,<1.13", "te_fused_ce", "unknown"),  # 1.9.0 is in it, whose archive has no code
        ("transformer-engine>1.9,<2", "te_fused_ce", "not_hit"),
        ("liger-kernel<0.3", "liger_flce_none_bwd", "unknown"),  # no older release was read
        ("deepspeed<0.0.1", ZERO2, "unknown"),  # it admits none
        ("deepspeed<0.18.3,>=0.15", ZERO2, "hit"),
    ],
)
def test_a_range_of_older_releases_is_answered_by_all_of_them(tmp_path: Path, line: str, pack: str, state: str) -> None:
    (tmp_path / "requirements.txt").write_text(line + "\n")
    _, got, why = answer(tmp_path / "requirements.txt", pack=pack)
    assert got == state, why
    if state == "not_hit":
        assert why == "the code is not there in any release that it admits"


def test_a_pasted_report_is_answered(tmp_path: Path) -> None:
    (tmp_path / "env.txt").write_text(REPORT)
    found = scan(tmp_path / "env.txt", "--pack", ZERO2)
    assert found.returncode == 0, found.stdout
    assert "deepspeed 0.14.4  not_hit (the code is not there)" in found.stdout
    _, read = document(tmp_path / "env.txt", "--pack", ZERO2)
    assert read["answers"][0]["archive"].startswith("bb2f404b4a1d")


def test_changed_files_of_an_older_release_are_unknown(tmp_path: Path) -> None:
    """Its version alone does not decide where files are at hand."""
    install(tmp_path / "venv", "deepspeed", "0.14.4", {STAGE_2: b"all_grad_tensors = {}\n"})
    assert answer(tmp_path / "venv")[:2] == (3, "unknown")


def test_every_measured_release_with_the_bug_has_the_words() -> None:
    """Else an archive without them proves nothing."""
    table = json.loads(subprocess.run([PROGRAM, "export", "--format", "verdicts"], capture_output=True, check=True).stdout)
    pins = json.loads((ROOT / "env/pins.json").read_text("utf-8"))["upstreams"]
    num_read = 0
    for slug, manifest in older_releases.manifests().items():
        for use in manifest["upstreams"]:
            if "code_words" not in use:
                continue
            (upstream,) = (one for one in table["packs"][slug]["upstreams"] if one["name"] == use["name"])
            files = {pin["version"]: fetch.CACHE / "files" / pin["sha256"] / pin["file"] for pin in pins[use["name"]]["releases"]}
            for release in upstream["releases"]:
                archive = files.get(release["version"])
                if not release.get("classes") or archive is None or not archive.exists():
                    continue
                words = set(use["code_words"])
                assert older_releases.read_archive(archive, words, set())[0] == [], f"{slug}: {archive.name}"
                num_read += 1
    if not num_read:
        pytest.skip("no archive is in the cache")
