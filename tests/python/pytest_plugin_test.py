"""The pytest plugin, on a program that says what the test wants: an expected failure turns into a failure once the bug is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKED = """
import pytest

@pytest.mark.upstream_hit("some_pack"{words})
def test_gradients():
    assert {holds}
"""


class Session:
    """A folder with one marked test, and a program that gives `state` as its answer about some_pack."""

    def __init__(self, folder: Path):
        self.folder, self.state, self.slug, self.words, self.holds = folder, "hit", "some_pack", "", False

    def run(self, *words: str, test: str = "") -> tuple[int, str]:
        """Exit status and output of pytest."""
        row = {"slug": self.slug, "upstream": "u", "package": "some-package", "version": "1.2", "state": self.state, "why": "wrong_sums"}
        row |= dict.fromkeys(("next", "record", "mitigation", "impact", "right_release"), "")
        scan = {"answers": [row], "command": "", "unread": []}
        packs = [{"slug": "some_pack", "number": 1, "kind": "bug", "title": "t", "upstreams": []}]
        program = self.folder / "patchbench"
        program.write_text(f"#!/bin/sh\ncase $2 in list) echo '{json.dumps(packs)}' ;; *) echo '{json.dumps(scan)}' ;; esac\n")
        program.chmod(0o755)
        (self.folder / "it_test.py").write_text(test or MARKED.format(words=self.words, holds=self.holds))
        path = os.pathsep.join([str(ROOT / "runner/python"), *sys.path])
        env = os.environ | {"PATCHBENCH_PROGRAM": str(program), "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        argv = [sys.executable, "-m", "pytest", "-p", "patchbench.pytest_plugin", "-p", "no:cacheprovider", "-rA", "it_test.py", *words]
        done = subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_a_failure_is_expected_while_the_release_is_hit(session: Session) -> None:
    status, said = session.run()
    assert status == 0 and "1 xfailed" in said and "some_pack: some-package 1.2 is hit: wrong_sums" in said


def test_a_pass_while_the_release_is_hit_is_a_failure_unless_allowed(session: Session) -> None:
    session.holds = True
    assert session.run()[0] == 1
    session.words = ", strict=False"
    status, said = session.run()
    assert status == 0 and "1 xpassed" in said


@pytest.mark.parametrize("holds", [True, False])
def test_a_mark_whose_bug_is_gone_is_a_failure(session: Session, holds: bool) -> None:
    session.state, session.holds = "not_hit", holds
    status, said = session.run()
    assert status == 1 and "some-package 1.2 is not hit any more" in said and "take the mark upstream_hit away" in said


@pytest.mark.parametrize("holds", [True, False])
def test_of_an_unknown_release_either_is_accepted(session: Session, holds: bool) -> None:
    session.state, session.holds = "unknown", holds
    status, said = session.run()
    assert status == 0 and ("1 xpassed" if holds else "1 xfailed") in said


@pytest.mark.parametrize(("holds", "wanted"), [(True, 0), (False, 1)])
def test_without_the_package_the_mark_does_nothing(session: Session, holds: bool, wanted: int) -> None:
    session.state, session.holds = "not_installed", holds
    assert session.run()[0] == wanted


def test_a_slug_that_no_pack_has_is_a_usage_error(session: Session) -> None:
    status, said = session.run(test=MARKED.format(words="", holds=True).replace("some_pack", "some_pact"))
    assert status == pytest.ExitCode.USAGE_ERROR and "no pack 'some_pact'; one of: some_pack" in said


GREEN = "def test_green():\n    pass\n"


def test_the_scan_ends_a_session_red_if_the_environment_is_hit(session: Session) -> None:
    status, said = session.run("--patchbench-scan", test=GREEN)
    assert status == 1 and "1 passed" in said and "some_pack: some-package 1.2 is hit: wrong_sums" in said
    session.state = "not_hit"
    status, said = session.run("--patchbench-scan", test=GREEN)
    assert status == 0 and "no installed release is known to be hit" in said
    session.state = "hit"
    assert session.run(test=GREEN)[0] == 0


def test_a_program_that_fails_is_no_green_session(session: Session) -> None:
    session.state = "nonsense"
    status, said = session.run("--patchbench-scan", test=GREEN)
    assert status != 0, said
