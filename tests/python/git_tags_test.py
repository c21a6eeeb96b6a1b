"""env/git_tags.json against the pins and the manifests, and env/git_tags.py on a clone."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "env"))
import fetch  # noqa: E402
import git_tags  # noqa: E402

TABLE = json.loads(git_tags.TABLE.read_text("utf-8"))
PINS = json.loads((ROOT / "env/pins.json").read_text("utf-8"))["upstreams"]


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_rows_are_of_pins_and_of_what_the_manifests_look_at(name: str) -> None:
    known = TABLE[name]
    assert known["repositories"] == git_tags.repositories_of(name, PINS[name]["url"])
    assert known["files"] == git_tags.files_of(name), f"run env/git_tags.py {name}=CLONE: a manifest looks at other files"
    releases = {pin["version"] for pin in PINS[name]["releases"]}
    for row in known["tags"]:
        assert row["release"] in releases
        assert git_tags.key_of(git_tags.TAG.match(row["tag"])[1]) == git_tags.key_of(row["release"])
        assert len(row["commit"]) == 40 and not set(row["commit"]) - set("0123456789abcdef")
    assert len({row["tag"] for row in known["tags"]}) == len(known["tags"])


def test_versions_that_are_one() -> None:
    assert git_tags.key_of("2.2") == git_tags.key_of("2.2.0")
    assert git_tags.key_of("0.1.10") != git_tags.key_of("0.1.1")
    assert git_tags.key_of("0.10") != git_tags.key_of("0.1")
    assert len({git_tags.key_of(version) for version in ("2.0", "2.0rc1", "2.0.post1", "20")}) == 4


def clone(folder: Path, texts: dict[str, str]) -> str:
    """A repository with a tag for each text of the one file."""
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "src/liger_kernel/ops").mkdir(parents=True)
    for tag, text in texts.items():
        (folder / "src/liger_kernel/ops/utils.py").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", tag], check=True)
        subprocess.run([*git, "tag", "-a", "-m", tag, tag], check=True)
    return str(folder / ".git")


def test_only_a_tag_with_the_files_of_its_release_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "liger_kernel-0.8.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("liger_kernel/__init__.py", "")
        wheel.writestr("liger_kernel/ops/utils.py", "a = 1\n")
    upstream = {
        "project": "liger-kernel",
        "git_prefix": "src/",
        "releases": [
            {"version": version, "file": archive.name, "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()}
            for version in ("0.8.0", "0.9")
        ],
    }
    monkeypatch.setattr(fetch, "fetch_file", lambda *_: archive)
    folder = clone(tmp_path / "clone", {"v0.8.0": "a = 1\n", "v0.9.0": "a = 2\n", "v0.8.0rc1": "a = 1\n", "nightly": "a = 1\n"})
    rows = git_tags.rows_of("liger-kernel", upstream, folder)
    commit = subprocess.run(
        ["git", f"--git-dir={folder}", "rev-parse", "v0.8.0^{commit}"], capture_output=True, text=True, check=True
    ).stdout
    assert rows == [{"tag": "v0.8.0", "commit": commit.strip(), "release": "0.8.0"}]
    assert "tag v0.9.0 is not 0.9: liger_kernel/ops/utils.py differs" in capsys.readouterr().out
    assert git_tags.rows_of("tilelang", PINS["tilelang"], folder) == []
