#!/usr/bin/env python3
"""Reads the releases that are older than what was measured, and keeps which of them cannot have a pack's bug.

  older_releases.py [UPSTREAM ...]   read every older release of these (default: of all that a manifest names code_words for)

A manifest's `code_words` are words of the code that carries the bug. A row of env/older_releases.json has the archive that was
read (file and SHA-256), the words that no Python file of it has, and the SHA-256 of the packs' files in it. `scan` answers
`not_hit` where the words are all that a pack names, and for a range where they are in every row that it admits. A word is searched
as plain text, in comments, too: where it is found, nothing is said of the release. A release without Python code, or of more than
64 MiB, has a row without words.
tests/python/older_releases_test.py holds the rows against the cache, and the words against every measured release.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fetch
import json_rows

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "env" / "older_releases.json"
MAX_BYTES = 64 << 20
VERSION = re.compile(r"(\d+(?:\.\d+)*)((?:a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?$")


def manifests() -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "packs").glob("*/manifest.json"))}


def uses() -> dict[str, list[dict]]:
    """Upstream -> what the manifests that name code_words for it say of it."""
    found: dict[str, list[dict]] = {}
    for manifest in manifests().values():
        for use in manifest["upstreams"]:
            if "code_words" in use:
                found.setdefault(use["name"], []).append(use)
    return found


def order(version: str) -> tuple[list[int], bool, str] | None:
    """A key that orders releases, a candidate before its release; None for a version of another form."""
    match = VERSION.match(version)
    if not match:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers, not (match[2] or match[4]), version


def version_of(filename: str, project: str) -> str:
    """The version in the name of a wheel or an sdist; "" for another file."""
    stem = re.sub(r"[-_.]+", "[-_.]+", project)
    match = re.match(rf"{stem}-([^-]+)(-.*\.whl|\.tar\.gz|\.zip)$", filename, re.IGNORECASE)
    return match[1] if match else ""


def python_texts(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path in the package and text of each Python file."""
    if archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as tar:
            for member in tar:
                found = tar.extractfile(member) if member.isfile() and member.name.endswith(".py") else None
                if found:
                    yield member.name.partition("/")[2], found.read()
    else:
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name)


def read_archive(archive: Path, words: set[str], files: set[str]) -> tuple[list[str], dict[str, str]]:
    """The words that no Python file has, and the digests of `files`. Of an archive without Python code nothing is said."""
    left, digests, num_files = set(words), {}, 0
    for name, text in python_texts(archive):
        num_files += 1
        left -= {word for word in left if word.encode() in text}
        path = name.removeprefix("src/")
        if path in files:
            digests[path] = hashlib.sha256(text).hexdigest()
    return (sorted(left) if num_files > 1 else []), dict(sorted(digests.items()))


def weight(file: dict) -> tuple[int, int]:
    """The wheel for every platform first, then the sdist, then the smallest."""
    name = file["filename"]
    return (0 if name.endswith("none-any.whl") else 1 if name.endswith(".tar.gz") else 2), file.get("size") or 0


def older_files(upstream: dict) -> dict[str, dict]:
    """Version -> the file to read, of each release on the index that is older than the oldest pin."""
    project = upstream["project"]
    oldest = min(order(pin["version"]) for pin in upstream["releases"])
    files: dict[str, dict] = {}
    for file in fetch.index_pages([project])[project]["files"]:
        version = version_of(file["filename"], project)
        key = order(version)
        if key is None or key >= oldest:
            continue
        if version not in files or weight(file) < weight(files[version]):
            files[version] = file
    return dict(sorted(files.items(), key=lambda one: order(one[0])))


def rows_of(upstream: dict, named: list[dict]) -> list[dict]:
    words = {word for use in named for word in use["code_words"]}
    files = {file for use in named for file in use["files"]}
    rows = []
    for version, file in older_files(upstream).items():
        sha256 = file["hashes"]["sha256"]
        without, digests = [], {}
        if (file.get("size") or 0) <= MAX_BYTES:
            archive = fetch.fetch_file(upstream["project"], file["filename"], sha256, file["url"])
            without, digests = read_archive(archive, words, files)
        rows.append({"version": version, "file": file["filename"], "sha256": sha256, "without": without, "files": digests})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("upstream", nargs="*")
    names = parser.parse_args().upstream
    pins = json.loads((ROOT / "env" / "pins.json").read_text("utf-8"))["upstreams"]
    table = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    named = uses()
    for name in names or sorted(named):
        if name not in named:
            parser.error(f"{name}: no manifest names code_words for it")
        try:
            table[name] = rows_of(pins[name], named[name])
        except fetch.FetchError as error:
            print(f"older_releases: {error}", file=sys.stderr)
            return error.code
        print(f"{name}: {len(table[name])} older releases, {sum(not row['without'] for row in table[name])} of which nothing is said")
    TABLE.write_text(json_rows.text_of(table) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
