"""Which changed lines are called run, and which are named as not run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).resolve().parents[2] / "repro/harness"
SOURCE = '''"""Words."""
LIMIT = 3


def half(x):
    """Words."""
    # a comment
    if (
        x > LIMIT
    ):
        return x // 2
    for i in range(x):
        x += i
    try:
        y = 1 / x
    except ZeroDivisionError:
        y = 0
    return (
        y
        + x
    )


@triton.jit
def kernel(x):
    return x


@T.prim_func
def text(x):
    return x


if LIMIT: ONE = 1


def build(size):
    block = size // 2

    @T.prim_func
    def main(x):
        return x

    return main
'''


class Triton:
    @staticmethod
    def jit(function):
        return function


@pytest.fixture
def look(tmp_path, monkeypatch):
    """`look(lines, gaps, calls)` gives what is reported after half(x) for each x, a case each."""
    monkeypatch.syspath_prepend(str(HARNESS))
    changed_lines = importlib.import_module("changed_lines")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/code.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(lines, gaps=(), calls=(), has_interpreter=True):
        looked = changed_lines.ChangedLines({"package/code.py": {"lines": list(lines), "gaps": list(gaps)}}, has_interpreter)
        space = {"triton": Triton, "T": type("T", (), {"prim_func": staticmethod(lambda f: f)})}
        watch = importlib.import_module("watch").Watch(looked)
        before = sys.gettrace()
        watch.start()
        try:
            path = tmp_path / "package/code.py"
            exec(compile(path.read_text(), str(path), "exec"), space)
            for number, x in enumerate(calls):
                looked.case = f"case{number}"
                watch.next_case()
                space["half"](x)
            report = looked.report()
        finally:
            sys.settrace(before)
        return report, looked

    return run


def missed(report):
    return [text.removeprefix("package/code.py:") for text in report["missed"]]


def test_a_line_that_ran_is_not_named(look):
    report, _ = look([2, 11, 18], calls=[5, 1])
    assert report == {"num": 3, "missed": [], "text": 0}


def test_a_line_that_no_case_ran_is_named(look):
    report, _ = look([11, 13, 17], calls=[2])
    assert missed(report) == ["11", "17"]


def test_comments_and_docstrings_are_no_code(look):
    report, _ = look([1, 6, 7])
    assert report["num"] == 0


def test_a_changed_condition_needs_both_ways(look):
    report, _ = look([9], calls=[5])
    assert missed(report) == ["8 is never false"]
    report, _ = look([9], calls=[1])
    assert missed(report) == ["8 is never true"]
    report, _ = look([9], calls=[1, 5])
    assert missed(report) == []


def test_a_comment_below_a_condition_is_no_part_of_it(look):
    report, _ = look([10], calls=[1])
    assert report["num"] == 0
    report, _ = look([5], calls=[1])
    assert report == {"num": 1, "missed": [], "text": 0}


def test_any_line_of_a_statement_stands_for_it(look):
    report, _ = look([20], calls=[1])
    assert report["num"] == 1 and missed(report) == []


def test_where_lines_were_taken_away_a_neighbour_runs(look):
    report, _ = look([], gaps=[18], calls=[2])
    assert missed(report) == []
    report, _ = look([], gaps=[18], calls=[5])
    assert missed(report) == ["18 (taken away)"]


def test_a_kernel_counts_in_its_interpreter_alone(look):
    report, _ = look([26], calls=[1])
    assert missed(report) == ["26"]
    report, _ = look([26], calls=[1], has_interpreter=False)
    assert report == {"num": 0, "missed": [], "text": 1}
    report, _ = look([31], calls=[1])
    assert report == {"num": 0, "missed": [], "text": 1}


def test_what_builds_a_kernel_is_its_text(look):
    report, _ = look([38, 42])
    assert report == {"num": 0, "missed": [], "text": 2}


def test_a_test_on_one_line_with_its_body_has_no_branches(look):
    report, _ = look([34])
    assert report["num"] >= 1 and missed(report) == []


def test_only_a_changed_kernel_wants_kernels(look):
    _, looked = look([11])
    assert not looked.wants_kernels()
    _, looked = look([26])
    assert looked.wants_kernels()


def test_a_file_that_is_not_there_is_named(look, monkeypatch):
    looked = sys.modules["changed_lines"].ChangedLines({"other.py": {"lines": [1], "gaps": []}}, True)
    assert looked.report() == {"num": 1, "missed": ["other.py is not imported from here"], "text": 0}


def test_what_each_case_ran_is_kept_until_three_have(look):
    _, looked = look([11, 18], calls=[5, 1, 1, 5, 5, 1, 1])
    assert looked.ran("case0") == ["package/code.py:11"]
    assert looked.ran("case1") == ["package/code.py:18"]
    assert looked.is_done()
