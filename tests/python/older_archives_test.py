"""env/older_releases.json against the archives in the cache, and the manifests' code_words against what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "env"))
import fetch  # noqa: E402
import older_releases  # noqa: E402

ROWS = json.loads(older_releases.TABLE.read_text("utf-8"))
PINS = json.loads((ROOT / "env/pins.json").read_text("utf-8"))["upstreams"]
VERDICTS = ROOT / "reports/evidence"


def cached(sha256: str, file: str) -> Path | None:
    path = fetch.CACHE / "files" / sha256 / file
    return path if path.exists() else None


def named(upstream: str) -> tuple[set[str], set[str]]:
    uses = older_releases.uses()[upstream]
    return {word for use in uses for word in use["code_words"]}, {file for use in uses for file in use["files"]}


def test_the_rows_are_those_of_the_archives() -> None:
    num_read = 0
    for upstream, rows in ROWS.items():
        words, files = named(upstream)
        for row in rows:
            if (archive := cached(row["sha256"], row["file"])) and fetch.digest_of(archive) == row["sha256"]:
                assert older_releases.read_archive(archive, words, files) == (row["without"], row["files"]), row["version"]
                num_read += 1
    if not num_read:
        pytest.skip("no archive is in the cache")


def test_every_row_is_older_than_what_was_measured() -> None:
    for upstream, rows in ROWS.items():
        measured = {pin["version"] for pin in PINS[upstream]["releases"]}
        oldest = min(older_releases.order(version) for version in measured)
        versions = [row["version"] for row in rows]
        assert len(set(versions)) == len(versions)
        assert all(older_releases.order(version) < oldest for version in versions)


@pytest.mark.parametrize(
    ("older", "newer"), [("0.9.5", "0.10.0"), ("0.15.0rc7", "0.15.0"), ("0.3.1.dev8", "0.3.1"), ("1.2.0", "1.2.0.post1"), ("1.9", "1.9.1")]
)
def test_the_order_of_versions(older: str, newer: str) -> None:
    assert older_releases.order(older) < older_releases.order(newer)


def test_versions_are_read_from_the_names_of_files() -> None:
    assert older_releases.version_of("mamba_ssm-2.2.6.post3.tar.gz", "mamba-ssm") == "2.2.6.post3"
    assert older_releases.version_of("transformer_engine-1.9.0-py3-none-any.whl", "transformer-engine") == "1.9.0"
    assert older_releases.version_of("transformer_engine_cu12-1.9.0-py3-none-any.whl", "transformer-engine") == ""
    assert older_releases.version_of("deepspeed-0.3.1.exe", "deepspeed") == ""
    assert older_releases.order("2.3.dev0+g123") is None
