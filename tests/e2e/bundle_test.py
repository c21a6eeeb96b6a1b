"""What goes to an upstream, from the committed evidence: every number of a body is held."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from standalone_test import edited_tree, take_edits_back

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["PATCHBENCH_BUILD"]) / "bin" / "patchbench"
WITH_RECORDS = sorted(
    p.parent.name for p in ROOT.glob("packs/*/manifest.json") if any((ROOT / "reports/evidence" / p.parent.name).glob("*.jsonl"))
)


def start(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")}
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=env, timeout=600)


# Words that a maintainer who never heard of this program does not know, and names of its verdicts.
OURS = re.compile(
    r"\b(packs?|mutants?|judge[ds]?|sentinels?|verdicts?|subjects?|triggers?|drawn|ledger|records?|patchbench\w*|[A-Z]+_[A-Z_]{3,})\b"
)
SIGNER = "Zoë Example <zoe@example.org>"
MAX_BODY, MAX_ADVISORY, MAX_ROWS = 60, 30, 3


def outside_fences(text: str) -> str:
    return re.sub(r"```.*?```", "(code)", text, flags=re.DOTALL)


@pytest.mark.parametrize("slug", WITH_RECORDS)
def test_a_bundle_is_for_a_reader_who_does_not_know_us(tmp_path: Path, slug: str) -> None:
    folder, pack = tmp_path / slug, ROOT / "packs" / slug
    done = start(tmp_path, "bundle", slug, folder, "--from", SIGNER)
    assert done.returncode == 0, done.stderr
    body, advisory = ((folder / name).read_text() for name in ("body.md", "advisory.md"))
    assert len(body.splitlines()) <= MAX_BODY and len(advisory.splitlines()) <= MAX_ADVISORY
    assert not OURS.findall(outside_fences(body)), OURS.findall(outside_fences(body))
    assert "…" not in body + advisory
    assert "\n\n\n" not in outside_fences(body)
    for text in (body, advisory):
        assert sum(line.startswith("| ") for line in text.splitlines()) <= MAX_ROWS + 1
        assert "first bad release" in text
    assert re.search(r"^- In \S+: `[\w./-]+:\d+`", body, re.MULTILINE)
    assert re.search(r"^- main (was not measured|at [0-9a-f]{8} \(\d{4}-\d\d-\d\d\) )", body, re.MULTILINE)
    for name in ("reproducer.py", "upstream_test.py"):
        assert (folder / name).exists() == (pack / name).exists()
        assert (name in body) == (pack / name).exists()
    if (pack / "reproducer.py").exists():
        assert (pack / "reproducer.py").read_text() in body and (pack / "reproducer.txt").read_text() in body
    else:
        assert "There is no short reproducer." in body
    for mail in (mails := list(folder.glob("patches/*/*.patch"))):
        text = mail.read_text()
        assert "From: =?UTF-8?q?Zo=C3=AB_Example?= <zoe@example.org>\n" in text
        assert f"\nSigned-off-by: {SIGNER}\n---\n" in text and "localhost" not in text.partition("\n---\n")[0]
    assert mails
    evidence = (folder / "evidence.md").read_text()  # bundle has checked its numbers
    assert "BUG_REPRODUCED" in evidence and "Known limits" in evidence
    assert (folder / "reproduce.py").read_text() == (ROOT / "repro" / slug / "standalone.py").read_text()
    assert (folder / "commands.sh").read_text().startswith("#!/bin/sh\nset -eu\n")


def test_a_mail_that_nobody_signed_off_says_so(tmp_path: Path) -> None:
    done = start(tmp_path, "bundle", "zero2_grad_accumulation", tmp_path / "out")
    assert (done.returncode, "nobody signed the patches off" in done.stdout) == (0, True)
    (mail,) = (tmp_path / "out").glob("patches/*/*.patch")
    assert "\n---\nNot signed off: export it again with --from" in mail.read_text()


def test_a_signer_is_a_name_and_an_address(tmp_path: Path) -> None:
    for wrong in ("me", "me@example.org", "Me <me>", "Me <me@example.org>\nBcc: x@y"):
        refused = start(tmp_path, "bundle", "zero2_grad_accumulation", tmp_path / "out", "--from", wrong)
        assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1)
        assert 'write it as "Name <mail@host>"' in refused.stderr
    assert not (tmp_path / "out").exists()


def test_a_mail_is_taken_by_git_am_as_its_signers(tmp_path: Path) -> None:
    """In a repository that holds the release."""
    slug, folder = "zero2_grad_accumulation", tmp_path / "bundle"
    tree = edited_tree(tmp_path / "deepspeed", slug, "deepspeed", "0.18.2")
    take_edits_back(tree, slug, "deepspeed", tmp_path / "mails")
    assert start(tmp_path, "bundle", slug, folder, "--from", SIGNER).returncode == 0
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x.invalid", "-C", tree]
    for words in (["init", "-q"], ["add", "deepspeed"], ["commit", "-qm", "release"], ["am", "-q", *folder.glob("patches/*/*.patch")]):
        subprocess.run([*git, *words], check=True)
    words = [*git, "log", "-1", "--format=%an <%ae>|%(trailers:key=Signed-off-by,valueonly)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == f"{SIGNER}|{SIGNER}"


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
    assert "for tilelang-examples" in (tmp_path / "out/evidence.md").read_text()
    assert [p.name for p in (tmp_path / "out/patches").iterdir()] == ["megatron-core"]


def test_what_is_written_into_a_body_by_hand_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    assert start(tmp_path, "bundle", "mamba3_mimo_gqa_bwd", folder).returncode == 0
    body = (folder / "evidence.md").read_text()
    assert start(tmp_path, "ledger", "verify", folder / "records.jsonl").returncode == 0
    assert start(tmp_path, "ledger", "lint", folder / "evidence.md").returncode == 0
    (folder / "evidence.md").write_text(body + "\nIt is 3.7x faster.\n")
    failed = start(tmp_path, "ledger", "lint", folder / "evidence.md")
    assert (failed.returncode, "3.7x" in failed.stdout) == (1, True)
    changed, count = re.subn(r"(\d+)( cases green)", lambda m: f"{int(m[1]) + 1}{m[2]}", body, count=1)
    (folder / "evidence.md").write_text(changed)
    assert (count, start(tmp_path, "ledger", "lint", folder / "evidence.md").returncode) == (1, 1)
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
