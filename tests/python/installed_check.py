"""Run where `patchbench` is installed: a lock's hits are the same in every format, and the pytest plugin acts on them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RELEASES = (("liger-kernel", "0.8.0"), ("transformer-engine", "2.20.2"), ("megatron-core", "0.19.2"), ("mamba-ssm", "2.3.1"))
UPGRADE = "right release: 0.8.5 cures liger_flce_none_bwd, keeps liger_flce_frozen_hidden"
ADVICE = ("when: ", UPGRADE, "PATCHBENCH_MITIGATE=liger_flce_none_bwd", "record: ")
PLUGIN = """
import pytest

@pytest.mark.upstream_hit("liger_flce_none_bwd")
def test_of_a_package_that_is_not_here():
    assert True
"""
Hits = set[tuple[str, str, str]]


def lock_of(*releases: tuple[str, str]) -> str:
    """A lock as uv writes it."""
    return "".join(
        f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "https://index.example/simple" }}\n\n'
        for name, version in releases
    )


def scanned(program: str, lock: Path, *words: str) -> str:
    """What a scan prints, which finds hits."""
    env = {**os.environ, "PATCHBENCH_LEDGER": "/nowhere/ledger.db"}
    done = subprocess.run([program, "scan", str(lock), *words], stdout=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 1, done.stdout
    return done.stdout


def hits_by_format(program: str, lock: Path) -> dict[str, Hits]:
    """Format -> (slug, package, version) of each hit."""
    packs = json.loads(subprocess.run([program, "--json", "list"], stdout=subprocess.PIPE, check=True).stdout)
    slugs = {f"{pack['number']:02}": pack["slug"] for pack in packs}

    def of_product(name: str, product: str) -> tuple[str, str, str]:
        package, _, version = product[len("pkg:pypi/") :].partition("@")
        return slugs[name.split("-")[1]], package, version

    def document(name: str) -> dict:
        return json.loads(scanned(program, lock, "--format", name))

    def found(pattern: str, text: str) -> Hits:
        return set(re.findall(pattern, text, re.MULTILINE))

    rows = [line.split("\t") for line in scanned(program, lock, "--plain").splitlines()]
    errors = [one["message"]["text"] for one in document("sarif")["runs"][0]["results"] if one["level"] == "error"]
    page = scanned(program, lock, "--format", "markdown").replace("\\", "")
    return {
        "text": found(r"^hit: (\w+), (\S+) (\S+) \(", scanned(program, lock)),
        "plain": {(row[0], *row[1].split(" ")) for row in rows if row[2].startswith("hit")},
        "json": {(one["slug"], one["package"], one["version"]) for one in document("json")["answers"] if one["state"] == "hit"},
        "sarif": found(r"^(\w+), (\S+) (\S+): ", "\n".join(errors)),
        "openvex": {
            of_product(one["vulnerability"]["name"], one["products"][0]["@id"])
            for one in document("openvex")["statements"]
            if one["status"] == "affected"
        },
        "cyclonedx": {
            of_product(one["id"], one["affects"][0]["ref"])
            for one in document("cyclonedx")["vulnerabilities"]
            if one["analysis"]["state"] == "exploitable"
        },
        "markdown": found(r"^\| (\w+) \| (\S+) (\S+) \| hit: ", page),
        "github": found(r"^::error .*?::(\w+), (\S+) (\S+): ", scanned(program, lock, "--format", "github")),
    }


def check_formats(program: str, folder: Path) -> Hits:
    """The hits of RELEASES, which every format must name."""
    (folder / "uv.lock").write_text(lock_of(*RELEASES))
    said = scanned(program, folder / "uv.lock")
    assert all(words in said for words in ADVICE), said
    hits = hits_by_format(program, folder / "uv.lock")
    assert len(hits["json"]) >= 3 and len({frozenset(of_format) for of_format in hits.values()}) == 1, hits
    return hits["json"]


def check_speed(program: str, folder: Path) -> dict[str, float]:
    """Seconds of a scan of 300 packages, in a lock and in a venv: the best of five, each the lesser of wall and processor time."""
    packages = [*((f"package-{i}", "1.0") for i in range(298)), ("liger-kernel", "0.8.0"), ("tilelang", "0.1.9")]
    (folder / "uv.lock").write_text(lock_of(*packages))
    for name, version in packages:
        info = folder / f"venv/lib/python3.12/site-packages/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n")
    best = {}
    for name in ("uv.lock", "venv"):
        scanned(program, folder / name)  # the verdict table is made once
        took = []
        for _ in range(5):
            before, start = os.times(), time.monotonic()
            scanned(program, folder / name)
            wall, after = time.monotonic() - start, os.times()
            took.append(min(wall, after.children_user + after.children_system - before.children_user - before.children_system))
        best[name] = min(took)
    assert max(best.values()) < 0.3, best
    return best


def check_plugin(folder: Path) -> None:
    """The plugin is found by its entry point: the mark is known, and --patchbench-scan scans."""
    (folder / "it_test.py").write_text(PLUGIN)
    words = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "--patchbench-scan", "-p", "no:cacheprovider", "it_test.py"]
    done = subprocess.run(words, cwd=str(folder), stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "no installed release is known to be hit" in done.stdout, done.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if sys.argv[1] == "speed":
            for name, seconds in check_speed("patchbench", Path(made)).items():
                print(f"scan_of_300_{name.replace('.', '_')}_ms {round(seconds * 1000)}")
        else:
            {"formats": lambda: check_formats("patchbench", Path(made)), "plugin": lambda: check_plugin(Path(made))}[sys.argv[1]]()
