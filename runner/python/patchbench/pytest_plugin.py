"""pytest: a mark for tests that fail because of an upstream bug, and an option that scans the environment.

    @pytest.mark.upstream_hit("liger_flce_none_bwd")
    def test_gradients_of_each_row(): ...

While the installed release is hit, the test is expected to fail, and a pass is a failure (strict=False allows it). Once the
installed release is known not to be hit, the test fails at once and says so: the mark, and what works around the bug, can go.
Where nothing is known of the release the test may do either. Where the package is not installed the mark does nothing.
"""

from __future__ import annotations

import functools

import pytest

from patchbench.environment_scan import Answer, Scan, State, scan
from patchbench.program import PatchbenchError
from patchbench.status import packs

# What is kept on an item and on the configuration. pytest's own stash is not in pytest 6, and a plugin that cannot be imported ends
# every session there.
_GONE, _LINES = "patchbench_gone", "patchbench_lines"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--patchbench-scan`."""
    group = parser.getgroup("patchbench")
    group.addoption("--patchbench-scan", action="store_true", help="fail the session if the environment is hit by a known upstream bug")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark."""
    line = "upstream_hit(slug, strict=True): an expected failure while the installed release is hit, a failure once it is not"
    config.addinivalue_line("markers", line)


@functools.lru_cache(maxsize=1)
def _scanned() -> Scan:
    return scan()


@functools.lru_cache(maxsize=1)
def _slugs() -> tuple[str, ...]:
    return tuple(pack.slug for pack in packs())


def _release(answer: Answer) -> str:
    return f"{answer.package} {answer.version}".strip()


def _slug_of(item: pytest.Item, mark: pytest.Mark) -> str:
    if len(mark.args) != 1 or set(mark.kwargs) - {"strict"}:
        raise pytest.UsageError(f"{item.nodeid}: upstream_hit takes one slug, and strict=")
    slug = mark.args[0]
    if slug not in _slugs():
        raise pytest.UsageError(f"{item.nodeid}: no pack {slug!r}; one of: {', '.join(_slugs())}")
    return str(slug)


def _apply(item: pytest.Item, mark: pytest.Mark) -> None:
    """Turns the mark into what pytest knows: an expected failure, or a failure with its reason."""
    slug = _slug_of(item, mark)
    answers = [a for a in _scanned().of(slug) if a.state is not State.NOT_INSTALLED]
    hits = [a for a in answers if a.state is State.HIT]
    if hits:
        reason = f"{slug}: {_release(hits[0])} is hit: {hits[0].why}"
        item.add_marker(pytest.mark.xfail(reason=reason, strict=mark.kwargs.get("strict", True)))
    elif answers and all(a.state is State.NOT_HIT for a in answers):
        why = f"{slug}: {_release(answers[0])} is not hit any more ({answers[0].why}); take the mark upstream_hit away"
        setattr(item, _GONE, why)
    elif answers:
        item.add_marker(pytest.mark.xfail(reason=f"{slug}: nothing is known of {_release(answers[0])}", strict=False))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Applies every mark. A slug that no pack has ends the session as a usage error."""
    for item in items:
        for mark in item.iter_markers("upstream_hit"):
            try:
                _apply(item, mark)
            except PatchbenchError as e:
                raise pytest.UsageError(f"{item.nodeid}: patchbench: {e}") from e


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a test whose bug is gone."""
    gone = getattr(item, _GONE, None)
    if gone is not None:
        pytest.fail(gone, pytrace=False)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With `--patchbench-scan`: a session without another failure ends red if the environment is hit."""
    config = session.config
    # A worker of pytest-xdist has no say: its controller scans once.
    if not config.getoption("--patchbench-scan") or hasattr(config, "workerinput"):
        return
    try:
        found = _scanned()
        lines = [f"{a.slug}: {_release(a)} is hit: {a.why}" for a in found.hits]
    except PatchbenchError as e:
        lines = [f"the scan failed: {e}"]
    setattr(config, _LINES, lines)
    if lines and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says what the scan found."""
    lines = getattr(config, _LINES, None)
    if lines is None:
        return
    terminalreporter.section("patchbench scan")
    for line in lines or ["no installed release is known to be hit"]:
        terminalreporter.write_line(line)
