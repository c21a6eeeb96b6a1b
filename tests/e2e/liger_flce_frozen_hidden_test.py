"""Pack 25 on real Liger-Kernel releases, on the CPU: each release has its class, and reduction none another window."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answer, case_words, need_reproducer, seen

SLUG = "liger_flce_frozen_hidden"
need_reproducer(SLUG)

HEADS = ("mean_weight", "sum_weight", "mean_weight_and_bias", "mean_bias")
OF_BIAS = ("mean_weight_and_bias", "mean_bias")
TRAINED = ("mean_hidden", "mean_hidden_and_weight", "mean_all")


@pytest.mark.parametrize(
    ("version", "head", "of_bias", "none"),
    [
        ("0.6.2", "absent", "absent", "undeclared"),
        ("0.6.3", "forward_raises", "forward_raises", "forward_raises"),
        ("0.7.0", "gradient_missing", "forward_raises", "gradient_missing"),
        ("0.8.5", "gradient_missing", "gradient_missing", "absent"),
    ],
)
def test_each_release_has_its_class(tmp_path: Path, version: str, head: str, of_bias: str, none: str) -> None:
    chosen = case_words(*HEADS, *TRAINED, "none_weight")
    _, document = answer(tmp_path, "reproduce", SLUG, version, *chosen, "--device", "cpu")
    wanted = dict.fromkeys(HEADS, head) | dict.fromkeys(OF_BIAS, of_bias) | dict.fromkeys(TRAINED, "absent") | {"none_weight": none}
    assert seen(document, "upstream") == wanted


def test_the_model_has_the_class_of_the_red_pin(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(gradient_missing)")
    found = seen(document, "model")
    assert {name: found[name] for name in TRAINED} == dict.fromkeys(TRAINED, "absent")
