"""A git pin out of reach ends no run over all packs: the others are answered, and it is named at the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from answers import BIN, ROOT

# Every answer of a reproducer, without an upstream: right where it must be right, red where it must be red.
REPRODUCER = """#!{python}
import json, os, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
document = json.load(open(words["--cases"]))
subject, digest = words["--subject"], "0" * 64
if "TOY_GATE" in os.environ:  # a subject that takes as long as a test wants
    open(os.environ["TOY_GATE"]).read()
names = [f"op_mutant:{{i}}" for i in range(20)] if "--corrupt" in words else [subject]
with os.fdopen(int(words["--records-fd"]), "w") as out:
    for case in document["cases"]:
        for name in names:
            is_red = name != "plain" and (name != "upstream" or case["role"] == "trigger")
            seen = {{"seen": "present", "class": "wrong"}} if is_red else {{"seen": "absent"}}
            row = {{"slug": document["slug"], "subject": name, "case": case["name"], "role": case["role"], "device": "cpu", "seed": 1,
                   "measures": [], "inputs_sha256": digest, "outputs_sha256": digest}}
            out.write(json.dumps(row | seen) + "\\n")
"""


def pack(slug: str, number: int, upstreams: list[dict]) -> dict:
    """A manifest of one trigger and one control."""
    case = {"judged_on": ["cpu"], "axes": {}}
    catalog = {"surface": "a", "family": "b", "backend_contract": "c", "role": "donor"}
    waived = ("patches", "mitigations", "tests", "reports")
    return {
        "slug": slug, "number": number, "title": "a toy", "kind": "bug", "upstreams": upstreams,
        "classes": [{"name": "wrong", "meaning": "is wrong"}],
        "cases": [{"name": "red", "role": "trigger", **case}, {"name": "right", "role": "control", **case}],
        "environments": ["none"], "subjects": ["upstream"],
        "scope": [{"claim": "is wrong", "of": "ours", "architecture": "any", "verdict": "claimed"}],
        "waivers": [{"cell": cell, "reason": "a toy of a test"} for cell in waived],
        "mitigation": {"modes": ["hook"], "needs": [], "exactness": "a toy"},
        "filing": {"kind": "none", "repositories": ["owner/thing"], "thread": "", "group": "", "order": 0, "depends_on": [], "risk": "x"},
        "lifecycle": {"admission": "a toy", "keep": "drop", "retire_when": "never", "review_on": "2027-01-01", "catalog": catalog},
    }  # fmt: skip


@pytest.fixture
def toys(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A program over two toy packs, and its environment: `one` of a git commit that cannot be fetched, `two` of a release."""
    root, cache, bin_folder = tmp_path / "root", tmp_path / "cache/patchbench", tmp_path / "bin"
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/__init__.py", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (cache / "files" / digest).mkdir(parents=True)
    shutil.copy(wheel, cache / "files" / digest)
    shared = {"package": "toy", "license": "MIT", "git_prefix": "", "environment": "none"}
    release = {"version": "1.0", "date": "2026-01-01", "file": wheel.name, "sha256": digest}
    commit = {"commit": "ab" * 20, "date": "2026-01-01", "note": "a head"}
    pins = {
        "gone": shared | {"project": "gone", "url": "https://gone.invalid/gone", "releases": [], "commits": [commit]},
        "toy": shared | {"project": "toy", "url": "https://toy.invalid/toy", "releases": [release], "commits": []},
    }
    red = {"one": ("gone", "git:" + "ab" * 20), "two": ("toy", "1.0")}
    for number, (slug, (name, pin)) in enumerate(red.items(), 1):
        (root / f"packs/{slug}").mkdir(parents=True)
        upstream = {"name": name, "red_pin": pin, "files": ["toy/__init__.py"]}
        (root / f"packs/{slug}/manifest.json").write_text(json.dumps(pack(slug, number, [upstream])))
        (root / f"repro/{slug}").mkdir(parents=True)
    shutil.copy(ROOT / "packs/manifest.schema.json", root / "packs")
    shutil.copytree(ROOT / "repro/harness", root / "repro/harness")
    (root / "env/locks").mkdir(parents=True)
    (root / "env/locks/none.txt").write_text("# no wheel\n")
    shutil.copy(ROOT / "env/fetch.py", root / "env")
    (root / "env/pins.json").write_text(json.dumps({"upstreams": pins}))
    bin_folder.mkdir()
    for name in ("patchbench", "patchbench-sandbox"):
        shutil.copy(BIN / name, bin_folder)
    for slug in red:
        (bin_folder / f"repro_{slug}").write_text(REPRODUCER.format(python=sys.executable))
        (bin_folder / f"repro_{slug}").chmod(0o755)
    (tmp_path / ".gitconfig").write_text('[url "file:///nowhere/"]\n\tinsteadOf = https://gone.invalid/\n')
    here = {"PATCHBENCH_ROOT": str(root), "PATCHBENCH_LEDGER": str(tmp_path / "ledger.db"), "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(cache.parent)}  # fmt: skip
    return bin_folder / "patchbench", os.environ | here


@pytest.fixture
def run(toys: tuple[Path, dict[str, str]]):
    """Runs that program."""
    program, here = toys

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        command = [program, *words, "--device", "cpu", "--sandbox", "process"]
        return subprocess.run(command, env=here, capture_output=True, text=True, timeout=120)

    return start


def test_reproduce_all_goes_on_and_names_it_at_the_end(run) -> None:
    done = run("reproduce", "--all")
    assert done.returncode == 0, done.stderr
    assert "BUG_REPRODUCED(wrong)" in done.stdout
    end = " ".join(done.stdout.split("\nnot run: 1\n")[1].split())
    assert end.startswith("one on gone: NOT_RUN:upstream_unreachable: https://gone.invalid/gone"), done.stdout
    sentinels = {one["slug"]: one["sentinel"] for one in json.loads(run("--json", "reproduce", "--all").stdout)}
    assert sentinels == {"one": "NOT_RUN:upstream_unreachable", "two": "BUG_REPRODUCED(wrong)"}


def test_reproduce_all_for_git_bisect_says_hit_before_unknown(run, tmp_path: Path) -> None:
    assert run("reproduce", "--all", "--bisect").returncode == 1
    shutil.rmtree(tmp_path / "root/packs/two")
    assert run("reproduce", "--all", "--bisect").returncode == 125


def test_window_all_goes_on_and_names_it_at_the_end(run) -> None:
    done = run("window", "--all")
    assert done.returncode == 0, done.stderr
    assert "wrong: first bad 1.0, last bad 1.0" in done.stdout
    end = " ".join(done.stdout.split("\nnot run: 1\n")[1].split())
    assert end.startswith(f"one on gone git:{'ab' * 20}: NOT_RUN:upstream_unreachable"), done.stdout
    one, two = json.loads(run("--json", "window", "--all").stdout)
    assert [r["state"] for r in one["releases"]] == ["not_measured"] and one["not_run"][0]["sentinel"] == "NOT_RUN:upstream_unreachable"
    assert [r["state"] for r in two["releases"]] == ["wrong"] and two["not_run"] == []


def test_one_pack_whose_pin_is_out_of_reach_is_not_runnable(run) -> None:
    assert run("reproduce", "one").returncode == 4
    assert run("reproduce", "one", "--bisect").returncode == 200
