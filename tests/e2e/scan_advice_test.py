"""The upgrades that `patchbench scan` advises, and the commands that it prints: both are taken at their word."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from answers import PROGRAM, ROOT
from scan_test import FLCE, LIGER, document, install, released, scan, site, uv_lock, write

PINS = {
    name: [one["version"] for one in row.get("releases", [])]
    for name, row in json.loads((ROOT / "env/pins.json").read_text())["upstreams"].items()
}
PACKAGES = {name: versions for name, versions in PINS.items() if versions}


def hits(answers: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["slug"], one["package"]) for one in answers if one["state"] == "hit"}


def test_a_release_with_another_bug_is_not_called_right(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.6.2")))
    (one,) = [row for row in document(tmp_path / "uv.lock")[1]["answers"] if row["slug"] == LIGER]
    upgrade = one["upgrade"]
    assert one["right_release"] == "" and upgrade["cures"] == [LIGER] and upgrade["brings"] == ["liger_flce_frozen_hidden"]
    said = " ".join(scan(tmp_path / "uv.lock").stdout.split())
    assert f"{upgrade['release']} cures {LIGER}, brings liger_flce_frozen_hidden" in said


def test_an_upgrade_that_cures_comes_before_a_mitigation(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("deepspeed", "0.18.2")))
    found = document(tmp_path / "uv.lock", "--pack", "zero2_grad_accumulation")[1]
    (one,) = found["answers"]
    assert one["acts"] and one["right_release"] and found["command"]
    assert f"next: pip install 'deepspeed=={one['right_release']}'\n" in scan(tmp_path / "uv.lock").stdout
    assert one["right_release"] in PINS["deepspeed"]


@pytest.mark.parametrize("start", range(0, max(map(len, PACKAGES.values())), 2))
def test_the_advised_pins_show_no_hit_that_was_not_announced(tmp_path: Path, start: int) -> None:
    """Every release of every upstream, in locks that hold one of each."""
    pins = {name: versions[start % len(versions)] for name, versions in PACKAGES.items()}
    (tmp_path / "uv.lock").write_text(uv_lock(*pins.items()))
    before = document(tmp_path / "uv.lock")[1]["answers"]
    announced = set()
    for one in before:
        if one["state"] != "hit":
            continue
        upgrade = one["upgrade"] or {"release": pins[one["package"]], "cures": [], "keeps": [one["slug"]], "brings": []}
        assert one["right_release"] in ("", upgrade["release"])
        announced |= {(slug, one["package"]) for slug in upgrade["keeps"]} | {(slug, None) for slug in upgrade["brings"]}
        pins[one["package"]] = upgrade["release"]
    (tmp_path / "uv.lock").write_text(uv_lock(*pins.items()))
    after = hits(document(tmp_path / "uv.lock")[1]["answers"])
    assert {hit for hit in after if hit not in announced and (hit[0], None) not in announced} == set()


def commands(found: subprocess.CompletedProcess[str], answers: list[dict[str, Any]]) -> set[str]:
    """What a run says to do next, on its last line and of each answer."""
    last = re.search(r"^next: (.*)$", found.stdout, re.MULTILINE)
    assert last, found.stdout
    return {last[1], *(one["next"] for one in answers if one["next"])}


def inputs(folder: Path) -> dict[str, Path]:
    """One input of each kind of answer."""
    bad = released("liger-kernel", "0.8.0")
    changed = bad | {FLCE: bad[FLCE] + b"#"}
    found = {"a local version": install(folder / "local venv", "liger-kernel", "0.8.0+abc")}
    found["changed files"] = install(folder / "changed", "liger-kernel", "0.8.0", changed)
    for venv in found.values():
        (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (venv / "bin").mkdir()
        (venv / "bin/python").symlink_to("/usr/bin/python3")
    found["a vendored copy"] = install(folder / "vendored", "numpy", "1.0")
    write(site(found["a vendored copy"]) / "other/_vendor", changed)
    found["a folder of sources"] = folder / "a checkout"
    write(found["a folder of sources"], changed)
    for name, pins in {"a hit": [("liger-kernel", "0.8.0")], "an unmeasured release": [("liger-kernel", "0.0.1")],
                       "a second upstream": [("tilelang", "0.1.9"), ("megatron-core", "0.18.2+x")], "nothing": [("numpy", "1.0")],
                       "a right release": [("deepspeed", "0.18.2")]}.items():  # fmt: skip
        found[name] = folder / f"{name.replace(' ', '_')}.lock"
        found[name].write_text(uv_lock(*pins))
    found["not pinned"] = folder / "r.txt"
    found["not pinned"].write_text("numpy\n")
    return found


def test_every_command_that_is_printed_is_accepted(tmp_path: Path) -> None:
    told: dict[str, str] = {}
    for name, path in inputs(tmp_path).items():
        for command in commands(scan(path, cwd=tmp_path), document(path, cwd=tmp_path)[1]["answers"]):
            told[command] = name
    assert len(told) > 8, told
    for command, name in told.items():
        words = shlex.split(command)
        if words[:2] == ["pip", "install"]:
            assert all(version in PINS[package] for package, version in (word.split("==") for word in words[2:])), command
        elif words[0].startswith("PATCHBENCH_MITIGATE="):
            assert words[1:] == ["python", "-m", "patchbench_mitigations", "train.py"], command
            assert all((ROOT / f"mitigations/patchbench_mitigations/{slug}.py").exists() for slug in words[0].partition("=")[2].split(","))
        else:
            assert words[0] == "patchbench", command
            plan = ["--plan"] if words[1] == "reproduce" else []
            done = subprocess.run([PROGRAM, *words[1:], *plan], capture_output=True, text=True, cwd=tmp_path, check=False)
            assert done.returncode in (0, 1, 3) and "unknown" not in done.stderr, (name, command, done.stderr)
