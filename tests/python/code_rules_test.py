"""The cheap searches of runner/python/code_rules.py against the plain ones."""

from __future__ import annotations

import ast
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "runner/python"))
import code_rules  # noqa: E402

NAMES = ("stage", "zero_stage", "gradient_accumulation_steps")
PARTS = ["stage", "zero_stage", "zero-stage", "gradient-accumulation-steps", "gradient_accumulation_steps", "a", "x.", ".",
         "--", " ", "\n", "\t", "=", "==", ":", ";", '"', "'", "\\", "(", "{"]  # fmt: skip


def test_a_setting_is_found_wherever_its_pattern_is() -> None:
    rule = {"slug": "x", "class": "y", "calls": [], "keys": [{"name": name} for name in NAMES], "rules_out": []}
    reader = code_rules.Reader([rule], None)
    pick = random.Random(1)
    counts = {True: 0, False: 0}
    for _ in range(20_000):
        text = "".join(pick.choice(PARTS) for _ in range(pick.randint(1, 9)))
        for name in NAMES:
            want = reader.set_keys[name].search(text) is not None
            assert reader.is_set(name, text) == want, (name, text)
            counts[want] += 1
    assert counts[True] > 500 and counts[False] > 500


def test_a_long_line_is_searched_once() -> None:
    """A notebook without line ends has all of its settings on one line."""
    reader = code_rules.Reader([], None)
    reader.loose["stage"] = code_rules.loose_patterns("stage")
    searches = []

    class Counted:
        def search(self, text: str) -> None:
            searches.append(len(text))

    reader.set_keys["stage"] = Counted()
    assert not reader.is_set("stage", "stage = 1; " * 10_000)
    assert sum(searches) < 1_000_000


def test_the_nodes_are_those_of_a_walk() -> None:
    tree = ast.parse(Path(code_rules.__file__).read_text("utf-8"))
    leaves = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    assert code_rules.nodes_of(tree) == [node for node in ast.walk(tree) if not isinstance(node, leaves)]


def test_a_word_is_found_as_a_whole() -> None:
    for text, want in (("Trainer(", True), ("a.Trainer", True), ("MyTrainer", False), ("Trainers", False), ("x Trainers Trainer", True)):
        assert code_rules.is_word_in("Trainer", text) == want, text
