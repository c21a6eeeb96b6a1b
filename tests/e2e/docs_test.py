"""The pages of docs/ show what their commands print. With PATCHBENCH_UPDATE=1 the pages are written anew instead.

Each page is followed from top to bottom in one copy of the repository. A block whose first line is a comment that names a file is
written there. In a block `console` each line with `$ ` is run by bash; what follows is its output, standard error included, without the
program's lines of progress. `console PACKAGE==VERSION` runs with that locked release on PYTHONPATH, as after a pip
install. Digests, days, measured numbers, sizes and the sandbox depend on the machine or the run: they are not compared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from answers import BIN, ROOT
from readme_test import desk, environment

__all__ = ["desk", "environment"]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)
UPDATES = os.environ.get("PATCHBENCH_UPDATE") == "1"
PROGRESS = ("patchbench: ", "sandbox: ")
VARIES = {
    r"\b[0-9a-f]{12,64}\b": "RECORD",
    r"\b20\d\d-\d\d-\d\d\b": "DAY",
    r"\b\d(\.\d+)?e[-+]\d+\b": "NUMBER",
    r"· (podman|docker|bwrap|runc|process( \(unisolated\))?)$": "· SANDBOX",
    r"\b\d+(\.\d+)? (s|MiB|bytes|records)\b": r"AMOUNT \2",
    r" +$": "",
}


def settled(text: str) -> str:
    """The text without what depends on the machine or the run."""
    for pattern, word in VARIES.items():
        text = re.sub(pattern, word, text, flags=re.M)
    return re.sub(r" {2,}", "  ", text)


def on_path(requirement: str, folder: Path) -> str:
    """A locked release, unpacked from the cache."""
    name, _, version = requirement.partition("==")
    releases = json.loads((ROOT / "env/pins.json").read_text())["upstreams"][name]["releases"]
    (release,) = [release for release in releases if release["version"] == version]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench"
    with zipfile.ZipFile(cache / "files" / release["sha256"] / release["file"]) as wheel:
        wheel.extractall(folder / requirement)
    return str(folder / requirement)


def printed(command: str, requirement: str, folder: Path, environment: dict[str, str]) -> str:
    ours = dict(environment)
    if requirement:
        paths = [on_path(requirement, folder), str(ROOT / "mitigations"), environment.get("PYTHONPATH", "")]
        ours |= {"PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        ours.pop("PATCHBENCH_OPS_LIB", None)
    words = ["bash", "-c", f"exec 2>&1; {command}"]
    done = subprocess.run(words, cwd=folder, env=ours, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith(PROGRESS))


def followed(page: str, folder: Path, environment: dict[str, str]) -> str:
    """The page with the output that its commands give."""

    def block(found: re.Match[str]) -> str:
        kind, requirement, inside = found.groups()
        if kind != "console":
            name = inside.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(inside)
            return found[0]
        commands = [line for line in inside.splitlines() if line.startswith("$ ")]
        shown = "".join(f"{line}\n{printed(line[2:], requirement or '', folder, environment)}" for line in commands)
        return f"```console{' ' + requirement if requirement else ''}\n{shown}```"

    return BLOCK.sub(block, page)


@pytest.mark.skipif(not (BIN / "repro_liger_flce_none_bwd").exists(), reason="needs a build with reproducers")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_its_commands_print(path: Path, desk: Path, environment: dict[str, str]) -> None:  # noqa: F811
    page = path.read_text()
    now = followed(page, desk, environment)
    if UPDATES:
        path.write_text(now)
    else:
        assert settled(now) == settled(page), "to write the page anew: PATCHBENCH_UPDATE=1"


def test_there_is_a_page_for_each_of_the_four_users() -> None:
    assert [path.stem for path in PAGES] == ["am_i_hit", "keep_training", "track_packs", "validate_and_file"]
    for path in PAGES:
        assert f"docs/{path.name}" in (ROOT / "README.md").read_text(), path


def test_what_varies_is_not_compared_and_all_else_is() -> None:
    one = "x · cpu · podman\nnone  present  7.2e-01  5e-07\n3d2887b6b14a of 2026-11-24\n"
    other = "x · cpu · process (unisolated)\nnone  present  7.25e-01  4e-07\n0d2887b6b14b of 2027-01-01\n"
    assert settled(one) == settled(other)
    assert settled(one) != settled(one.replace("present", "absent")) and settled(one) != settled(one.replace("x", "y"))
