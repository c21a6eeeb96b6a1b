"""Every command that README.md shows, in the words that a reader pastes.

The program itself checks the words: an option that does not exist is added at their end, and has to be the only thing that the
program complains of, because every other word, value and required option is checked before unknown options are. Then the command
runs, as pasted, in a copy of the repository with a ledger and a cache of its own; what takes minutes, a GPU or a network runs with
--plan where the program has it, and is only parsed where it has not.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT, complaint_of, with_unknown_option
from goodput_test import report

Done = subprocess.CompletedProcess[str]
SLUG = "liger_flce_none_bwd"
PROGRAM_WORDS = ("./patchbench", "patchbench", "/abs/patchbench")
STARTS = (*PROGRAM_WORDS, "./run-tests")
BEFORE = ("env/wheels.sh", "pip")  # what a reader runs before there is a program: env/try_wheels.sh tries it
# What a reader puts in the place of a word in capitals; files of these names are in the folder where the commands run.
PLACEHOLDERS = {
    "SLUG": SLUG,
    "A": SLUG,
    "B": "sparse_mla_dims",
    "VENV": "venv",
    "VERSION": "0.8.0",
    "DIR": "a-new-folder",
    "SRC": "compile-cache",
    "DST": "other-compile-cache",
    "FILE": "issue.md",
    "LOCK": "uv.lock",
    "LOG": "train.log",
    "PATH": "step.py",
    "RUNS": "runs",
    "RULE": "allocator",
    "BEFORE.json": "BEFORE.json",
    "AFTER.json": "AFTER.json",
    "RECORD": "record",
    "DATE": "2026-11-01",
}
# Commands that are not run as they are, by their first words, with the reason.
PARSED_ONLY = {
    "claim": "runs subjects",
    "env pins": "asks the index, or reads every archive in the cache",
    "env selftest": "runs subjects",
    "explore": "needs torch",
    "job capture-check": "needs torch",
    "ledger replay": "runs subjects",
    "patch check": "goes through every release",
    "patch rebase": "goes through every release",
    "serve": "answers until it is ended",
    "stage": "copies the reproducers",
    "validate": "runs subjects",
}
PLANNED = ("reproduce", "sweep", "window")
# These exit with 1 when they find what they look for.
FINDS = ("job env", "job triage", "scan", "status due")


@dataclasses.dataclass(frozen=True)
class Shown:
    """One command of the page and the line it starts on."""

    line: int
    text: str


def shown_commands(page: str) -> list[Shown]:
    """Every command line of a fenced block that has commands, and every inline code that starts or holds the program."""
    found, prose, block = [], [], None
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            if block is None:
                block = []
                continue
            if any(shown.text.split()[0] in STARTS for shown in block):
                found += [shown for shown in block if shown.text.split()[0] not in BEFORE]
            block = None
        elif block is None:
            prose.append((number, line))
        elif line.strip():
            block.append(Shown(number, line))
    text, starts = "", []
    for number, line in prose:
        starts.append((len(text), number))
        text += line + "\n"
    for code in re.finditer(r"`([^`]+)`", text):
        words = code[1].split()
        if len(words) > 1 and any(word in PROGRAM_WORDS for word in words):
            found.append(Shown(max(number for at, number in starts if at <= code.start()), " ".join(words)))
    return found


def variants(text: str) -> list[list[str]]:
    """The words of a command, once for each choice that it shows: `[may be left out]`, `A,B`, `LOG...`."""
    choices = [(part[1:-1], "") if part.startswith("[") else (part,) for part in re.split(r"(\[[^\]]*\])", text)]
    out = []
    for chosen in itertools.product(*choices):
        words = shlex.split("".join(chosen), comments=True)
        out.append(list(itertools.chain(*map(filled, words))))
    return out


def filled(word: str) -> list[str]:
    """A word's values; two values for a word that ends in `...`."""
    if word.endswith("..."):
        return filled(word[:-3]) * 2
    names = [word] if word in PLACEHOLDERS else word.split(",")
    if not all(re.fullmatch(r"[A-Z][A-Z_]*(\.json)?", name) for name in names):
        return [word]
    assert set(names) <= set(PLACEHOLDERS), f"{word}: say in PLACEHOLDERS what a reader writes here"
    return [",".join(PLACEHOLDERS[name] for name in names)]


