""".ci/run on a tree of stubs: each step has a budget, a step that takes more than four times its budget fails, the last line counts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GATE = (ROOT / ".ci/run").read_text()
BUDGETS = {name: int(seconds) for name, seconds in re.findall(r"^  \[(\w+)\]=(\d+)$", GATE, re.MULTILINE)}
OF_RUN_TESTS = ("bootstrap", "build", "image", "ctest", "pytest")


class Tree:
    """A repository whose scripts and tools do nothing; `scripts` changes what one does, `budgets` what a step may take."""

    def __init__(self, folder: Path):
        self.folder, self.budgets = folder, {}
        steps = "".join(f"echo run-tests: step {name} took 1 s >&2\n" for name in OF_RUN_TESTS)
        self.scripts = {
            "run-tests": steps + "echo 7 passed, 0 failed, 2 skipped",
            "env/bootstrap.sh": "",
            "env/build.sh": "",
            "env/release.sh": "",
            "env/try_debian.sh": "",
            "env/try_wheels.sh": "",
            "env/wheels.sh": "",
            "build/asan/bin/fuzz_test": "",
            "build/asan/bin/scan_fuzz_test": "",
            "bin/python3": f"echo {folder}/tools",
            "bin/cmake": "",
            "tools/clang_format/data/bin/clang-format": "",
            "tools/clang_tidy/data/bin/clang-tidy": "",
            "tools/bin/ruff": "",
        }

    def run(self) -> tuple[int, list[str]]:
        """Exit status and lines of the gate."""
        for name, script in self.scripts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        gate = GATE
        for name, seconds in self.budgets.items():
            gate = gate.replace(f"[{name}]={BUDGETS[name]}\n", f"[{name}]={seconds}\n")
        (self.folder / ".ci").mkdir()
        (self.folder / ".ci/run").write_text(gate)
        subprocess.run(["git", "init", "-q", self.folder], check=True)
        env = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder)}
        done = subprocess.run(["bash", ".ci/run"], cwd=self.folder, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_budgets_are_an_hour_at_most() -> None:
    assert set(OF_RUN_TESTS) | {"cuda", "trixie", "wheels", "fuzz", "formatters", "tidy"} == set(BUDGETS)
    assert sum(BUDGETS.values()) <= 3600
    said = re.findall(r"^ *took ([a-z]+)$", (ROOT / "run-tests").read_text(), re.MULTILINE)
    assert tuple(said) == OF_RUN_TESTS


def test_each_step_says_its_seconds_and_its_budget(tree: Tree) -> None:
    status, lines = tree.run()
    own = len([line for line in lines if line.startswith("ok: ")])
    assert status == 0 and lines[-1] == f"{7 + own} passed, 0 failed, 2 skipped" and own >= 3
    for name in OF_RUN_TESTS:
        assert f"ran: {name} (1 s, budget {BUDGETS[name]} s)" in lines
    assert any(re.fullmatch(rf"ok: trixie \(\d+ s, budget {BUDGETS['trixie']} s\)", line) for line in lines)


def test_a_step_of_the_tests_over_four_times_its_budget_fails(tree: Tree) -> None:
    seconds = 4 * BUDGETS["pytest"] + 1
    tree.scripts["run-tests"] = f"echo run-tests: step pytest took {seconds} s\necho 7 passed, 0 failed, 2 skipped"
    status, lines = tree.run()
    assert status == 1 and "FAILED: pytest took more than four times its budget" in lines and " 1 failed," in lines[-1]


def test_a_step_of_the_gate_over_four_times_its_budget_fails(tree: Tree) -> None:
    tree.budgets["fuzz"] = -1
    status, lines = tree.run()
    assert status == 1 and "FAILED: fuzz took more than four times its budget" in lines and " 1 failed," in lines[-1]


def test_a_step_that_no_budget_names_fails(tree: Tree) -> None:
    tree.scripts["run-tests"] += "\necho run-tests: step other took 1 s\necho 7 passed, 0 failed, 2 skipped"
    status, lines = tree.run()
    assert status == 1 and "FAILED: other took more than four times its budget" in lines


@pytest.mark.parametrize(("code", "status", "counts"), [(1, 1, "1 failed, 2 skipped"), (4, 0, "0 failed, 3 skipped")])
def test_a_step_that_cannot_be_done_here_is_skipped(tree: Tree, code: int, status: int, counts: str) -> None:
    tree.scripts["env/try_debian.sh"] = f"exit {code}"
    got, lines = tree.run()
    assert got == status and lines[-1].endswith(counts)


def test_tests_that_end_without_their_counts_fail(tree: Tree) -> None:
    tree.scripts["run-tests"] = "echo ended"
    status, lines = tree.run()
    assert status == 1 and " 1 failed," in lines[-1]


def test_another_debian_needs_root(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", ROOT / "env/try_debian.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 4 and "only root" in done.stderr and not (tmp_path / ".cache").exists()
