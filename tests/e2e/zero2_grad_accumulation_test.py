"""Pack 21 on real deepspeed releases: two ranks train in one sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answer, case_words, need_reproducer, seen

SLUG = "zero2_grad_accumulation"
need_reproducer(SLUG)

TRIGGERS = ("accumulation_4", "two_groups_five_steps", "accumulation_4_bf16")
CONTROLS = ("stage_1", "accumulation_1")


@pytest.mark.parametrize(("version", "state"), [("0.17.5", "absent"), ("0.18.2", "last_micro_batch"), ("0.18.3", "absent")])
def test_each_release_has_its_class(tmp_path: Path, version: str, state: str) -> None:
    chosen = case_words(*TRIGGERS, *CONTROLS, "scattered_gradients")
    _, document = answer(tmp_path, "reproduce", SLUG, version, *chosen, "--device", "cpu")
    known = dict.fromkeys(TRIGGERS, state) | dict.fromkeys(CONTROLS, "absent")
    assert seen(document, "upstream") == known | {"scattered_gradients": "ranks_not_reduced"}


def test_the_model_has_the_class_of_the_red_pin(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(last_micro_batch)")
    found = seen(document, "model")
    assert {name: found[name] for name in CONTROLS} == dict.fromkeys(CONTROLS, "absent")