COMMANDS = [(shown, words) for shown in shown_commands((ROOT / "README.md").read_text()) for words in variants(shown.text)]
OF_PROGRAM = [(shown, words) for shown, words in COMMANDS if words[0] != "./run-tests"]
IDS = [f"{shown.line}:{' '.join(words)[:70]}" for shown, words in OF_PROGRAM]


def arguments(words: list[str]) -> list[str]:
    """What the program is given of a command line such as `git bisect run /abs/patchbench reproduce …`."""
    return words[next(i for i, word in enumerate(words) if word in PROGRAM_WORDS) + 1 :]


@functools.cache
def command_names() -> list[str]:
    shown = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout.partition("Subcommands:\n")[2]
    return re.findall(r"^  (\S+)", shown.partition("\n\n")[0], re.M)


def install_liger(site: Path) -> None:
    """A release that packs ask about, as far as `scan` looks."""
    (site / "liger_kernel-0.8.0.dist-info").mkdir(parents=True)
    (site / "liger_kernel-0.8.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: liger-kernel\nVersion: 0.8.0\n\n")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository whose launcher starts the program that is built, and the files that the commands name."""
    desk = tmp_path_factory.mktemp("readme")
    for name in ("env", "mitigations", "packs", "patches", "repro", "reports", "tests"):
        shutil.copytree(ROOT / name, desk / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "patchbench", desk)
    shutil.copy(ROOT / "README.md", desk)
    for name, script in {
        "env/bootstrap.sh": "exit 0",
        "env/build.sh": f"echo '{PROGRAM.parents[1]}'",
        # No base image is built for this cache.
        "bin/podman": "exit 1",
        "bin/docker": "exit 1",
    }.items():
        (desk / name).parent.mkdir(exist_ok=True)
        (desk / name).unlink(missing_ok=True)
        (desk / name).write_text(f"#!/bin/sh\n{script}\n")
        (desk / name).chmod(0o755)
    install_liger(desk / "venv/lib/python3.12/site-packages")
    (desk / "my.diff").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    (desk / "issue.md").write_text("A page without a number.\n")
    (desk / "train.log").write_text("step 1\n")
    (desk / "uv.lock").write_text('[[package]]\nname = "liger-kernel"\nversion = "0.8.0"\n')
    (desk / "runs/run-20260131_120000-k3v9/files").mkdir(parents=True)
    (desk / "runs/run-20260131_120000-k3v9/files/requirements.txt").write_text("liger-kernel==0.8.0\n")
    shutil.copytree(ROOT / "runner/python", desk / "runner/python")
    (desk / "step.py").write_text("print(1)\n")
    (desk / "compile-cache").mkdir()
    (desk / "BEFORE.json").write_text(json.dumps(report(1)))
    (desk / "AFTER.json").write_text(json.dumps(report(2, 0.8)))
    return desk


@pytest.fixture(scope="module")
def environment(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Releases and wheels from the cache of this machine; everything that is written goes elsewhere."""
    state = tmp_path_factory.mktemp("state")
    theirs = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench"
    (state / "cache/patchbench").mkdir(parents=True)
    for name in ("env", "files"):
        if (theirs / name).exists():
            (state / "cache/patchbench" / name).symlink_to(theirs / name)
    ours = {"XDG_CACHE_HOME": state / "cache", "XDG_STATE_HOME": state / "state", "PATCHBENCH_LEDGER": state / "ledger.db"}
    ours = os.environ | {name: str(path) for name, path in ours.items()} | {"PATH": f"{desk}/bin:{os.environ['PATH']}"}
    # A reader has run something before.
    done = start(["ledger", "import", str(next((desk / "reports/evidence").glob("*/*.jsonl")))], desk, ours)
    assert done.returncode == 0, done.stderr
    return ours


