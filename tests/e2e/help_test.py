"""The examples in each verb's --help: two at least, of words that the program takes, and they run."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT
from readme_test import (  # noqa: F401  (two are fixtures)
    FINDS,
    PARSED_ONLY,
    PLANNED,
    command_names,
    complaint,
    desk,
    environment,
    install_liger,
)

# Verbs that README's test runs and that cannot run here as an example writes them, with the reason.
NOT_RUN = PARSED_ONLY | {name: "runs subjects" for name in PLANNED} | {"patch new": "needs git and a release of the cache"}
STARTED = re.compile(r"""(?:^|[\s(&|])(?:/abs/)?patchbench ((?:'[^']*'|"[^"]*"|[^|&>)'"])*)""")


@functools.cache
def examples(verb: str) -> list[str]:
    """The command lines after "Examples" in the help of a verb."""
    said = subprocess.run([PROGRAM, verb, "--help"], capture_output=True, text=True, check=True).stdout
    lines = said.partition("\nExamples")[2].replace("\\\n", "").splitlines()
    return [line.strip() for line in lines if line.startswith("  ") and STARTED.search(line)]


def words_of(example: str) -> list[list[str]]:
    """The words of each start of the program in an example."""
    return [shlex.split(words, comments=True) for words in STARTED.findall(example)]


EXAMPLES = [(verb, example) for verb in command_names() for example in examples(verb)]


@pytest.fixture(scope="module")
def place(desk: Path) -> Path:  # noqa: F811
    """The desk of README's test with the files that the examples name."""
    shutil.copy(desk / "BEFORE.json", desk / "before.json")
    shutil.copy(desk / "AFTER.json", desk / "after.json")
    (desk / "bin/patchbench").symlink_to(desk / "patchbench")
    for folder in ("tmp", "train", ".local/share/bash-completion/completions"):
        (desk / folder).mkdir(parents=True)
    shutil.copy(ROOT / "reports/evidence/te_fused_ce/cpu-window.jsonl", desk / "records.jsonl")
    install_liger(desk / "mnt/image/usr/lib/python3/dist-packages")
    shutil.copy(desk / "step.py", desk / "train")
    return desk


def commands_below(*path: str) -> list[tuple[str, ...]]:
    """Every command that a help shows, with the words to it."""
    names = re.findall(r"^  ([a-z][\w-]*) ", help_of(*path).partition("\nSubcommands:\n")[2].partition("\n\n")[0], re.M)
    return [path, *(command for name in names for command in commands_below(*path, name))]


@functools.cache
def help_of(*words: str) -> str:
    return subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=True).stdout


def test_the_grammar_is_small() -> None:
    options = [option for command in commands_below() for option in re.findall(r"^  ((?:-\w,)?--[\w-]+)", help_of(*command), re.M)]
    assert len(command_names()) <= 19, command_names()
    # The last that were added: --from of bundle and patch export, serve --port and --db, scan --runs, --all, --baseline.
    assert len([option for option in options if "--help" not in option]) <= 160


def test_a_help_fits_a_screen() -> None:
    for command in commands_below():
        lines = help_of(*command).splitlines()
        assert len(lines) <= 40 and max(map(len, lines)) <= 100, (command, len(lines), max(lines, key=len))


def test_the_help_of_the_program_has_the_exit_table() -> None:
    assert re.findall(r"^  (\d)  \S", help_of(), re.M) == list("012345")


@pytest.mark.parametrize("verb", command_names())
def test_a_verb_shows_two_examples(verb: str) -> None:
    shown = examples(verb)
    assert len(shown) >= 2, shown
    assert all(any(words[0] == verb for words in words_of(example)) for example in shown if "ledger import" not in example), shown


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example[:70] for _, example in EXAMPLES])
def test_the_program_takes_the_words(verb: str, example: str, place: Path, environment: dict[str, str]) -> None:  # noqa: F811
    for words in words_of(example):
        assert complaint(words, place, environment) == "", words


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example[:70] for _, example in EXAMPLES])
def test_an_example_runs(verb: str, example: str, place: Path, environment: dict[str, str]) -> None:  # noqa: F811
    started = words_of(example)
    names = {name for words in started for name in (words[0], " ".join(words[:2]))}
    if names & NOT_RUN.keys():
        return
    here = re.sub(r"/(tmp|mnt)/", rf"{place}/\1/", example)
    env = environment | {"HOME": str(place), "VIRTUAL_ENV": str(place / "venv")}
    done = subprocess.run(["bash", "-c", here], cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    may_find = names & set(FINDS) or "--since" in example
    assert done.returncode in ((0, 1) if may_find else (0,)), done.stdout[-500:] + done.stderr
