#!/usr/bin/env python3
"""Compares the tags of upstreams' repositories with their releases, and keeps which tags are releases.

  git_tags.py UPSTREAM=GIT_DIRECTORY ...   read the tags of these clones, bare or not

A row of env/git_tags.json has a tag, its commit and the release that it is: the tag names the version of a pin, and every file
that a manifest looks at has the same digest in the tag's tree and in the release's archive, or is in neither. A tag that differs
has no row and is printed with the first file that does. An upstream of which only a file with the version is looked at has no
rows: such a file does not tell what else is in the tree. `scan` takes a tag or a commit of a row for the release.
tests/python/git_tags_test.py holds the rows against the pins and the manifests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import fetch
import json_rows
import older_releases

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "env" / "git_tags.json"
TAG = re.compile(r"(?:core_)?v?(\d.*)$")
# Places from which GitHub leads to the repository: it was moved.
MOVED = {"deepspeed": ["microsoft/DeepSpeed"]}
VERSION_FILES = {"version.py", "_version.py", "VERSION"}


def files_of(upstream: str) -> list[str]:
    """What the manifests look at, of an upstream that a run does not take from its environment."""
    uses = [use for one in older_releases.manifests().values() for use in one["upstreams"] if use["name"] == upstream]
    return sorted({file for use in uses if not use.get("from_environment") for file in use["files"]})


def repositories_of(upstream: str, url: str) -> list[str]:
    """ "github.com/owner/name" in lower case, the present place first."""
    return [url.partition("://")[2].lower(), *(f"github.com/{name}".lower() for name in MOVED.get(upstream, []))]


def key_of(version: str) -> str:
    """Equal for versions that PEP 440 takes for one: "2.2", "2.2.0"."""
    return re.sub(r"^(\d+(?:\.\d+)*?)(?:\.0)+(?![.\d])", r"\1", version)


def git(folder: str, *words: str) -> bytes | None:
    """What git prints; None where it fails."""
    done = subprocess.run(["git", f"--git-dir={folder}", *words], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def difference(pin: dict, upstream: dict, folder: str, commit: str, files: list[str]) -> str:
    """Why a commit is not the release of a pin; "" where it is."""
    archive = fetch.fetch_file(upstream["project"], pin["file"], pin["sha256"])
    _, digests = older_releases.read_archive(archive, set(), set(files))
    for file in files:
        text = git(folder, "cat-file", "blob", f"{commit}:{upstream['git_prefix']}{file}")
        got = hashlib.sha256(text).hexdigest() if text is not None else None
        if got != digests.get(file):
            return f"{file} differs"
    return "" if digests else "it has none of the files"


def rows_of(name: str, upstream: dict, folder: str) -> list[dict]:
    files = files_of(name)
    if all(Path(file).name in VERSION_FILES for file in files):
        print(f"{name}: only {', '.join(files) or 'nothing'} could be compared; no tag is taken")
        return []
    pins = {key_of(pin["version"]): pin for pin in upstream["releases"]}
    rows = []
    for tag in (git(folder, "tag", "--sort=version:refname") or b"").decode().split():
        match = TAG.match(tag)
        pin = pins.get(key_of(match[1])) if match else None
        if pin is None:
            continue
        commit = (git(folder, "rev-parse", f"refs/tags/{tag}^{{commit}}") or b"").decode().strip()
        why = difference(pin, upstream, folder, commit, files)
        if why:
            print(f"{name}: tag {tag} is not {pin['version']}: {why}")
        else:
            rows.append({"tag": tag, "commit": commit, "release": pin["version"]})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", nargs="+", metavar="UPSTREAM=GIT_DIRECTORY")
    pins = json.loads((ROOT / "env" / "pins.json").read_text("utf-8"))["upstreams"]
    table = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    for word in parser.parse_args().clone:
        name, _, folder = word.partition("=")
        if name not in pins or git(folder, "rev-parse", "--git-dir") is None:
            parser.error(f"{word}: want an upstream of env/pins.json and the git directory of a clone")
        try:
            rows = rows_of(name, pins[name], folder)
        except fetch.FetchError as error:
            print(f"git_tags: {error}", file=sys.stderr)
            return error.code
        table.pop(name, None)
        if rows:
            table[name] = {"repositories": repositories_of(name, pins[name]["url"]), "files": files_of(name), "tags": rows}
        print(f"{name}: {len(rows)} tags are releases")
    TABLE.write_text(json_rows.text_of(dict(sorted(table.items()))) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