def start(words: list[str], desk: Path, environment: dict[str, str]) -> Done:
    return subprocess.run(
        ["./patchbench", *words], cwd=desk, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


def complaint(words: list[str], desk: Path, environment: dict[str, str]) -> str:
    """What the program says of the words and an option that it does not have; "" if it names that option alone."""
    done = start(with_unknown_option(words), desk, environment)
    assert done.returncode == (200 if "--bisect" in words else 2), done
    return complaint_of(done)


def test_the_page_shows_commands() -> None:
    assert len(OF_PROGRAM) > 20 and any(words[0] == "./run-tests" for _, words in COMMANDS)
    assert os.access(ROOT / "run-tests", os.X_OK) and os.access(ROOT / "env/wheels.sh", os.X_OK)
    assert all(words[0] in STARTS or any(word in PROGRAM_WORDS for word in words) for _, words in COMMANDS)
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
    assert subprocess.run(["bash", "-n", ROOT / "run-tests", ROOT / "patchbench"]).returncode == 0


@pytest.mark.parametrize("wrong", [
    ["new", "my_bug", "--number", "20", "liger-kernel"],
    ["new", "my_bug", "--number", "twenty", "--title", "t", "liger-kernel"],
    ["reproduce", SLUG, "--subjct", "patched"],
    ["reproduce", SLUG, "liger-kernl@0.8.5"],
    ["validate", SLUG, "0.8.0", "0.8.1", "0.8.2"],
    ["window", SLUG, "0.8.5"],
    ["stage", SLUG, "liger-kernl@0.8.5", "DIR"],
    ["list", "|", "show", SLUG],
    ["show"],
    ["patch", "aply", SLUG],
    ["export", "--format", "ovs"],
], ids=" ".join)  # fmt: skip
def test_wrong_words_are_seen(wrong: list[str], desk: Path, environment: dict[str, str]) -> None:
    assert complaint(wrong, desk, environment)


@pytest.mark.parametrize(("shown", "words"), OF_PROGRAM, ids=IDS)
def test_the_program_takes_the_words(shown: Shown, words: list[str], desk: Path, environment: dict[str, str]) -> None:
    given = arguments(words)
    assert "|" not in shown.text, f"README.md:{shown.line}: {shown.text}: the shell takes the bar as a pipe"
    assert given[0] in command_names(), f"README.md:{shown.line}: {shown.text}"
    assert complaint(given, desk, environment) == "", f"README.md:{shown.line}: {shown.text}"


@pytest.mark.parametrize(("shown", "words"), OF_PROGRAM, ids=IDS)
def test_the_command_does_what_is_asked(shown: Shown, words: list[str], desk: Path, environment: dict[str, str]) -> None:
    given = arguments(words)
    first = [given[0], " ".join(given[:2])]
    why = next((PARSED_ONLY[name] for name in first if name in PARSED_ONLY), "")
    if why or "path:." in given or "--python" in given:
        return
    if given[0] in PLANNED and "--plan" not in given:
        given = [*given, "--plan"]
    if given[0] in PLANNED and not (PROGRAM.parent / f"repro_{SLUG}").exists():
        pytest.skip("the reproducers are not built")
    shutil.rmtree(desk / PLACEHOLDERS["DIR"], ignore_errors=True)
    done = start(given, desk, environment | {"VIRTUAL_ENV": str(desk / "venv")})
    wanted = (0, 1) if any(name in FINDS for name in first) else (0,)
    assert done.returncode in wanted, f"README.md:{shown.line}: {' '.join(words)}\n{done.stdout[-500:]}{done.stderr}"
