"""What goes to an upstream, from the committed evidence: every number of a body is held."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["PATCHBENCH_BUILD"]) / "bin" / "patchbench"
WITH_RECORDS = sorted(
    p.parent.name for p in ROOT.glob("packs/*/manifest.json") if any((ROOT / "reports/evidence" / p.parent.name).glob("*.jsonl"))
)


def start(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")}
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=env, timeout=600)


@pytest.mark.parametrize("slug", WITH_RECORDS)
def test_every_number_of_a_body_is_held(tmp_path: Path, slug: str) -> None:
    folder = tmp_path / slug
    done = start(tmp_path, "bundle", slug, folder)
    assert done.returncode == 0, done.stderr
    body = (folder / "body.md").read_text()
    assert "BUG_REPRODUCED" in body and "Known limits" in body
    assert (folder / "reproduce.py").read_text() == (ROOT / "repro" / slug / "standalone.py").read_text()
    assert list(folder.glob("patches/*/*.patch")) and (folder / "commands.sh").read_text().startswith("#!/bin/sh\nset -eu\n")


def test_a_git_pin_out_of_reach_is_left_out_and_named(tmp_path: Path) -> None:
    """The releases lie in the cache of files; the mirrors of git repositories are in a cache that is not there."""
    (tmp_path / "cache/patchbench").mkdir(parents=True)
    for name in ("files", "env"):
        (tmp_path / "cache/patchbench" / name).symlink_to(
            Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "patchbench" / name
        )
    (tmp_path / ".gitconfig").write_text('[url "file:///nowhere/"]\n\tinsteadOf = https://\n')
    here = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATCHBENCH_ROOT": str(ROOT)}
    words = [PROGRAM, "--ledger", str(tmp_path / "ledger.db"), "bundle", "sparse_mla_dims", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | here, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "the patches of tilelang-examples" in done.stderr and "upstream_unreachable" in done.stderr
    assert "for tilelang-examples" in (tmp_path / "out/body.md").read_text()
    assert [p.name for p in (tmp_path / "out/patches").iterdir()] == ["megatron-core"]


def test_what_is_written_into_a_body_by_hand_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    assert start(tmp_path, "bundle", "mamba3_mimo_gqa_bwd", folder).returncode == 0
    body = (folder / "body.md").read_text()
    assert start(tmp_path, "ledger", "verify", folder / "records.jsonl").returncode == 0
    assert start(tmp_path, "ledger", "lint", folder / "body.md").returncode == 0
    (folder / "body.md").write_text(body + "\nIt is 3.7x faster.\n")
    failed = start(tmp_path, "ledger", "lint", folder / "body.md")
    assert (failed.returncode, "3.7x" in failed.stdout) == (1, True)
    changed, count = re.subn(r"(\d+)( cases green)", lambda m: f"{int(m[1]) + 1}{m[2]}", body, count=1)
    (folder / "body.md").write_text(changed)
    assert (count, start(tmp_path, "ledger", "lint", folder / "body.md").returncode) == (1, 1)
    refused = start(tmp_path, "bundle", "mamba3_mimo_gqa_bwd", folder)
    assert (refused.returncode, "not empty" in refused.stderr) == (2, True)


def test_what_has_no_record_gets_no_bundle(tmp_path: Path) -> None:
    without = [p.parent.name for p in ROOT.glob("packs/*/manifest.json") if p.parent.name not in WITH_RECORDS]
    for slug in without:
        assert start(tmp_path, "bundle", slug, tmp_path / slug).returncode == 3
        assert not (tmp_path / slug).exists()


def test_every_cited_record_of_every_claim_resolves(tmp_path: Path) -> None:
    done = start(tmp_path, "status", "claims")
    assert (done.returncode, done.stderr) == (0, "")
