"""env/compare_sass.py: which kernels of two trees count as equal, renamed and different."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "env"))
from compare_sass import compare, main  # noqa: E402

MOVE, ADD = ("REG:8", "0x01", "0x02"), ("REG:8", "0x03", "0x04")


def test_equal_and_renamed_kernels_are_paired_by_their_code() -> None:
    row = compare("a.cu", {"a::kept": MOVE, "a::old": ADD}, {"a::kept": MOVE, "b::new": ADD})
    assert (row["kernels"], row["instructions"], row["equal"], row["renamed"], row["different"]) == (2, 2, 1, 1, [])


def test_another_instruction_or_register_count_is_a_difference() -> None:
    for other in (("REG:8", "0x01", "0x05"), ("REG:9", "0x01", "0x02")):
        assert compare("a.cu", {"a::kept": MOVE}, {"a::kept": other})["different"] == ["a::kept"]


def test_a_kernel_that_one_tree_lacks_is_a_difference() -> None:
    assert compare("a.cu", {"a::kept": MOVE, "a::lost": ADD}, {"a::kept": MOVE})["different"] == ["a::lost"]
    assert compare("a.cu", {}, {"a::come": ADD})["different"] == ["a::come"]


def test_a_kernel_that_stays_is_no_other_kernel_s_new_name() -> None:
    """One that changed to the code of another is different, whatever else has that code."""
    assert compare("a.cu", {"a::f": MOVE, "a::g": ADD}, {"a::f": ADD, "a::g": ADD})["different"] == ["a::f"]


def test_two_trees_must_be_named() -> None:
    assert main(["HEAD"]) == 2
